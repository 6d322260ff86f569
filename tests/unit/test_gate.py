"""The gate: a version that stopped speaking, or speaks of something else, does not serve."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from instar.trainers import gate as gate_module
from instar.trainers.gate import Canaries, Gate, Marks, canaries, least, loops
from instar.trainers.policy import Policy
from tests.kit.tiny_model import write_tiny_model

torch.set_num_threads(1)
LOOSE = {"max_kl": 1e9, "min_coherent": 0.0, "min_relevant": 0.0}


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def small(model_dir: Path) -> Canaries:
    """Four canaries of the package's own, so that a random model is measured in a second."""
    whole = canaries(model_dir)
    return replace(
        whole, prompts=whole.prompts[:4], endings=whole.endings[:1], neutral=[whole.neutral[0][:40]]
    )


@pytest.fixture
def policy(model_dir: Path) -> Policy:
    found = Policy(model_dir, rank=4, alpha=8)
    found.reset(1)
    return found


@pytest.fixture
def gate(policy: Policy, small: Canaries, monkeypatch: pytest.MonkeyPatch) -> Gate:
    monkeypatch.setattr(gate_module, "canaries", lambda _: small)
    monkeypatch.setattr(gate_module, "ANSWER_TOKENS", 12)
    return Gate(policy)


def disturb(policy: Policy, size: float) -> None:
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for _, parameter in policy.named_parameters():
            parameter.add_(size * torch.randn(parameter.shape, generator=generator))


def test_base_itself_passes(gate: Gate) -> None:
    report = gate.judge({"max_kl": 0.1, "min_coherent": 0.9, "min_relevant": 0.8})
    assert report.passed, report.why
    assert report.checks["kl"]["value"] == 0.0
    assert report.checks["finite"] is True


def test_numbers_that_are_not_finite_never_serve(gate: Gate, policy: Policy) -> None:
    with torch.no_grad():
        policy.parameters[0][0, 0] = float("nan")
    report = gate.judge(LOOSE)
    assert not report.passed
    assert "not finite" in report.why


def test_a_version_far_from_base_is_refused_with_the_figure(gate: Gate, policy: Policy) -> None:
    disturb(policy, 1.0)
    report = gate.judge({**LOOSE, "max_kl": 1e-3})
    assert not report.passed
    assert "kl is" in report.why
    assert report.checks["kl"]["value"] > 1e-3
    assert report.checks["kl"]["passed"] is False


def test_looking_at_a_version_does_not_change_it(gate: Gate, policy: Policy) -> None:
    disturb(policy, 0.1)
    before = [p.clone() for p in policy.parameters]
    first, second = gate.judge(LOOSE), gate.judge(LOOSE)
    assert first == second
    assert all(torch.equal(a, b) for a, b in zip(before, policy.parameters, strict=True))


# ── each measure on answers made by hand ──────────────────────────────────────────────────────────────────
class Knowing(SimpleNamespace):
    """Stands in for base: likes an answer's tokens after a prompt that holds them, and no others."""

    @contextmanager
    def as_base(self) -> Iterator[None]:
        yield

    def hidden_ND(self, rows: list[list[int]], starts: list[int]) -> torch.Tensor:
        found = []
        for row, start in zip(rows, starts, strict=True):
            about = set(row[:start])
            logits = torch.full((len(row) - start, 300), -6.0)
            for token in range(300):
                if token % 100 in {a % 100 for a in about}:
                    logits[:, token] = -2.0
            found.append(logits)
        return torch.cat(found)

    def logp_NV(self, hidden: torch.Tensor) -> torch.Tensor:
        return torch.log_softmax(hidden, -1)


def gate_of(answers_of_base: list[list[int]]) -> tuple[Gate, Any]:
    """A gate whose base answers are given; prompt i holds token 10 + i, answers on the subject 110 + i."""
    canary = Canaries([[1, 10 + i, 50] for i in range(4)], [], [], [2])
    base: Any = Knowing()
    made = Gate.__new__(Gate)
    made._policy, made._canary = base, canary
    made._base = gate_module.mark(base, canary, answers_of_base)
    made._floor = min(made._base.logp) - gate_module.LOGP_SLACK
    made._least_margin = gate_module.MARGIN_SHARE * gate_module.statistics.median(made._base.margin)
    return made, lambda answers: gate_module.mark(base, canary, answers)


OWN = [[110 + i, 210 + i, 60 + i, 110 + i, 2] for i in range(4)]


def test_an_answer_to_another_question_is_not_relevant() -> None:
    gate, marks = gate_of(OWN)
    assert gate.relevant(marks(OWN)) == [True] * 4
    swapped = [OWN[1], OWN[0], OWN[2], OWN[3]]
    assert gate.relevant(marks(swapped)) == [False, False, True, True]


def test_one_answer_to_everything_is_not_relevant() -> None:
    gate, marks = gate_of(OWN)
    assert gate.relevant(marks([[70, 71, 72, 73]] * 4)) == [False] * 4


def test_repeating_the_question_is_not_relevant() -> None:
    gate, marks = gate_of(OWN)
    assert gate.relevant(marks([[10, 50, 10, 50], *OWN[1:]])) == [False, True, True, True]


@pytest.mark.parametrize("answer", [[], [2], [110, 2], [110, 210, 2]])
def test_silence_is_neither_coherent_nor_relevant(answer: list[int]) -> None:
    gate, marks = gate_of(OWN)
    found = marks([answer, *OWN[1:]])
    assert gate.coherent(found)[0] is False
    if len([i for i in answer if i != 2]) == 0:
        assert gate.relevant(found)[0] is False


def test_an_answer_that_goes_round_in_circles_is_not_coherent() -> None:
    gate, marks = gate_of(OWN)
    assert gate.coherent(marks([[110, 210, 60, 61] * 3, *OWN[1:]])) == [False, True, True, True]


def test_tokens_that_base_would_never_say_are_not_coherent() -> None:
    gate, _ = gate_of(OWN)
    odd = Marks([gate._floor - 0.1, gate._floor + 0.1], [1.0] * 2, [False] * 2, [False] * 2, [9] * 2)
    assert gate.coherent(odd) == [False, True]


@given(st.lists(st.integers(0, 1000), min_size=0, max_size=40, unique=True))
def test_different_tokens_make_no_loop(ids: list[int]) -> None:
    assert not loops(ids)
    if len(ids) >= 4:
        assert loops(ids[:4] * 3)
        assert not loops(ids[:4] * 2)


@pytest.mark.parametrize(
    ("of_base", "share", "expected"), [(8, 0.9, 6), (8, 0.8, 5), (8, 1.0, 8), (1, 0.9, 1), (0, 0.9, 0)]
)
def test_how_many_must_pass_follows_base(of_base: int, share: float, expected: int) -> None:
    assert least(of_base, share) == expected


def test_the_packages_own_canaries_are_usable(model_dir: Path) -> None:
    found = canaries(model_dir)
    assert len(found.prompts) >= 8
    assert len({tuple(p) for p in found.prompts}) == len(found.prompts)
    assert all(found.neutral)
    assert all(a for _, a in found.endings)
