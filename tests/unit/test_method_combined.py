"""The default method: both signals on the sampled answer, and the best text that there is for a correction."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from instar.methods import get_method
from instar.methods.combined import PUSHED
from instar.methods.weights import changed_T, lesson_T
from instar.records import Origin
from tests.kit.samples import WordPrompts, judged, praised

MIXED = {"recent": {"me/user": [1, -1, 1, -1]}}
ids = st.lists(st.integers(3, 9), min_size=1, max_size=12)


def test_a_correction_carries_both_signals_and_asks_for_a_revision() -> None:
    (w,), _ = get_method("combined").weigh([judged(retry_ids=[7, 8, 2])], WordPrompts(), MIXED)
    assert sum(w.pg_T) < 0
    assert sum(map(abs, w.pg_T)) < PUSHED * 2
    assert w.revise == 1.0
    assert w.revisions == [[7, 8, 2]]
    assert w.teacher_prompt_ids
    assert w.abstained == {}


def test_a_complaint_without_words_asks_for_no_revision() -> None:
    (w,), _ = get_method("combined").weigh([judged(hint=None)], WordPrompts(), MIXED)
    assert sum(w.pg_T) < 0
    assert not any(w.distill_T)
    assert (w.revise, w.teacher_prompt_ids) == (0.0, None)


def test_praise_has_its_policy_gradient_alone() -> None:
    (w,), _ = get_method("combined").weigh([praised()], WordPrompts(), MIXED)
    assert sum(w.pg_T) > 0
    assert not any([*w.distill_T, *w.nll_T])
    assert (w.revise, w.abstained) == (0.0, {})


def test_an_edit_is_a_sample_of_its_own_whose_changes_weigh_most() -> None:
    edited = judged(response_ids=[20, 21, 22, 2], correction="20 21 50")
    sampled, edit = get_method("combined").weigh([edited], WordPrompts(), MIXED)[0]
    assert sampled.origin is Origin.SAMPLED
    assert edit.origin is Origin.EDIT
    assert (edit.turn_id, edit.prompt_ids) == (sampled.turn_id, sampled.prompt_ids)
    assert edit.response_ids == [20, 21, 50, 2]
    assert edit.logprobs == []
    assert not any([*edit.pg_T, *edit.distill_T])
    same, _, changed, stop = edit.nll_T
    assert 0.1 <= same / changed <= 0.3
    assert stop == same
    assert sum(edit.nll_T) == pytest.approx(1.0)


def test_an_accepted_retry_counts_where_there_is_no_edit() -> None:
    _, retry = get_method("combined").weigh([judged(accepted="7 8")], WordPrompts(), MIXED)[0]
    assert retry.origin is Origin.ACCEPTED_RETRY
    assert retry.response_ids == [7, 8, 2]
    both = judged(accepted="7 8", correction="9")
    assert [w.origin for w in get_method("combined").weigh([both], WordPrompts(), MIXED)[0]] == [
        Origin.SAMPLED,
        Origin.EDIT,
    ]


def test_an_edit_is_learned_from_even_when_log_probs_are_gone() -> None:
    sampled, edit = get_method("combined").weigh([judged(logprobs=[], correction="7")], WordPrompts(), MIXED)[
        0
    ]
    assert sampled.abstained == {"pg": "no_logprobs"}
    assert sum(edit.nll_T) == pytest.approx(1.0)


@pytest.mark.parametrize("text", ["", "  \n"])
def test_an_empty_edit_is_none(text: str) -> None:
    assert len(get_method("combined").weigh([judged(correction=text)], WordPrompts(), MIXED)[0]) == 1


@given(before=ids, after=ids)
def test_unchanged_tokens_are_a_common_subsequence(before: list[int], after: list[int]) -> None:
    kept = [token for token, new in zip(after, changed_T(before, after), strict=True) if not new]
    remaining = iter(before)
    assert all(token in remaining for token in kept)


@given(before=ids, after=ids)
def test_a_lesson_weighs_one_whatever_changed(before: list[int], after: list[int]) -> None:
    assert sum(lesson_T(before, after)) == pytest.approx(1.0)
    assert min(lesson_T(before, after)) > 0
