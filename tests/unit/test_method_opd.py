"""Corrections: only a corrected answer with words to learn from is distilled, towards one's own words."""

from __future__ import annotations

import pytest

from instar.methods import get_method
from instar.methods.opd import OTHER_HINTS, teacher_words
from instar.records import Origin, Source
from tests.kit.samples import WordPrompts, judged, praised


def test_a_corrected_answer_is_distilled_evenly() -> None:
    prompts = WordPrompts()
    (w,), _ = get_method("opd").weigh([judged()], prompts, {})
    assert w.distill_T == [0.25] * 4
    assert w.teacher_prompt_ids == [10, 11, 12, 99]
    assert prompts.shown == ["Shorter, please."]
    assert not any([*w.pg_T, *w.nll_T, *w.kl_T])


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"score": 1}, "nothing_to_correct"),
        ({"score": 0}, "nothing_to_correct"),
        ({"hint": None}, "no_hint"),
        ({"hint": "  "}, "no_hint"),
        ({"origin": Origin.EDIT}, "not_sampled"),
        ({"logprobs": []}, "no_logprobs"),
    ],
)
def test_everything_else_abstains_with_a_reason(changes: dict[str, object], why: str) -> None:
    (w,), _ = get_method("opd").weigh([judged(**changes)], WordPrompts(), {})
    assert not any(w.distill_T)
    assert w.teacher_prompt_ids is None
    assert w.abstained == {"distill": why}


def test_a_cut_answer_is_distilled_and_has_no_stop_token_to_train() -> None:
    cut = judged(was_cut=True, response_ids=[20, 21, 22], logprobs=[-1.0] * 3)
    (w,), _ = get_method("opd").weigh([cut], WordPrompts(), {})
    assert w.response_ids == [20, 21, 22]
    assert sum(w.distill_T) == pytest.approx(1.0)


def test_the_own_hint_is_the_last_word() -> None:
    words = teacher_words("Now this.", ["One.", "Two.", "Three.", "Now this."])
    assert words.endswith("Now this.")
    assert words.count("Now this.") == 1
    assert len(words.split(". ")) == OTHER_HINTS + 1


def test_hints_of_other_learners_and_of_tools_stay_out() -> None:
    prompts = WordPrompts()
    others = [
        judged("a", learner="you", hint="Theirs."),
        judged("b", source=Source.TOOL, hint="Error 2."),
        praised("c"),
    ]
    _, state = get_method("opd").weigh(others, prompts, {})
    get_method("opd").weigh([judged("d", hint="Mine.")], prompts, state)
    assert prompts.shown[-1] == "Mine."


def test_a_hint_that_comes_again_is_kept_once_and_moves_to_the_end() -> None:
    batch = [judged(f"t{i}", hint=h) for i, h in enumerate(["A.", "B.", "A."])]
    _, state = get_method("opd").weigh(batch, WordPrompts(), {})
    assert state["hints"]["me"] == ["B.", "A."]
