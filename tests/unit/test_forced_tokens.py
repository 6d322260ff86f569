"""What a grammar decided is not learned from: whatever the method, and on every way into a batch."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from instar.chat_format import ChatFormat
from instar.flow.prompts import ChatTeacherPrompts
from instar.methods import get_method
from tests.kit.samples import WordPrompts, judged
from tests.kit.store_scenes import Scene
from tests.kit.tiny_model import write_chat_files

MIXED = {"recent": {"me/user": [1, -1, 1, -1]}}
METHODS = ["binary_rl", "opd", "combined"]
TOOL = {"type": "function", "function": {"name": "ls", "parameters": {"type": "object"}}}


@pytest.mark.parametrize("method", METHODS)
@given(forced=st.lists(st.booleans(), min_size=4, max_size=4), score=st.sampled_from([1, -1]))
def test_forced_tokens_weigh_nothing_and_the_others_carry_all(
    method: str, forced: list[bool], score: int
) -> None:
    hint = "Shorter." if score < 0 else None
    (bound,), _ = get_method(method).weigh(
        [judged(score=score, hint=hint, forced=forced)], WordPrompts(), MIXED
    )
    (free,), _ = get_method(method).weigh([judged(score=score, hint=hint)], WordPrompts(), MIXED)
    for mine, whole in (
        (bound.pg_T, free.pg_T),
        (bound.distill_T, free.distill_T),
        (bound.nll_T, free.nll_T),
    ):
        assert all(weight == 0 for weight, is_forced in zip(mine, forced, strict=True) if is_forced)
        if not all(forced):
            assert sum(mine) == pytest.approx(sum(whole)), "each sample counts equally"
    assert not any(bound.kl_T)


@pytest.mark.parametrize("method", METHODS)
def test_where_it_is_not_known_which_the_component_abstains(method: str) -> None:
    (weighted,), _ = get_method(method).weigh([judged(forced=[True])], WordPrompts(), MIXED)
    assert not any([*weighted.pg_T, *weighted.distill_T, *weighted.nll_T])
    assert "grammar_unknown" in weighted.abstained.values()


def test_an_answer_under_a_grammar_is_not_revised() -> None:
    (weighted,), _ = get_method("combined").weigh([judged(forced=[False] * 4)], WordPrompts(), MIXED)
    assert weighted.revise == 0.0
    (weighted,), _ = get_method("combined").weigh([judged()], WordPrompts(), MIXED)
    assert weighted.revise == 1.0


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path / "instar.db")


def test_the_store_keeps_what_was_forced_and_what_was_offered(scene: Scene) -> None:
    scene.corrected("bound", tools=[TOOL], outcome={"forced": [True, False]})
    scene.corrected("free")
    turn = scene.store.turn("bound")
    assert turn is not None
    assert (turn.tools, turn.forced) == ([TOOL], [True, False])
    samples = {s.turn_id: s for s in scene.store.trainable(9, current=0, max_staleness=4)}
    assert (samples["bound"].tools, samples["bound"].forced) == ([TOOL], [True, False])
    assert (samples["free"].tools, samples["free"].forced) == ([], [])


@pytest.mark.parametrize("forced", [[], [True, False]])
def test_a_retry_under_a_grammar_is_no_example(scene: Scene, forced: list[bool]) -> None:
    scene.corrected("first")
    scene.corrected("retry", 1, parent_id="first", outcome={"forced": forced})
    (first,) = [s for s in scene.store.trainable(9, current=0, max_staleness=4) if s.turn_id == "first"]
    assert first.accepted == (None if forced else "answer retry")
    assert first.retry_ids == ([] if forced else [4, 5])


def test_the_teacher_is_told_of_the_same_tools(tmp_path: Path) -> None:
    chat = ChatFormat(write_chat_files(tmp_path))
    ids = ChatTeacherPrompts(chat).hinted(judged(tools=[TOOL]), "Shorter.")
    assert '"name": "ls"' in chat.decode(ids)
    assert '"name": "ls"' not in chat.decode(ChatTeacherPrompts(chat).hinted(judged(), "Shorter."))
