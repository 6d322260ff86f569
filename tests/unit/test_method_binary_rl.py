"""Thumbs: an advantage only where recent feedback mixes, never for a cut answer, never from a missing number."""

from __future__ import annotations

import pytest

from instar.errors import ConfigError
from instar.methods import get_method
from instar.methods.baselines import WINDOW
from instar.records import Origin, Source
from tests.kit.samples import WordPrompts, judged, praised

MIXED = {"recent": {"me/user": [1, -1, 1, -1]}}


def test_an_unknown_method_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"no method 'ppo'.*binary_rl, combined, opd"):
        get_method("ppo")


@pytest.mark.parametrize("name", ["binary_rl", "opd", "combined"])
def test_methods_carry_their_names_and_leave_the_given_state_alone(name: str) -> None:
    method, before = get_method(name), {"recent": {"me/user": [1]}, "hints": {"me": ["Old."]}}
    _, after = method.weigh([judged()], WordPrompts(), before)
    assert method.name == name
    assert before == {"recent": {"me/user": [1]}, "hints": {"me": ["Old."]}}
    assert after["recent"] == {"me/user": [1, -1]}
    assert after["hints"] == {"me": ["Old.", "Shorter, please."]}


def test_good_goes_up_and_bad_goes_down_by_what_was_unexpected() -> None:
    state = {"recent": {"me/user": [1] * 5 + [-1]}}
    (good, bad), _ = get_method("binary_rl").weigh([praised(), judged()], WordPrompts(), state)
    assert sum(good.pg_T) == pytest.approx((1 - 0.5) / 2)
    assert sum(bad.pg_T) == pytest.approx((-1 - 0.5) / 2)


def test_long_and_short_answers_count_the_same() -> None:
    long = judged("long", response_ids=[5] * 40, logprobs=[-1.0] * 40)
    (a, b), _ = get_method("binary_rl").weigh([long, judged("short")], WordPrompts(), MIXED)
    assert sum(a.pg_T) == pytest.approx(sum(b.pg_T))
    assert len(a.pg_T) == 40


@pytest.mark.parametrize("score", [1, -1])
def test_feedback_of_one_sign_teaches_nothing(score: int) -> None:
    batch = [judged(f"t{i}", score=score) for i in range(8)]
    weighted, _ = get_method("binary_rl").weigh(batch, WordPrompts(), {})
    assert all(not any(w.pg_T) for w in weighted)
    assert {w.abstained["pg"] for w in weighted} == {"feedback_not_mixed"}


@pytest.mark.parametrize("logprobs", [[], [-0.5], [-0.5] * 5])
def test_missing_log_probs_abstain_instead_of_becoming_numbers(logprobs: list[float]) -> None:
    (w,), _ = get_method("binary_rl").weigh([judged(logprobs=logprobs)], WordPrompts(), MIXED)
    assert not any(w.pg_T)
    assert w.abstained == {"pg": "no_logprobs"}


def test_a_cut_answer_may_be_bad_but_never_good() -> None:
    cut = [praised("a", was_cut=True), judged("b", was_cut=True)]
    (good, bad), _ = get_method("binary_rl").weigh(cut, WordPrompts(), MIXED)
    assert good.abstained == {"pg": "cut_is_never_good"}
    assert not any(good.pg_T)
    assert sum(bad.pg_T) < 0


@pytest.mark.parametrize("score", [0, None])
def test_no_score_no_weight(score: int | None) -> None:
    (w,), state = get_method("binary_rl").weigh([judged(score=score)], WordPrompts(), MIXED)
    assert w.abstained == {"pg": "no_score"}
    assert state["recent"] == MIXED["recent"]


def test_what_the_policy_did_not_sample_has_no_policy_gradient() -> None:
    (w,), _ = get_method("binary_rl").weigh([judged(origin=Origin.EDIT)], WordPrompts(), MIXED)
    assert w.abstained == {"pg": "not_sampled"}


def test_tools_and_people_have_baselines_of_their_own() -> None:
    state = {"recent": {"me/tool": [1] * 20}}
    (w,), after = get_method("binary_rl").weigh([praised()], WordPrompts(), state)
    assert after["recent"] == {"me/tool": [1] * 20, "me/user": [1]}
    assert w.abstained == {"pg": "feedback_not_mixed"}


def test_tools_have_a_quarter_of_the_weight_at_most() -> None:
    tools = [praised(f"tool{i}", source=Source.TOOL) for i in range(12)]
    state = {"recent": {"me/tool": [-1] * 16, "me/user": [1, -1, 1, -1]}}
    weighted, _ = get_method("binary_rl").weigh([*tools, judged("me")], WordPrompts(), state)
    *tool, me = (sum(map(abs, w.pg_T)) for w in weighted)
    assert sum(tool) == pytest.approx(me / 3)


def test_a_batch_of_tools_alone_moves_a_quarter_as_much() -> None:
    tools = [praised("good", source=Source.TOOL), judged("bad", source=Source.TOOL, hint=None)]
    state = {"recent": {"me/tool": [1, -1]}}
    weighted, _ = get_method("binary_rl").weigh(tools, WordPrompts(), state)
    assert [sum(w.pg_T) for w in weighted] == pytest.approx([0.125, -0.125])


def test_the_baseline_forgets_what_is_long_ago() -> None:
    state = {"recent": {"me/user": [1] * 100}}
    _, after = get_method("binary_rl").weigh([judged(f"t{i}") for i in range(WINDOW)], WordPrompts(), state)
    assert after["recent"]["me/user"] == [-1] * WINDOW
