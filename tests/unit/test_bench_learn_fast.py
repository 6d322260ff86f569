"""The fast path on a tiny model: the same product, so what it stores and serves can be looked up in it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from bench.learn import cell as cell_module
from bench.learn.arms import ARMS
from bench.learn.cell import MEMORY, Talk
from bench.learn.fast import in_process
from bench.learn.full_weights import FullWeights, train_all_weights
from bench.learn.plan import Plan, make
from bench.learn.probe import Probe
from bench.learn.published import Published, TokenDistillation
from bench.learn.serving import Asking
from bench.users import Closing, Reaction

from instar.chat_format import ChatFormat
from instar.records import GateReport
from instar.trainers.gate import Gate
from instar.trainers.policy import Policy
from tests.kit.samples import SETTINGS, WordPrompts, job, judged, praised, weighted
from tests.kit.tiny_model import write_tiny_model

SMALL = {
    "batch_size": 4,
    "min_batch": 2,
    "revision_tokens": 8,
    "rank": 4,
    "alpha": 8,
    "lr": 1e-2,
    "skip_gate": True,
}
ASKING = Asking(max_tokens=6, temperature=1.0)


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny"), context_length=2048)


@pytest.fixture(autouse=True)
def _one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    monkeypatch.setattr(cell_module, "relevant", lambda *_: True)


class Scripted:
    """Corrects every answer; then accepts, edits, or lets it rest, in turn."""

    name = "scripted"

    def __init__(self) -> None:
        self.closed = 0

    def react(self, answer: str, question: str = "") -> Reaction:
        return Reaction(f"Shorter, please: {question}", -1, False)

    def close(self, question: str, answer: str, second: str) -> Closing:
        self.closed += 1
        return (Closing(thanks="Thanks."), Closing(edit="An edit."), Closing())[(self.closed - 1) % 3]


class Blunt(Scripted):
    """Only ever says what was wrong."""

    def react(self, answer: str, question: str = "") -> Reaction:
        return Reaction("That is wrong, please make it much shorter.", -1, False)

    def close(self, question: str, answer: str, second: str) -> Closing:
        return Closing()


def _plan(model_dir: Path, arm: str, **more: Any) -> Plan:
    plain = {
        "marks": (4,),
        "repeats": 1,
        "max_tokens": 6,
        "tasks": False,
        "model": str(model_dir),
        "settings": SMALL,
    }
    return make("fast", "oracle", arm, "two_sentences", 0, **{**plain, **more})


def _run(plan: Plan, folder: Path, user: Any = None) -> dict[str, Any]:
    with in_process(plan, folder) as (serving, model_dir):
        talk = Talk(plan, serving, Probe(ChatFormat(model_dir)), lambda _: None)
        talk.user = user or talk.user
        return talk.run()


def test_reactions_become_verdicts_lessons_and_a_version(model_dir: Path, tmp_path: Path) -> None:
    found = _run(_plan(model_dir, "combined"), tmp_path, Scripted())
    assert [t["closing"] for t in found["talk"]] == ["accepted", "edited", None, "accepted"]
    assert [(t["score"], t["link"]) for t in found["talk"]] == [(-1, "explicit")] * 4
    assert [t["hint"] == t["reaction"] for t in found["talk"]] == [True] * 4
    assert all(t["learned"] for t in found["talk"])
    first = found["versions"][-1]
    assert first["name"] == "v1"
    assert first["turn_ids"] == [t["turn"] for t in found["talk"]]
    assert found["looks"][0]["version"] == found["versions"][0]["name"]
    assert found["looks"][0]["compute_s"] > 0
    assert {r["version"] for r in found["looks"][0]["heldout"]} == {found["looks"][0]["version"]}
    assert {r["prompt_tokens"] > 10 for r in found["looks"][0]["heldout"]} == {True}
    assert found["errors"] == 0


def test_the_store_knows_edits_accepted_answers_and_their_sessions(model_dir: Path, tmp_path: Path) -> None:
    plan = _plan(model_dir, "combined", settings={**SMALL, "batch_size": 99, "min_batch": 98})
    with in_process(plan, tmp_path) as (serving, _):
        talk = Talk(plan, serving, Probe(serving.chat), lambda _: None)
        talk.user = Scripted()
        talk.run()
        samples = {s.turn_id: s for s in serving.store.trainable(99, current=0, max_staleness=4)}
        turns = [t["turn"] for t in talk.talk]
        accepted, edited, rested = (samples[t] for t in turns[:3])
        told = [v for v in serving.turns() if v["reason"] != "opted_out"]
        sessions = {v["session_id"] for v in told}
        thanked = {(v["score"], v["link"]) for v in told if v["next_states"] and v["score"] == 1}
    assert accepted.accepted == talk.talk[0]["second"]
    assert (edited.correction, edited.accepted) == ("An edit.", None)
    assert (rested.correction, rested.accepted) == (None, None)
    assert len(sessions) == 4
    assert thanked == {(1, "explicit")}  # the second answer, too, is judged by what was meant


def test_looks_are_kept_out_of_learning(model_dir: Path, tmp_path: Path) -> None:
    plan = _plan(model_dir, "combined")
    with in_process(plan, tmp_path) as (serving, _):
        talk = Talk(plan, serving, Probe(serving.chat), lambda _: None)
        found = talk.run()
        views = {v["id"]: v for v in serving.turns()}
    looked_at = [views[row["turn"]] for row in found["looks"][0]["heldout"]]
    assert {(v["reason"], v["learned"]) for v in looked_at} == {("opted_out", False)}
    assert len(looked_at) == 24


def test_the_products_judge_reads_the_words_when_there_is_no_oracle(model_dir: Path, tmp_path: Path) -> None:
    plan = make("fast", "product", "combined", "two_sentences", 0, marks=(2,), repeats=1, max_tokens=6, tasks=False,
                model=str(model_dir), settings=SMALL)  # fmt: skip
    found = _run(plan, tmp_path, Blunt())
    assert [(t["link"], t["score"]) for t in found["talk"]] == [("heads", -1)] * 2


def test_silence_is_no_reaction(model_dir: Path, tmp_path: Path) -> None:
    class Silent(Scripted):
        def react(self, answer: str, question: str = "") -> Reaction:
            return Reaction("", 0, False)

    found = _run(_plan(model_dir, "combined"), tmp_path, Silent())
    assert [(t["second"], t["score"], t["learned"]) for t in found["talk"]] == [(None, None, False)] * 4
    assert found["versions"] == []


def test_the_system_prompt_remembers_and_nothing_is_trained(model_dir: Path, tmp_path: Path) -> None:
    plan = _plan(model_dir, "system_prompt", marks=(2, 4))
    with in_process(plan, tmp_path) as (serving, _):
        talk = Talk(plan, serving, Probe(serving.chat), lambda _: None)
        talk.user = Scripted()
        found = talk.run()
        first, last = found["looks"]
        shown = serving.store.turn(last["heldout"][0]["turn"]).messages
    assert shown[0]["role"] == "system"
    assert shown[0]["content"].startswith(MEMORY)
    assert [f"- {t['reaction']}" for t in found["talk"]] == shown[0]["content"].splitlines()[1:]
    assert (first["remembered"], last["remembered"]) == (2, 4)
    assert last["heldout"][0]["prompt_tokens"] > first["heldout"][0]["prompt_tokens"]
    assert found["versions"] == []
    assert last["version"] == "base"
    assert last["kl"] > first["kl"] > 0  # what base is told moves it, too


def test_hinted_questions_carry_a_correction_and_nothing_is_asked_before(
    model_dir: Path, tmp_path: Path
) -> None:
    found = _run(_plan(model_dir, "hinted"), tmp_path / "h")
    plain = _run(_plan(model_dir, "nothing"), tmp_path / "n")
    assert found["talk"] == plain["talk"] == []
    for hinted, row in zip(found["looks"][0]["heldout"], plain["looks"][0]["heldout"], strict=True):
        assert hinted["question"] == row["question"]
        assert hinted["prompt_tokens"] > row["prompt_tokens"] + 20
    assert plain["looks"][0]["kl"] == pytest.approx(0.0, abs=1e-6)


def test_what_the_gate_rejects_answers_nobody(
    model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Gate, "judge", lambda *_: GateReport(False, "no", {}))
    gated = {k: v for k, v in SMALL.items() if k != "skip_gate"}
    found = _run(_plan(model_dir, "combined", settings=gated), tmp_path / "gated", Scripted())
    assert found["updates"]["rejected"] >= 1
    assert found["looks"][0]["version"] == "base"
    assert {version["parent"] for version in found["versions"]} == {"base"}  # kept, and never built upon
    assert found["looks"][0]["kl"] == pytest.approx(0.0, abs=1e-6)
    monkeypatch.setitem(ARMS, "combined", replace(ARMS["combined"], gated=False))
    open_gate = _run(_plan(model_dir, "combined", settings=gated), tmp_path / "open", Scripted())
    assert open_gate["looks"][0]["version"] == "v1"
    assert open_gate["updates"]["gates"][0]["passed"] is False


def test_the_same_plan_gives_the_same_answers(model_dir: Path, tmp_path: Path) -> None:
    one, two = (_run(_plan(model_dir, "combined"), tmp_path / n, Scripted()) for n in "ab")
    answers = [[r["answer"] for r in c["looks"][0]["heldout"]] for c in (one, two)]
    assert answers[0] == answers[1]
    assert [t["answer"] for t in one["talk"]] == [t["answer"] for t in two["talk"]]


def test_a_request_that_does_not_fit_does_not_stop_its_batch(model_dir: Path, tmp_path: Path) -> None:
    with in_process(_plan(model_dir, "combined"), tmp_path) as (serving, _):
        said = serving.ask([[{"role": "user", "content": t}] for t in ("Hi", "x" * 5000, "Ho")], ASKING)
    assert [s.error is None for s in said] == [True, False, True]
    assert said[0].turn != said[2].turn


# ── the published recipe ──────────────────────────────────────────────────────────────────────────────────
def test_a_teacher_that_sees_the_same_has_no_advantage(model_dir: Path) -> None:
    policy, chat = Policy(model_dir, rank=4, alpha=8), ChatFormat(model_dir)
    policy.reset(0)
    method = TokenDistillation(lambda: policy, chat, teacher_is_base=False)

    class Same(WordPrompts):
        def hinted(self, sample: Any, hint: str) -> list[int]:
            return list(sample.prompt_ids)

    (same,), _ = method.weigh([judged()], Same(), {})
    assert same.pg_T == pytest.approx([0.0] * 4, abs=1e-6)
    (pulled, praise), _ = method.weigh([judged(), praised()], WordPrompts(), {})
    assert any(abs(w) > 1e-4 for w in pulled.pg_T)
    assert max(abs(w) for w in pulled.pg_T) <= 1.0 / 4
    assert not praise.teaches


def test_the_published_recipe_adds_thumb_and_teacher(model_dir: Path) -> None:
    policy, chat = Policy(model_dir, rank=4, alpha=8), ChatFormat(model_dir)
    policy.reset(0)
    method = Published(lambda: policy, chat, teacher_is_base=False)
    samples = [praised(), judged("short", hint="No."), judged("hinted")]
    (good, bad, hinted), _ = method.weigh(samples, WordPrompts(), {})
    assert good.pg_T == [0.25] * 4
    assert bad.pg_T == [-0.25] * 4
    assert hinted.pg_T != [-0.25] * 4
    (lost,), _ = method.weigh([judged(logprobs=[])], WordPrompts(), {})
    assert not lost.teaches


def test_all_weights_move_and_base_stays(model_dir: Path, tmp_path: Path) -> None:
    policy = FullWeights(model_dir)
    row = [[30, 40, 50, 60, 70]]

    def logp() -> torch.Tensor:
        with torch.no_grad():
            return policy.logp_NV(policy.hidden_ND(row, [1])).clone()

    before = logp()
    lesson = weighted(nll_T=[0.25] * 4, logprobs=[])
    settings = {**SETTINGS, "passes": 1, "micro_batch": 16}
    train_all_weights(job(model_dir, tmp_path / "v1", [lesson], **settings), policy, None)
    after = logp()
    assert (after - before).abs().max() > 1e-2
    with policy.as_base():
        assert torch.equal(logp(), before)
    assert torch.equal(logp(), after)
    policy.load(tmp_path / "v1")
    train_all_weights(job(model_dir, tmp_path / "v2", [lesson], **settings), policy, None)
    with pytest.raises(RuntimeError, match="is not kept"):
        policy.load(tmp_path / "v1")
    policy.reset(0)
    assert torch.equal(logp(), before)


def test_small_steps_are_not_rounded_away(model_dir: Path, tmp_path: Path) -> None:
    """A step of 1e-5 is below the resolution of bf16 at .05; the masters keep it until it shows."""
    policy = FullWeights(model_dir)
    settings = {**SETTINGS, "lr": 1e-5, "passes": 1, "micro_batch": 16}
    start = [m.clone() for m in policy.masters]
    lesson = weighted(nll_T=[0.25] * 4, logprobs=[])
    train_all_weights(job(model_dir, tmp_path / "v1", [lesson], **settings), policy, None)
    moved = max(float((m - s).abs().max()) for m, s in zip(policy.masters, start, strict=True))
    assert moved == pytest.approx(1e-5, rel=0.1)
