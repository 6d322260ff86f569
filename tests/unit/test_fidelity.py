"""Engine and trainer are held against each other at each update; what the engine tells wrongly is not learned from."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from instar.flow.fidelity import KEPT, in_words, remembered, summary
from instar.records import Origin, Update, WeightedSample
from instar.trainers.fidelity import ALL_SET_ASIDE, FAR, compare
from instar.trainers.local import run_update
from instar.trainers.losses import importance_T
from instar.trainers.policy import ADAPTER_FILE, Policy
from instar.trainers.prepare import Prepared
from tests.kit.samples import job, weighted
from tests.kit.tiny_model import write_tiny_model

torch.set_num_threads(1)
PROMPT, RESPONSE = [30, 40, 50], [60, 70, 80, 2]


def prepared(turn_id: str, gaps: list[float], **changes: Any) -> Prepared:
    """A turn that the trainer scores by so much higher than the engine did."""
    old_T = torch.full((len(gaps),), -3.0)
    logprobs = (old_T - torch.tensor(gaps)).tolist()
    values: dict[str, Any] = {"version": "v1", "logprobs": logprobs, "response_ids": [5] * len(gaps)}
    sample = weighted(turn_id, **{**values, **changes})
    return Prepared(sample, old_T, importance_T(old_T, torch.tensor(logprobs)), None, None, {})


def test_the_figures_are_over_the_tokens_that_the_parent_sampled() -> None:
    turns = [
        prepared("a", [0.1, -0.1]),
        prepared("b", [0.0, 0.0, 0.3, 0.1]),
        prepared("older", [9.0], version="base"),
        prepared("edit", [9.0], origin=Origin.EDIT),
        prepared("untold", [9.0], logprobs=[]),
    ]
    found = compare(turns, "v1", torch.bfloat16)
    assert (found["turns"], found["tokens"], found["dtype"], found["tolerance"]) == (2, 6, "bfloat16", 0.2)
    assert found["mean"] == pytest.approx(0.1)
    assert found["largest"] == pytest.approx(0.3)
    assert found["ratio"] == pytest.approx(sum(map(math.exp, [0.1, -0.1, 0, 0, 0.3, 0.1])) / 6)
    assert found["set_aside"] == {}


@pytest.mark.parametrize(
    ("dtype", "gap", "apart"),
    [
        (torch.bfloat16, 0.19, False),
        (torch.bfloat16, 0.21, True),
        (torch.float32, 0.9e-4, False),
        (torch.float32, 1.1e-4, True),
        (torch.bfloat16, math.nan, True),
        (torch.bfloat16, -math.inf, True),
    ],
)
def test_a_turn_is_set_aside_by_what_the_trainer_computes_in(
    dtype: torch.dtype, gap: float, apart: bool
) -> None:
    found = compare([prepared("a", [gap] * 3), prepared("b", [0.0])], "v1", dtype)
    assert list(found["set_aside"]) == (["a"] if apart else [])
    assert found["largest"] <= FAR, "JSON knows no infinity"


def test_without_a_turn_of_the_parent_there_are_no_figures() -> None:
    found = compare([prepared("a", [0.1], version="base")], "v1", torch.bfloat16)
    assert (found["turns"], found["mean"], found["ratio"], found["largest"]) == (0, None, None, None)


# ── in an update ──────────────────────────────────────────────────────────────────────────────────────────
@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def policy(model_dir: Path) -> Policy:
    return Policy(model_dir, rank=4, alpha=8)


def scored(policy: Policy) -> torch.Tensor:
    policy.reset(3)
    with torch.no_grad():
        return policy.logp_of(policy.hidden_ND([[*PROMPT, *RESPONSE]], [3]), RESPONSE)


def sampled(turn_id: str, logprobs: torch.Tensor, **weights: Any) -> WeightedSample:
    return weighted(turn_id, version="base", logprobs=logprobs.tolist(), pg_T=[0.25] * 4, **weights)


def test_an_answer_whose_log_probs_are_wrong_teaches_nothing(
    policy: Policy, model_dir: Path, tmp_path: Path
) -> None:
    true_T = scored(policy)
    right, wrong = sampled("right", true_T - 0.05), sampled("wrong", true_T - 1.0, response_ids=RESPONSE)
    both = run_update(job(model_dir, tmp_path / "both", [right, wrong]), policy, None)
    assert list(both.metrics["fidelity"]["set_aside"]) == ["wrong"]
    assert both.metrics["fidelity"]["set_aside"]["wrong"] == pytest.approx(1.0, abs=1e-3)
    assert both.metrics["fidelity"]["mean"] == pytest.approx(0.525, abs=1e-3)
    silent = run_update(job(model_dir, tmp_path / "one", [right, weighted("wrong")]), policy, None)
    assert both.metrics["lr"] == silent.metrics["lr"]
    read = [(tmp_path / name / ADAPTER_FILE).read_bytes() for name in ("both", "one")]
    assert read[0] == read[1]


def test_where_all_are_wrong_there_is_no_version_and_a_sentence_why(
    policy: Policy, model_dir: Path, tmp_path: Path
) -> None:
    wrong = sampled("wrong", scored(policy) + 1.0)
    result = run_update(job(model_dir, tmp_path / "v1", [wrong]), policy, None)
    assert (result.taught, result.why) == (False, ALL_SET_ASIDE)
    assert list(result.metrics["fidelity"]["set_aside"]) == ["wrong"]


def test_a_small_mismatch_weighs_its_token_up_to_the_ceiling(
    policy: Policy, model_dir: Path, tmp_path: Path
) -> None:
    """One token of four is told wrongly: the truncated importance weight of that one is 2, of the others 1."""
    true_T = scored(policy)
    wrong_T = true_T - torch.tensor([0.0, 0.75, 0.0, 0.0])
    losses = []
    for name, told_T in (("true", true_T), ("wrong", wrong_T)):
        update = job(model_dir, tmp_path / name, [sampled(name, told_T)], passes=1)
        result = run_update(update, policy, None)
        assert not result.metrics["fidelity"]["set_aside"]
        losses.append(result.metrics["steps"][0]["pg"])
    assert losses[0] == pytest.approx(
        -1.0, abs=1e-3
    )  # four tokens with advantage and weight 1/4 each, ratio 1
    assert losses[1] == pytest.approx(-1.25, abs=1e-3)


# ── what is kept ──────────────────────────────────────────────────────────────────────────────────────────
def update(number: int) -> Update:
    return Update(f"u{number}", number, "base", "running", [], 0.0)


def facts(turns: int = 8, apart: int = 0) -> dict[str, Any]:
    return {"dtype": "bfloat16", "tolerance": 0.2, "turns": turns, "tokens": 9, "mean": 0.03, "ratio": 1.0,
            "largest": 0.2, "set_aside": {str(i): 0.5 for i in range(apart)}}  # fmt: skip


def test_the_newest_comparisons_are_kept_each_once() -> None:
    kept: dict[str, Any] | None = None
    for number in [*range(1, KEPT + 5), KEPT + 4]:
        kept = remembered(kept, update(number), facts())
    assert kept is not None
    assert [u["number"] for u in kept["updates"]] == list(range(5, KEPT + 5))
    assert remembered(kept, update(99), None) is None
    assert remembered(kept, update(99), facts(turns=0)) is None


@pytest.mark.parametrize(("apart", "alarms"), [(0, False), (2, False), (3, True)])
def test_more_than_a_twentieth_set_aside_is_an_alarm(apart: int, alarms: bool) -> None:
    kept = remembered(None, update(1), facts(20))
    found = summary(remembered(kept, update(2), facts(20, apart)))
    assert found is not None
    assert (found["turns"], found["set_aside"]) == (40, apart)
    assert (found["alarm"] is not None) == alarms
    if alarms:
        assert f"{apart} of the last 40 answers" in found["alarm"]


def test_without_updates_there_is_nothing_to_tell() -> None:
    assert summary(None) is None
    assert "0.03 nats a token apart" in in_words(facts())
