"""One update, from a job to an adapter on disk. Runs in the compute child and knows no method.

    π_old log-probs, teacher and reference once  →  passes × micro-batches of optimizer steps  →  files, metrics

A micro-batch passes as one tree, which computes once what its rows share; as several, if one does not fit into memory.

The same job gives the same bytes: every choice comes from `job.seed`, and one thread count gives one order of
additions.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from instar.errors import TrainingError
from instar.methods.weights import scaled
from instar.records import BASE, JudgedAnswer, UpdateJob, UpdateResult, WeightedSample
from instar.trainers import losses
from instar.trainers.answer_scorer import AnswerScorer, fit_scorer
from instar.trainers.canaries import chat_of
from instar.trainers.consistency import consistent
from instar.trainers.fidelity import ALL_SET_ASIDE, compare, is_apart, mismatch
from instar.trainers.gate import Gate
from instar.trainers.heap import handing_back
from instar.trainers.memory import DEFAULT_MIB, Memory, memory_for
from instar.trainers.packing import pack
from instar.trainers.policy import LOGITS_CHUNK, Policy, PrefixCache, is_long
from instar.trainers.prepare import Anchor, Prepared, Preparer, default_anchors
from instar.trainers.revise import Reviser, asks
from instar.trainers.trial import Trial, with_trial

OPTIMIZER_FILE = "optimizer.safetensors"
ANCHORS = 3
"""Anchors in a step."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What stays in memory between jobs. `prefixes`: long prompts as the version reads them that is trained next."""

    policy: Policy
    gate: Gate
    reviser: Reviser
    prefixes: PrefixCache

    def prefixes_for(self, job: UpdateJob) -> PrefixCache:
        """An adapter that starts anew reads as base does, and base's reading is known from the revisions."""
        return self.prefixes if job.parent_dir else self.reviser.prefixes


def compute(job: UpdateJob) -> UpdateResult:
    """`run_update` with a model that stays in memory between jobs."""
    parts = parts_of(job)
    return run_update(job, parts.policy, parts.gate, parts.reviser, parts.prefixes_for(job))


def look_ahead(job: UpdateJob) -> None:
    """What an update with these samples will need and what does not depend on the others: the model, base's own
    canary answers, the revisions, long prompts. Remembered, so that the update itself is short; it has the same
    result, if the version that it starts from is still the same."""
    parts = parts_of(job)
    default_anchors(parts.policy)
    for asking in filter(asks, job.samples):
        parts.reviser.look(asking)
    long = [s.prompt_ids for s in job.samples if is_long(len(s.prompt_ids))]
    if not long:
        return
    prefixes = parts.prefixes_for(job)
    start_from_parent(parts.policy, job, prefixes)
    for prompt in long:
        prefixes.read(prompt[:-1])


def parts_of(job: UpdateJob) -> Parts:
    names = ("rank", "alpha", "revision_tokens")
    return _parts(job.model_dir, *(int(job.settings[name]) for name in names))


@lru_cache(maxsize=1)
def _parts(model_dir: str, rank: int, alpha: int, revision_tokens: int) -> Parts:
    policy = Policy(Path(model_dir), rank=rank, alpha=alpha)
    return Parts(policy, Gate(policy), Reviser(policy, max_tokens=revision_tokens), PrefixCache(policy))


def run_update(
    job: UpdateJob,
    policy: Policy,
    gate: Gate | None,
    reviser: Reviser | None = None,
    prefixes: PrefixCache | None = None,
) -> UpdateResult:
    """Compute the update, leave adapter and optimizer state in `job.out_dir`, and judge it.

    Without `reviser` or `prefixes`, they are made for this update. Raises TrainingError when it cannot be computed; the
    samples stay unused then.
    """
    began = time.monotonic()
    check(job)
    torch.manual_seed(job.seed)
    prefixes = prefixes or PrefixCache(policy)
    start_from_parent(policy, job, prefixes)
    settings = job.settings
    reviser = reviser or Reviser(policy, max_tokens=int(settings["revision_tokens"]))
    scorers = scorers_of(job.history)
    given, why = consistent(job.samples, job.history, scorers)
    lessons, metrics = find_lessons(given, scorers, reviser)
    samples = [*given, *lessons]
    looked = time.monotonic()
    prepare = Preparer(policy, settings, prefixes, reviser.prefixes)
    prepared = [prepare(sample) for sample in samples if says(sample)]
    metrics["mismatch"], metrics["fidelity"] = mismatch(prepared), compare(prepared, job.parent, policy.dtype)
    apart = metrics["fidelity"]["set_aside"]
    teaching = [p for p in prepared if not is_apart(p.sample, apart)]
    if not teaching:  # contradictions, or no revision was good enough: no step, so no new version
        why = why or (ALL_SET_ASIDE if prepared else "")
        return UpdateResult(job.update_id, ok=True, metrics=metrics, taught=False, why=why)
    samples = [scaled(s, 0.0) if is_apart(s, apart) else s for s in samples]
    trial = Trial(policy, gate.canary, job.held_back, seed=job.seed) if gate else None
    before = trial.look() if trial else None
    metrics["lr"] = learning_rate(job, samples)
    optimizer = make_optimizer(policy, settings, metrics["lr"], parent_of(job))
    metrics["steps"] = train(policy, optimizer, teaching, job, prefixes)
    out = Path(job.out_dir)
    out.mkdir(parents=True, exist_ok=True)
    policy.save(out)
    save_optimizer(policy, optimizer, out)
    trained = time.monotonic()
    report = gate.judge(settings["gate"]) if gate else None
    if report and trial and before and report.checks.get("finite"):
        after = trial.look()
        shown = trial.examples(before, after, chat_of(policy.model_dir).decode)
        report = with_trial(report, trial.compare(before, after), shown)
    gated = time.monotonic()
    metrics.update(revise_s=looked - began, train_s=trained - looked, gate_s=gated - trained)
    return UpdateResult(job.update_id, ok=True, metrics=metrics, gate=report)


def parent_of(job: UpdateJob) -> Path | None:
    return Path(job.parent_dir) if job.parent_dir else None


def start_from_parent(policy: Policy, job: UpdateJob, prefixes: PrefixCache) -> None:
    parent = parent_of(job)
    prefixes.hold_for(str(parent or BASE))
    if parent is None:
        policy.reset(job.seed)
    else:
        policy.load(parent)


def find_lessons(
    given: Sequence[WeightedSample], scorers: Mapping[str, AnswerScorer | None], reviser: Reviser
) -> tuple[list[WeightedSample], dict[str, Any]]:
    """A revision for each sample that asks for one and gets one; and what became of each, for the metrics."""
    found = {s.turn_id: reviser.revise(s, scorers.get(s.learner)) for s in given if asks(s)}
    lessons = [r.lesson for r in found.values() if r.lesson]
    refused = {turn_id: r.why for turn_id, r in found.items() if r.lesson is None}
    return lessons, {
        "revisions": {"asked": len(found), "found": len(lessons), "refused": refused},
        "scorers": {learner: s.accuracy if s else None for learner, s in scorers.items()},
    }


def train(
    policy: Policy,
    optimizer: torch.optim.Optimizer,
    teaching: Sequence[Prepared],
    job: UpdateJob,
    prefixes: PrefixCache,
) -> list[dict[str, float]]:
    """All passes over the batch in shuffled micro-batches. Returns the losses of each step."""
    settings, choose = job.settings, random.Random(job.seed)
    anchors = [Anchor(ids) for ids in job.anchors] or default_anchors(policy)
    size, steps = int(settings["micro_batch"]), []
    windowed = bool(settings.get("gradient_tokens"))  # else gradients need no prompt that is read beforehand
    with prefixes.pinned(p.row[: p.start - 1] for p in teaching if windowed and is_long(p.start)):
        for _ in range(int(settings["passes"])):
            order = list(teaching)
            choose.shuffle(order)
            for at in range(0, len(order), size):
                pulled = choose.sample(anchors, min(ANCHORS, len(anchors)))
                steps.append(step(policy, optimizer, order[at : at + size], pulled, settings, prefixes))
    return steps


def scorers_of(history: Sequence[JudgedAnswer]) -> dict[str, AnswerScorer | None]:
    """One for each learner, fitted on their own verdicts; None where it cannot tell what pleases them."""
    learners = dict.fromkeys(h.learner for h in history)
    return {learner: fit_scorer([h for h in history if h.learner == learner]) for learner in learners}


def check(job: UpdateJob) -> None:
    """Refuse what cannot be trained on. Raises TrainingError."""
    longest = int(job.settings["max_tokens"])
    if not job.samples:
        raise TrainingError("the job holds no samples")
    for sample in job.samples:
        size = len(sample.prompt_ids) + len(sample.response_ids)
        if size > longest:
            raise TrainingError(f"turn {sample.turn_id} has {size} tokens, more than max_tokens = {longest}")
        if not sample.prompt_ids or not sample.response_ids:
            raise TrainingError(f"turn {sample.turn_id} has no prompt or no response")
        for name in ("pg_T", "distill_T", "nll_T", "kl_T"):
            if len(getattr(sample, name)) != len(sample.response_ids):
                raise TrainingError(f"turn {sample.turn_id}: {name} has another length than the response")
        if any(sample.pg_T) and len(sample.logprobs) != len(sample.response_ids):
            raise TrainingError(f"turn {sample.turn_id}: a policy gradient needs the log-probs of sampling")
        if any(sample.distill_T) and not sample.teacher_prompt_ids:
            raise TrainingError(f"turn {sample.turn_id}: distillation needs a teacher prompt")


def says(sample: WeightedSample) -> float:
    """How much a sample pulls, all components together."""
    return sum(map(abs, [*sample.pg_T, *sample.distill_T, *sample.nll_T, *sample.kl_T]))


def learning_rate(job: UpdateJob, samples: Sequence[WeightedSample]) -> float:
    """lr · scale · √(share of the turns that teach). Adam forgets the size of a loss, so it is put back here.

    Fewer lessons are a noisier direction: their step shrinks with the root of their number, as a mean's error does.
    """
    turns: dict[str, float] = {s.turn_id: 0.0 for s in samples}
    for sample in samples:
        turns[sample.turn_id] = min(1.0, turns[sample.turn_id] + says(sample))
    share = sum(turns.values()) / len(turns)
    return float(job.settings["lr"]) * float(job.settings.get("scale", 1.0)) * math.sqrt(share)


# ── optimizer steps ───────────────────────────────────────────────────────────────────────────────────────
def step(
    policy: Policy,
    optimizer: torch.optim.Optimizer,
    part: Sequence[Prepared],
    anchors: Sequence[Anchor],
    settings: dict[str, Any],
    prefixes: PrefixCache | None = None,
) -> dict[str, float]:
    """One optimizer step on a micro-batch and its anchors. Returns the loss by component, per sample.

    `prefixes` serve `settings["gradient_tokens"]`, where gradients do not flow through whole prompts.
    """
    optimizer.zero_grad(set_to_none=True)
    totals: dict[str, float] = {}
    memory = memory_of(policy, settings)
    for group in memory.groups([p.row[:-1] for p in part]):
        some = [part[i] for i in group]
        found = add_gradients(policy, some, len(part), settings, memory, prefixes)
        totals = {name: totals.get(name, 0.0) + found.get(name, 0.0) for name in {**totals, **found}}
    weight = float(settings["anchor_kl"])
    if weight and anchors:
        pull = anchor_kl(policy, anchors)
        torch.autograd.backward(weight * pull)
        totals["anchor"] = float(pull.detach())
    norm = torch.nn.utils.clip_grad_norm_(policy.parameters, 1.0)
    if not bool(torch.isfinite(norm)):
        raise TrainingError("a gradient is not finite")
    optimizer.step()
    return {**totals, "grad_norm": float(norm)}


def memory_of(policy: Policy, settings: dict[str, Any]) -> Memory:
    return memory_for(policy.model_dir, int(settings.get("memory_mib", DEFAULT_MIB)), policy.dtype.itemsize)


def add_gradients(
    policy: Policy,
    part: Sequence[Prepared],
    share: int,
    settings: dict[str, Any],
    memory: Memory,
    prefixes: PrefixCache | None,
) -> dict[str, float]:
    """The backward pass of samples that fit into one pass. Returns their losses by component, each a `share`-th."""
    rows, starts = [p.row for p in part], [p.start for p in part]
    recompute = memory.must_recompute(pack([row[:-1] for row in rows]))
    window = int(settings.get("gradient_tokens", 0))
    with handing_back(recompute):
        hidden_ND = policy.hidden_ND(rows, starts, prefixes, recompute=recompute, window=window)
        leaf_ND = hidden_ND.detach().requires_grad_(True)
        totals = add_losses(policy, part, share, settings, leaf_ND)
        assert leaf_ND.grad is not None
        torch.autograd.backward(hidden_ND, leaf_ND.grad)
    return totals


def add_losses(
    policy: Policy, part: Sequence[Prepared], share: int, settings: dict[str, Any], leaf_ND: Tensor
) -> dict[str, float]:
    """The losses' gradients to the hidden states, a few positions at a time: logits take the most memory of all."""
    totals: dict[str, float] = {}
    at = 0
    for item in part:
        length = len(item.sample.response_ids)
        for begin in range(0, length, LOGITS_CHUNK):
            where = slice(begin, min(begin + LOGITS_CHUNK, length))
            logp_TV = policy.logp_NV(leaf_ND[at + where.start : at + where.stop])
            terms = components(item, where, logp_TV, settings)
            loss = torch.stack(list(terms.values())).sum() / share
            torch.autograd.backward(loss)
            for name, value in terms.items():
                totals[name] = totals.get(name, 0.0) + float(value.detach()) / share
        at += length
    return totals


def anchor_kl(policy: Policy, anchors: Sequence[Anchor]) -> Tensor:
    """KL(base ‖ policy) a token over the anchors; base's view is cheaper to compute than to keep."""
    rows, starts = [a.ids for a in anchors], [a.start for a in anchors]
    with torch.no_grad(), policy.as_base():
        base_NV = policy.logp_NV(policy.hidden_ND(rows, starts))
    return losses.forward_kl_T(policy.logp_NV(policy.hidden_ND(rows, starts)), base_NV).mean()


def components(item: Prepared, where: slice, logp_TV: Tensor, settings: dict[str, Any]) -> dict[str, Tensor]:
    """Weighted sums of the components over a stretch of one response; those without weight are exactly zero."""
    token_T = torch.as_tensor(item.sample.response_ids)[where]
    logp_T = logp_TV.gather(-1, token_T[:, None])[:, 0]
    weight = {name: values[where] for name, values in item.weights.items()}
    terms = {"zero": logp_TV.sum() * 0.0}
    if bool(weight["pg"].any()):
        loss_T = losses.policy_gradient_T(
            logp_T,
            item.old_logp_T[where],
            weight["pg"],
            item.importance_T[where],
            float(settings["clip_low"]),
            float(settings["clip_high"]),
        )
        terms["pg"] = loss_T[weight["pg"] != 0].sum()
    if item.target is not None:
        loss_T = losses.reverse_kl_T(logp_TV, item.target.ids_TK[where], item.target.logp_TK[where])
        terms["distill"] = losses.weighted_sum(loss_T, weight["distill"])
    if bool(weight["nll"].any()):
        terms["nll"] = losses.weighted_sum(-logp_T, weight["nll"])
    if item.reference is not None:
        loss_T = losses.reverse_kl_T(logp_TV, item.reference.ids_TK[where], item.reference.logp_TK[where])
        terms["kl"] = losses.weighted_sum(loss_T, weight["kl"])
    return terms


# ── the optimizer's memory ────────────────────────────────────────────────────────────────────────────────
def make_optimizer(
    policy: Policy, settings: dict[str, Any], lr: float, parent: Path | None
) -> torch.optim.Optimizer:
    """AdamW as in the study, with the moments of the parent version where it left some."""
    optimizer = torch.optim.AdamW(policy.parameters, lr=lr, betas=(0.9, 0.98), weight_decay=0.0)
    file = parent / OPTIMIZER_FILE if parent else None
    if file is None or not file.is_file():
        return optimizer
    kept = load_file(file)
    for name, parameter in policy.named_parameters():
        if f"{name}.exp_avg" in kept:
            optimizer.state[parameter] = {
                "step": kept[f"{name}.step"].clone(),
                "exp_avg": kept[f"{name}.exp_avg"].clone(),
                "exp_avg_sq": kept[f"{name}.exp_avg_sq"].clone(),
            }
    return optimizer


def save_optimizer(policy: Policy, optimizer: torch.optim.Optimizer, out: Path) -> None:
    tensors = {}
    for name, parameter in policy.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            tensors[f"{name}.{key}"] = torch.as_tensor(value, dtype=torch.float32).clone().contiguous()
    save_file(tensors, out / OPTIMIZER_FILE)
