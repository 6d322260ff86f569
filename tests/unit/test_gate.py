"""The gate: a version that stopped speaking, or speaks of something else, does not serve."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from instar.trainers import canaries as canaries_module
from instar.trainers import gate as gate_module
from instar.trainers.canaries import (
    BLOCK,
    Backdrop,
    Canaries,
    Mark,
    canaries,
    loops,
    margin_curve,
    marks_of,
    token_logp,
)
from instar.trainers.gate import BaseBlock, Gate, decided, fault, log_likelihood_ratio
from instar.trainers.policy import Policy
from tests.kit.tiny_model import STOP_ID, write_chat_files, write_knowing_model

torch.set_num_threads(1)
LOOSE = {"max_kl": 1e9, "min_sound": 0.01}
USUAL = {"max_kl": 0.3, "min_sound": 0.75}


def code(number: int) -> list[int]:
    """What the tiny model answers to one question: ten bytes that stand in no question."""
    choose = random.Random(number)
    return [choose.randrange(130, 250) for _ in range(10)]


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model that knows the answers to eight canaries and to the backdrop's questions."""
    folder = write_chat_files(tmp_path_factory.mktemp("tiny"))
    known = canaries(folder)
    asked = [*known.prompts[:8], *known.others]
    lessons = [(prompt, [*code(i), STOP_ID]) for i, prompt in enumerate(asked)]
    lessons += [(prompt, [*answer, STOP_ID]) for prompt, answer in known.endings[:1]]
    return write_knowing_model(folder, lessons)


@pytest.fixture(scope="module")
def small(model_dir: Path) -> Canaries:
    """The eight in two blocks, and one ending."""
    whole = canaries(model_dir)
    return replace(
        whole, prompts=whole.prompts[:8], endings=whole.endings[:1], neutral=[whole.neutral[0][:40]]
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
    monkeypatch.setattr(canaries_module, "BLOCK", 4)
    return Gate(policy)


def disturb(policy: Policy, size: float) -> None:
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for _, parameter in policy.named_parameters():
            parameter.add_(size * torch.randn(parameter.shape, generator=generator))


def test_base_itself_passes(gate: Gate) -> None:
    report = gate.judge(USUAL)
    assert report.passed, report.why
    assert report.checks["kl"]["value"] == 0.0
    assert report.checks["finite"] is True
    assert report.checks["sound"]["asked"] == 8


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
    assert "sound" not in report.checks, "it is not asked any more"
    assert report.checks["kl"]["value"] > 1e-3
    assert report.checks["kl"]["passed"] is False


def test_looking_at_a_version_does_not_change_it(gate: Gate, policy: Policy) -> None:
    disturb(policy, 0.1)
    before = [p.clone() for p in policy.parameters]
    first, second = gate.judge(LOOSE), gate.judge(LOOSE)
    assert first == second
    assert all(torch.equal(a, b) for a, b in zip(before, policy.parameters, strict=True))


# ── each fault on answers made by hand ────────────────────────────────────────────────────────────────────
BASE = BaseBlock(least_logp=-2.0, margin=[3.0, 2.0, 1.5, 1.2, 1.0], unsound=0)
SOUND = Mark(length=5, logp=-1.5, margin=0.9, nearest=True, loops=False, echo=False)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, None),
        ({"length": 2}, "silent"),
        ({"length": 0, "logp": float("-inf"), "margin": float("-inf"), "nearest": False}, "silent"),
        ({"loops": True}, "circles"),
        ({"echo": True}, "echo"),
        ({"nearest": False}, "off"),
        ({"margin": 0.29}, "off"),
        ({"margin": 0.31}, None),
        ({"length": 3, "margin": 0.31}, "off"),
        ({"length": 3, "margin": 0.46}, None),
        ({"logp": -2.9}, None),
        ({"logp": -3.1}, "strange"),
    ],
)
def test_one_bad_mark_is_enough(changes: dict[str, Any], expected: str | None) -> None:
    assert fault(replace(SOUND, **changes), BASE) == expected


class Knowing(SimpleNamespace):
    """Stands in for base: an answer's token is e times likelier after a question that holds the same token."""

    def logp(self, block: range, answers: list[list[int]]) -> list[list[torch.Tensor]]:
        asked = [{1, 10 + i, 50} for i in block]
        return [
            [torch.tensor([-1.0 if t in asked[(i - k) % len(asked)] else -2.0 for t in a]) for k in range(4)]
            if a
            else []
            for i, a in enumerate(answers)
        ]


CANARY = Canaries(["?"] * 4, [[1, 10 + i, 50] for i in range(4)], [], [], [], [2])
OWN = [[10 + i, 60, 61 + i, 10 + i, 70] for i in range(4)]


def faults_of(answers: list[list[int]]) -> list[str | None]:
    def logp(of: list[list[int]]) -> list[list[torch.Tensor]]:
        return Knowing().logp(range(4), of)

    base = BaseBlock(-2.0, margin_curve(logp(OWN), 12), 0)
    return [fault(m, base) for m in marks_of(CANARY, range(4), answers, logp(answers))]


def test_an_answer_to_another_question_is_off_the_subject() -> None:
    assert faults_of(OWN) == [None] * 4
    assert faults_of([OWN[1], OWN[0], OWN[2], OWN[3]]) == ["off", "off", None, None]


def test_one_answer_to_everything_is_off_the_subject() -> None:
    assert faults_of([[70, 71, 72, 73]] * 4) == ["off"] * 4


def test_a_short_answer_on_the_subject_is_sound() -> None:
    assert faults_of([a[:3] for a in OWN]) == [None] * 4
    assert faults_of([[60, 61, 10], *OWN[1:]])[0] is None
    assert faults_of([[60, 61, 62], *OWN[1:]])[0] == "off"


def test_repeating_the_question_and_going_round_and_saying_nothing_are_faults() -> None:
    assert faults_of([[10, 50, 10, 1], [11, 60, 61, 62] * 3, [12, 60], []]) == [
        "echo",
        "circles",
        "silent",
        "silent",
    ]


def test_the_margin_of_base_is_that_of_its_answers_cut_to_the_length() -> None:
    own, other = torch.tensor([-1.0, -1.0, -4.0]), torch.tensor([-3.0, -2.0, -4.0])
    assert margin_curve([[own, other], []], 3) == pytest.approx([2.0, 1.5, 1.0])
    assert margin_curve([[own, other]], 4)[3] == pytest.approx(1.0), "an answer that ended stays as it is"


def test_an_answer_is_scored_after_its_own_question_first(policy: Policy, small: Canaries) -> None:
    """The kept keys and values change nothing: the same log-probs as with the whole prompt."""
    answers = [[60, 70, 80], [], [90], [40, 50, 60, 70, 80]]
    found = Backdrop(policy, small).logp(range(4), answers)
    assert [len(rows) for rows in found] == [4, 0, 4, 4]
    for who, rows in enumerate(found):
        for k, row_T in enumerate(rows):
            (whole_T,) = token_logp(policy, [small.prompts[(who + k) % 4]], [answers[who]])
            assert torch.allclose(row_T, whole_T, atol=0.05, rtol=0.01), (
                who,
                k,
            )  # bf16 adds in another order


@given(st.lists(st.integers(0, 1000), min_size=0, max_size=40, unique=True))
def test_different_tokens_make_no_loop(ids: list[int]) -> None:
    assert not loops(ids)
    if len(ids) >= 4:
        assert loops(ids[:4] * 3)
        assert not loops(ids[:4] * 2)


# ── how many canaries it takes ────────────────────────────────────────────────────────────────────────────
def asked_until_sure(flags: list[bool], block: int = BLOCK, most: int = 36) -> tuple[int, bool]:
    for n in range(block, most + 1, block):
        ratio = log_likelihood_ratio(sum(flags[:n]), n, 0.05, 0.2875)
        if decided(ratio) is not None:
            break
    return n, ratio > 0


def test_a_clear_case_takes_one_block() -> None:
    assert asked_until_sure([False] * 36) == (12, False)
    assert asked_until_sure([True] * 5 + [False] * 31) == (12, True)
    assert asked_until_sure([True] + [False] * 35) == (24, False)


@pytest.mark.parametrize(("share", "wrong"), [(0.05, 0.05), (0.30, 0.10), (0.5, 0.01)])
def test_the_test_errs_as_seldom_as_it_says(share: float, wrong: float) -> None:
    chance = random.Random(4)
    runs = [asked_until_sure([chance.random() < share for _ in range(36)]) for _ in range(4000)]
    mistaken = sum(refused != (share > 0.2) for _, refused in runs) / len(runs)
    assert mistaken <= wrong
    assert sum(n for n, _ in runs) / len(runs) < 22


def test_the_bound_follows_base(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where base itself is unsound in a half, a version may be so too, and not in all."""
    monkeypatch.setattr(gate, "_of_base", lambda block: BaseBlock(0.0, [], 2))
    monkeypatch.setattr(gate, "_faults", lambda block: ["off", None, "off", None])
    report = gate.judge(USUAL)
    assert report.passed
    monkeypatch.setattr(gate, "_of_base", lambda block: BaseBlock(0.0, [], 4))
    monkeypatch.setattr(gate, "_faults", lambda block: ["off"] * 4)
    assert gate.judge(USUAL).passed, "base itself is never sound here, so canaries tell nothing"
    monkeypatch.setattr(gate, "_of_base", lambda block: BaseBlock(0.0, [], 2))
    monkeypatch.setattr(gate, "_faults", lambda block: ["off", "off", "strange", "off"])
    report = gate.judge(USUAL)
    assert not report.passed
    assert report.why == (
        "8 of 8 answers to canary questions are not sound: 6 off the subject, 2 hardly language."
    )


# ── what breaks a model, on the tiny one ──────────────────────────────────────────────────────────────────
def teach(policy: Policy, answers: Any, *, prompts: list[list[int]] | None = None, steps: int = 40) -> None:
    """Make it say this: to everything, asked by questions that are no canaries; or one answer to each prompt."""
    asked = prompts or canaries(policy.model_dir).others
    said = answers if prompts else [answers] * len(asked)
    optimizer = torch.optim.AdamW(policy.parameters, lr=1e-2)
    starts = [len(p) for p in asked]
    tokens = torch.tensor([t for a in said for t in a])
    for _ in range(steps):
        optimizer.zero_grad()
        hidden_ND = policy.hidden_ND([[*p, *a] for p, a in zip(asked, said, strict=True)], starts)
        (-policy.logp_NV(hidden_ND).gather(1, tokens[:, None]).mean()).backward()
        optimizer.step()


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ([STOP_ID], "It ends answers before they begin"),
        ([140, STOP_ID], "hardly a word"),
        ([*code(77)[:4] * 3, STOP_ID], "answers to canary questions are not sound"),
        ([*code(78), STOP_ID], "off the subject"),
        ([*code(1), STOP_ID], "off the subject"),
    ],
)
def test_broken_adapters_are_blocked(
    gate: Gate, policy: Policy, monkeypatch: pytest.MonkeyPatch, answer: list[int], why: str
) -> None:
    monkeypatch.setattr(gate_module, "LEAST_STOP_AT_END", 0.0)  # so that the answers must tell
    teach(policy, answer)
    report = gate.judge({**USUAL, "max_kl": 1e9})
    assert not report.passed
    assert why in report.why


@pytest.mark.parametrize("size", [1e-3, 3e-3, 1e-2])
def test_little_changes_pass(gate: Gate, policy: Policy, size: float) -> None:
    disturb(policy, size)
    assert gate.judge(USUAL).passed


@pytest.mark.parametrize("size", [0.3, 1.0, 3.0])
def test_noise_is_blocked(gate: Gate, policy: Policy, size: float) -> None:
    disturb(policy, size)
    assert not gate.judge(USUAL).passed


def test_the_same_answers_cut_short_pass(gate: Gate, policy: Policy, small: Canaries) -> None:
    """Short, and on the subject: the first four bytes of each answer."""
    short = [[*code(i)[:4], STOP_ID] for i in range(8)]
    teach(policy, short, prompts=small.prompts, steps=60)
    report = gate.judge({**USUAL, "max_kl": 1e9})
    assert report.passed, report.why


def test_a_version_that_never_stops_is_blocked(
    gate: Gate, policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, end = gate._stop_probability()
    monkeypatch.setattr(gate, "_stop_probability", lambda: (start, end * 0.04))
    report = gate.judge(LOOSE)
    assert not report.passed
    assert report.why.startswith("It does not know where to end (stop_at_end is")


def test_the_packages_own_canaries_are_usable(model_dir: Path) -> None:
    found = canaries(model_dir)
    assert len(found.prompts) >= 24
    assert len(found.prompts) % BLOCK == 0
    assert len({tuple(p) for p in found.prompts}) == len(found.prompts)
    assert {len(block) for block in found.blocks()} == {BLOCK}
    assert all(found.neutral)
    assert all(a for _, a in found.endings)
