"""Two versions on turns that were held back: what each kind of turn says, and what all of them decide."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from instar.records import GateReport, HeldBackTurn
from instar.trainers import trial as trial_module
from instar.trainers.canaries import canaries, token_logp
from instar.trainers.gate import Gate
from instar.trainers.local import run_update
from instar.trainers.policy import LONG, Policy
from instar.trainers.trial import EXAMPLES, NO_ANSWER, Look, Trial, usable, with_trial
from tests.kit.samples import job, weighted
from tests.kit.tiny_model import write_tiny_model

torch.set_num_threads(1)
PROMPT, REJECTED, WANTED = [30, 40, 50], [60, 70, 80, 2], [61, 71, 81, 2]


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def policy(model_dir: Path) -> Policy:
    found = Policy(model_dir, rank=4, alpha=8)
    found.reset(1)
    return found


@pytest.fixture
def one_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial_module, "ENOUGH", 1)


def turn(turn_id: str = "t", score: int = -1, **changes: Any) -> HeldBackTurn:
    values: dict[str, Any] = {"question": "Why?", "prompt_ids": PROMPT, "response_ids": REJECTED}
    return HeldBackTurn(turn_id, score, **{**values, **changes})


def trial_of(policy: Policy, *turns: HeldBackTurn) -> Trial:
    return Trial(policy, canaries(policy.model_dir), turns, seed=3)


def make_likelier(policy: Policy, answer: list[int], steps: int = 10) -> None:
    optimizer = torch.optim.AdamW(policy.parameters, lr=2e-2)
    for _ in range(steps):
        optimizer.zero_grad()
        logp_NV = policy.logp_NV(policy.hidden_ND([[*PROMPT, *answer]], [len(PROMPT)]))
        (-logp_NV.gather(1, torch.tensor(answer)[:, None]).mean()).backward()
        optimizer.step()


@pytest.mark.usefixtures("one_is_enough")
def test_each_kind_of_turn_is_scored_as_it_says(policy: Policy) -> None:
    hinted = [90, 91, *PROMPT]
    trial = trial_of(
        policy, turn("praised", 1), turn("wanted", wanted_ids=WANTED), turn("hinted", hinted_ids=hinted)
    )
    make_likelier(policy, WANTED)
    found = trial.look()
    rejected, wanted = (float(x.mean()) for x in token_logp(policy, [PROMPT] * 2, [REJECTED, WANTED]))
    assert found.scores["praised"] == pytest.approx(rejected, abs=0.02)
    assert found.scores["wanted"] == pytest.approx(wanted - rejected, abs=0.02)
    assert found.scores["wanted"] > 0.3
    answer = found.shown[0]
    with policy.as_base():
        plain, shown = (float(x.mean()) for x in token_logp(policy, [PROMPT, hinted], [answer, answer]))
    assert found.scores["hinted"] == pytest.approx(shown - plain, abs=0.02)


LONG_PROMPT = [30 + i % 50 for i in range(LONG + 60)]


@pytest.mark.usefixtures("one_is_enough")
def test_a_long_prompt_is_scored_as_if_it_were_read_whole_by_each_version(policy: Policy) -> None:
    long = {"prompt_ids": LONG_PROMPT}
    trial = trial_of(
        policy,
        turn("praised", 1, **long),
        turn("hinted", hinted_ids=[*LONG_PROMPT[:-5], 90, 91, *LONG_PROMPT[-5:]], **long),
        turn("wanted", wanted_ids=WANTED, **long),
        turn("short", 1),
    )
    before = trial.look()
    make_likelier(policy, WANTED)
    found = trial.look()
    rejected, wanted = (float(x.mean()) for x in token_logp(policy, [LONG_PROMPT] * 2, [REJECTED, WANTED]))
    assert found.scores["praised"] == pytest.approx(rejected, abs=0.05)
    assert found.scores["wanted"] == pytest.approx(wanted - rejected, abs=0.05)
    assert found.scores["wanted"] - before.scores["wanted"] > 0.3, "what the parent read is not kept"
    assert len(found.scores) == 4
    assert len(found.shown) == EXAMPLES


@pytest.mark.usefixtures("one_is_enough")
def test_an_empty_answer_shows_nothing_of_the_users_words(
    policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = trial_of(policy, turn(hinted_ids=[90, *PROMPT]))
    monkeypatch.setattr(trial, "_answers", lambda prefixes: [[]] * EXAMPLES)
    assert trial.look().scores == {"t": NO_ANSWER}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"score": 1}, True),
        ({"wanted_ids": WANTED}, True),
        ({"hinted_ids": PROMPT}, True),
        ({}, False),
        ({"score": 1, "response_ids": []}, False),
        ({"score": 1, "prompt_ids": [5] * 9000}, True),
    ],
)
def test_what_says_nothing_is_left_out(policy: Policy, changes: dict[str, Any], expected: bool) -> None:
    given = turn(**changes)
    assert usable(given) is expected
    facts = trial_of(policy, given).compare(Look({"t": 0.0}), Look({"t": 0.0}))
    assert (facts["turns"], facts["left_out"]) == ((1, 0) if expected else (0, 1))


def compared(policy: Policy, count: int, difference: float) -> dict[str, Any]:
    turns = [turn(f"t{i}", 1) for i in range(count)]
    before = Look({t.turn_id: -1.0 for t in turns})
    after = Look({t.turn_id: -1.0 + difference for t in turns})
    return trial_of(policy, *turns).compare(before, after)


def test_a_worse_version_is_told_from_one_that_is_no_worse(policy: Policy) -> None:
    worse, same, better = (compared(policy, 30, d) for d in (-0.3, 0.0, 0.3))
    assert [facts["passed"] for facts in (worse, same, better)] == [False, True, True]
    assert worse["why"] == (
        "On 30 turns that were held back it wins 23 % against the serving version (23–23 %): "
        "it may be worse by more than 10 points."
    )
    assert same["value"] == 0.5
    few = compared(policy, 29, -3.0)
    assert few["passed"] is None
    assert "not enough evidence yet from turns that are held back (29 of 30)" in few["why"]
    assert compared(policy, 0, 0.0)["passed"] is None


def test_a_version_must_pass_both() -> None:
    fine, broken = (
        GateReport(True, "All checks passed.", {"finite": True}),
        GateReport(False, "It loops.", {}),
    )
    yes, no, unsure = ({"passed": p, "why": f"{p}."} for p in (True, False, None))
    assert with_trial(fine, yes, []).passed
    assert with_trial(fine, unsure, []).passed
    refused = with_trial(fine, no, [])
    assert (refused.passed, refused.why) == (False, "False.")
    assert with_trial(broken, yes, []).why.startswith("It loops.")
    assert not with_trial(broken, yes, []).passed
    assert with_trial(fine, yes, [{"question": "?"}]).checks["examples"] == [{"question": "?"}]


def test_held_back_questions_are_shown_first_and_canaries_fill_up(
    policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = [turn(f"t{i}", question=f"q{i}", hinted_ids=[90, *PROMPT]) for i in range(2)]
    trial = trial_of(policy, turn("p", 1), *turns)
    before = trial.look()
    make_likelier(policy, WANTED)
    after = trial.look()
    shown = trial.examples(before, after, str)
    assert [e["question"] for e in shown[:2]] == ["q0", "q1"]
    assert [e["kind"] for e in shown] == ["held back"] * 2 + ["canary"] * 3
    assert shown[0]["before"] != shown[0]["after"]
    assert before.scores == {}, "three are too few to conclude anything from"
    for enough, scored in ((7, 7), (8, 0)):
        monkeypatch.setattr(trial_module, "ENOUGH", enough)
        many = trial_of(policy, *(turn(f"t{i}", hinted_ids=[90, *PROMPT]) for i in range(7)))
        seen = many.look()
        assert len(seen.scores) == scored
        assert [e["kind"] for e in many.examples(seen, seen, str)] == ["held back"] * 5


def test_an_update_is_tried_on_what_was_held_back_and_refused_when_it_is_worse(
    policy: Policy, model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lesson makes the praised answer unlikely."""
    monkeypatch.setattr(trial_module, "ANSWER_TOKENS", 4)
    lesson = weighted(prompt_ids=PROMPT, response_ids=WANTED, nll_T=[0.25] * 4, logprobs=[])
    update = job(model_dir, tmp_path / "v1", [lesson], passes=6)
    gate = Gate(policy)
    update.held_back.extend(turn(f"t{i}", 1) for i in range(30))
    result = run_update(update, policy, gate)
    assert result.gate is not None
    assert not result.gate.passed
    assert "may be worse" in result.gate.why
    assert result.gate.checks["held_back"]["turns"] == 30
    assert len(result.gate.checks["examples"]) == 5
    update.held_back[:] = [turn(f"t{i}", 1, response_ids=WANTED) for i in range(30)]
    result = run_update(update, policy, gate)
    assert result.gate is not None
    assert result.gate.passed, result.gate.why
    assert result.gate.checks["held_back"]["value"] > 0.6
