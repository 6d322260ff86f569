"""What the store knows of versions: decisions, how users judged their answers, turns that are held back."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from instar.flow.held_back import BLOCK_S, Lot
from instar.records import Fate, Kind, Source
from instar.store import open_store
from instar.store.training import LOT
from tests.kit.store_scenes import SALT, Scene, session_that_is, url_of

KEPT, FREE = session_that_is(True), session_that_is(False)


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path / "instar.db")


# ── decisions ─────────────────────────────────────────────────────────────────────────────────────────────
def test_a_decision_and_its_activation_are_one_commit(scene: Scene) -> None:
    scene.store.activate("v2", "update 2")
    scene.store.decide("v2", Fate.ROLLED_BACK, "worse than v1", activate="v1")
    scene.store.decide("v3", Fate.WAITS, "passed")
    assert scene.store.active_version() == "v1"
    assert scene.store.activations()[0].reason == "worse than v1"
    told = [(d.version, d.fate, d.reason) for d in scene.store.decisions()]
    assert told == [("v3", Fate.WAITS, "passed"), ("v2", Fate.ROLLED_BACK, "worse than v1")]


def test_an_update_may_end_with_a_version_that_waits(scene: Scene) -> None:
    scene.corrected("a")
    update = scene.store.begin_update(["a"], "base", "{}")
    scene.store.finish_update(
        update.id, status="proposed", version="v1", note="fine", activate=False, waits=True
    )
    assert scene.store.active_version() == "base"
    assert [(d.version, d.fate) for d in scene.store.decisions()] == [("v1", Fate.WAITS)]


def test_the_first_schema_is_brought_up_to_this_one_with_all_that_is_in_it(tmp_path: Path) -> None:
    scene = Scene(tmp_path / "instar.db")
    scene.corrected("a")
    scene.store.activate("v1", "by hand")
    scene.store.close()
    with sqlite3.connect(tmp_path / "instar.db") as conn:  # what 0002 added is taken away again
        conn.execute("DROP TABLE decisions")
        conn.execute("DROP INDEX ix_turns_version")
        conn.execute("DROP INDEX ix_next_states_rated")  # and 0003
        for column in ("forced", "tool_hashes"):  # and 0004
            conn.execute(f"ALTER TABLE turns DROP COLUMN {column}")
        conn.execute("UPDATE alembic_version SET version_num = '0001'")
    conn.close()
    store = open_store(url_of(tmp_path / "instar.db"))
    assert store.active_version() == "v1"
    assert [s.turn_id for s in store.trainable(9, current=0, max_staleness=4)] == ["a"]
    assert store.decisions() == []
    store.decide("v1", Fate.CHOSEN, "still")


# ── live scores ───────────────────────────────────────────────────────────────────────────────────────────
def test_live_scores_are_what_users_said_of_a_versions_own_answers(scene: Scene) -> None:
    scene.corrected("good", 1, version="v1")
    scene.corrected("bad", -1, version="v1")
    scene.corrected("neither", 0, version="v1")
    scene.corrected("other", 1, version="v2")
    scene.corrected("pinned", 1, version="v1", pinned=True)
    scene.corrected("step", 1, version="v1", kind=Kind.TOOL_STEP)
    scene.answered("tool", version="v1")
    scene.said("tool", "ok")
    scene.judge("tool", 1, source=Source.TOOL)
    scene.corrected("last", 1, version="v1")
    scene.corrected("again", -1, version="v1", kind=Kind.RETRY)
    scene.corrected("step again", 1, version="v1", kind=Kind.RETRY, episode_id="last")
    assert scene.store.live_scores("v1") == [1, -1, 1, -1]
    assert scene.store.live_scores("v9") == []


# ── held back ─────────────────────────────────────────────────────────────────────────────────────────────
def trainable(scene: Scene, share: float = 0.1, **more: Any) -> list[str]:
    found = scene.store.trainable(9, current=0, max_staleness=4, held_back=share)
    return [s.turn_id for s in found]


def test_an_hour_of_a_session_is_held_back_as_a_whole_and_says_so(scene: Scene) -> None:
    scene.corrected("a", session_id=KEPT)
    scene.corrected("b", session_id=FREE)
    scene.corrected("c", 1, session_id=KEPT)
    assert trainable(scene) == ["b"]
    assert {t["id"]: t["reason"] for t in scene.store.turn_views()} == {
        "a": "held_back",
        "b": None,
        "c": "held_back",
    }
    assert trainable(scene, 0.0) == ["b"], "what was held back once stays so"
    assert [(s.turn_id, s.score) for s in scene.store.held_back("ann", 9)] == [("c", 1), ("a", -1)]
    assert [s.turn_id for s in scene.store.held_back("ann", 1)] == ["c"]
    assert scene.store.held_back("bob", 9) == []


def test_what_says_nothing_takes_no_place_among_those_that_a_version_is_tried_on(scene: Scene) -> None:
    def rejected(turn_id: str, source: Source = Source.USER, score: int = -1, **words: str) -> None:
        scene.answered(turn_id, session_id=KEPT)
        scene.said(turn_id, "No.")
        scene.judge(turn_id, score, source=source, **words)

    rejected("worded", hint="Shorter.")
    rejected("edited", correction="so")
    scene.corrected("praised", 1, session_id=KEPT)
    rejected("asked again")
    scene.corrected("accepted", 1, session_id=KEPT, parent_id="asked again")
    scene.corrected("long", 1, session_id=KEPT, outcome={"prompt_ids": [1] * 99})
    scene.corrected("empty", 1, session_id=KEPT, outcome={"response_ids": [], "logprobs": []})
    for number in range(5):
        rejected(f"wordless {number}")
        rejected(f"tool {number}", Source.TOOL, 1)
    assert trainable(scene) == []
    found = [s.turn_id for s in scene.store.held_back("ann", 2, longest=50)]
    assert found == ["accepted", "asked again"]
    found = [s.turn_id for s in scene.store.held_back("ann", 9, longest=50)]
    assert found == ["accepted", "asked again", "praised", "edited", "worded"]
    assert scene.store.held_back("ann", 1)[0].turn_id == "long"


def test_nothing_is_held_back_before_it_is_judged(scene: Scene) -> None:
    scene.answered("a", session_id=KEPT)
    assert trainable(scene) == []
    assert scene.store.turn_views()[0]["reason"] is None


def test_what_is_held_back_is_judged_anew_when_the_user_says_so(scene: Scene) -> None:
    scene.corrected("a", -1, session_id=KEPT)
    assert trainable(scene) == []
    scene.feedback("a", score=1)
    assert scene.waiting() == ["a"]
    scene.judge("a", 1)
    assert trainable(scene) == []
    assert [s.score for s in scene.store.held_back("ann", 9)] == [1]


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5])
def test_the_share_of_sessions_is_as_asked(share: float) -> None:
    found = sum(Lot(share, SALT).holds_back("ann", f"s{i}", 1.0) for i in range(4000)) / 4000
    assert found == pytest.approx(share, abs=0.02)


def test_a_larger_share_holds_back_what_a_smaller_one_did() -> None:
    small, large = (
        {i for i in range(500) if Lot(share, SALT).holds_back("ann", f"s{i}", 1.0)} for share in (0.1, 0.2)
    )
    assert small < large


@pytest.mark.parametrize("name", ["main", "user", "s", "agent:main:main"])
def test_under_one_name_for_ever_something_is_held_back_and_most_is_not(name: str) -> None:
    """Of 1000 hours; and the name alone tells nobody which."""
    drawn = {
        key: [Lot(0.1, key[0]).holds_back(key[1], name, hour * BLOCK_S) for hour in range(1000)]
        for key in (("salt", "ann"), ("salt", "bob"), ("pepper", "ann"))
    }
    assert all(sum(hours) == pytest.approx(100, abs=35) for hours in drawn.values())
    assert len(set(map(tuple, drawn.values()))) == 3


def test_a_compaction_s_new_name_and_another_minute_change_nothing() -> None:
    lot = Lot(0.5, SALT)
    for number in range(20):
        drawn = {lot.holds_back("ann", f"s{number}{n}", at) for n in ("", ":1", ":2") for at in (0.0, 3599.0)}
        assert len(drawn) == 1


def test_the_salt_is_drawn_once_for_each_installation(scene: Scene, tmp_path: Path) -> None:
    salts = set()
    for name in ("one.db", "two.db"):
        store = open_store(url_of(tmp_path / name))
        assert store.trainable(9, current=0, max_staleness=4) == []
        assert store.get_state(LOT) is None, "nothing is held back"
        for _ in range(2):
            store.trainable(9, current=0, max_staleness=4, held_back=0.1)
            salts.add(str(store.get_state(LOT)))
        store.close()
    assert len(salts) == 2


def test_an_answer_that_is_held_back_is_not_learned_as_another_s_retry(scene: Scene) -> None:
    """The user corrects in one hour, and accepts the retry in the next, which is held back."""
    starts = (BLOCK_S * hour for hour in range(1000))
    at = next(
        s
        for s in starts
        if Lot(0.1, SALT).holds_back("ann", "s", s) > Lot(0.1, SALT).holds_back("ann", "s", s - 1)
    )
    scene.corrected("first", created_at=at - 1)
    scene.corrected("retry", 1, parent_id="first", created_at=at + 1)
    seen, unseen = (
        scene.store.trainable(9, current=0, max_staleness=4, held_back=share)[0] for share in (0.0, 0.1)
    )
    assert (seen.accepted, seen.retry_ids) == ("answer retry", [4, 5])
    assert (unseen.accepted, unseen.retry_ids) == (None, [])


def test_turns_by_name(scene: Scene) -> None:
    for turn_id in "abc":
        scene.corrected(turn_id)
    assert [t["id"] for t in scene.store.turn_views(turn_ids=["a", "c", "ghost"])] == ["c", "a"]


def test_what_is_held_back_tells_nothing_of_what_pleases_either(scene: Scene) -> None:
    scene.corrected("a", session_id=FREE)
    scene.corrected("b", session_id=KEPT)
    assert [h.answer for h in scene.store.verdicts("ann", 9, held_back=0.1)] == ["answer a"]
    assert len(scene.store.verdicts("ann", 9)) == 2
    trainable(scene)
    assert [h.answer for h in scene.store.verdicts("ann", 9)] == ["answer a"], "marked once, marked for ever"
