"""What a learner rated outright and said beside it: the examples by which the judge's heads are moved."""

from __future__ import annotations

from pathlib import Path

import pytest

from instar.records import NextKind
from tests.kit.store_scenes import Scene


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path / "instar.db")


def ids(scene: Scene, learner: str = "ann", limit: int = 200) -> list[str]:
    return [turn.turn_id for turn in scene.store.rated_turns(learner, limit)]


def test_rated_turns_come_with_question_and_words_newest_rating_first(scene: Scene) -> None:
    for turn_id in ("a", "b", "c"):
        scene.answered(turn_id)
        scene.said(turn_id, f"reply to {turn_id}")
        scene.said(turn_id, "exit code 1", NextKind.TOOL_RESULT)
    for turn_id in ("b", "a", "c"):
        scene.feedback(turn_id, "a comment", score=-1)
    assert ids(scene) == ["c", "a", "b"]
    assert ids(scene, limit=2) == ["c", "a"]
    first = scene.store.rated_turns("ann", 1)[0]
    assert first.question == "question c"
    said = [(state.kind, state.text, state.score) for state in first.next_states]
    assert said == [(NextKind.USER_REPLY, "reply to c", None), (NextKind.FEEDBACK, "a comment", -1)]


def test_only_turns_with_words_and_a_rating_of_that_learner_that_may_be_learned_from(scene: Scene) -> None:
    for turn_id in ("words only", "comment only", "thumb only", "corrected"):
        scene.answered(turn_id)
    scene.answered("bob's", learner="bob")
    scene.answered("kept out", learn=False)
    for turn_id in ("words only", "corrected", "bob's", "kept out"):
        scene.said(turn_id, "no")
    scene.feedback("comment only", "hm")
    scene.feedback("thumb only", score=1)
    scene.feedback("corrected", correction="It should have said this.")
    scene.feedback("bob's", score=-1)
    scene.feedback("kept out", score=-1)
    assert ids(scene) == ["corrected"]
    assert ids(scene, "bob") == ["bob's"]
    assert ids(scene, "nobody") == []


def test_who_rates_twice_is_heard_once_with_both(scene: Scene) -> None:
    scene.answered("t")
    scene.feedback("t", "first thought", score=-1)
    scene.feedback("t", "second thought", score=1)
    found = scene.store.rated_turns("ann", 200)
    assert [[state.score for state in turn.next_states] for turn in found] == [[-1, 1]]


def test_the_newest_rating_grows_with_ratings_alone(scene: Scene) -> None:
    assert scene.store.newest_rating() == 0
    scene.answered("t")
    scene.feedback("t", score=1)
    before = scene.store.newest_rating()
    scene.said("t", "thanks")
    assert scene.store.newest_rating() == before > 0
    scene.feedback("t", score=-1)
    assert scene.store.newest_rating() > before
