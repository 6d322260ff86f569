"""May the proposed version serve? Measured in the compute child, relative to what base does itself.

Nothing here knows a wish: a version may answer shorter, longer, in lists or in verse. It must still speak, speak
to the question, know when to stop, and leave unrelated text alone.

    finite      every number of the adapter
    kl          KL(base ‖ version) a token over neutral texts that no update is pulled towards
    stop        probability of the stop token: small where an answer begins, not lost where one ends
    sound       answers to canary questions, one bad mark is enough to fail one:
                  silent      fewer than three tokens
                  circles     a run of four tokens more than twice
                  echo        little more than the question
                  off         base finds it likelier after another question, or hardly likelier after its own than
                              after others, measured by base's own answers cut to the same length: a short answer has
                              less room for its subject, but what room it has is as full of it
                  strange     far less likely under base than base's own answers are

Canaries are asked in blocks until Wald's sequential test is sure either way, so a version that is clearly sound, or
clearly not, costs one block.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch

from instar.records import GateReport
from instar.trainers import losses
from instar.trainers.canaries import FEWEST_TOKENS, Backdrop, Mark, canaries, margin_curve, marks_of
from instar.trainers.policy import Policy
from instar.trainers.sampling import sample

ANSWER_TOKENS = 40
LOGP_SLACK = 1.0
"""Nats a token that an answer may be less likely under base than the least likely of base's own."""
MARGIN_SHARE = 0.3
"""Share of base's own margin at the same length that an answer must have."""
MOST_STOP_AT_START = 0.2
LEAST_STOP_AT_END = 0.05
"""Share of base's own probability (geometric mean) of stopping where an answer is complete."""
USUAL_UNSOUND = 0.05
"""Share of answers that are marked unsound though nothing is wrong."""
MOST_UNSOUND = 0.9
"""Where base itself is hardly ever sound, canaries tell little; the other checks remain."""
ERROR = 0.04
"""Of Wald's test: how often a sound version fails, and how often one at the bound passes."""
WORDS = {
    "silent": "hardly a word",
    "circles": "going round in circles",
    "echo": "only repeating the question",
    "off": "off the subject",
    "strange": "hardly language",
}

TROUBLE = {
    "kl": "It is too far from the base model on unrelated texts",
    "stop_at_start": "It ends answers before they begin",
    "stop_at_end": "It does not know where to end",
}


@dataclass(frozen=True, slots=True)
class BaseBlock:
    """What base itself does in a block of canaries."""

    least_logp: float
    margin: list[float]
    unsound: int


def fault(mark: Mark, base: BaseBlock) -> str | None:
    """The first thing wrong with an answer; None if it is sound."""
    if mark.length < FEWEST_TOKENS:
        return "silent"
    if mark.loops:
        return "circles"
    if mark.echo:
        return "echo"
    if not mark.nearest or mark.margin < MARGIN_SHARE * base.margin[mark.length - 1]:
        return "off"
    return "strange" if mark.logp < base.least_logp - LOGP_SLACK else None


def log_likelihood_ratio(unsound: int, asked: int, usual: float, bound: float) -> float:
    """log p(data | share `bound` is unsound) − log p(data | share `usual` is): the statistic of Wald's test."""
    return unsound * math.log(bound / usual) + (asked - unsound) * math.log((1 - bound) / (1 - usual))


def decided(ratio: float, error: float = ERROR) -> bool | None:
    """Wald's sequential probability ratio test (A. Wald, 1945), with the same error both ways.

    True: unsound; False: sound; None: ask more.
    """
    limit = math.log((1 - error) / error)
    return None if abs(ratio) < limit else ratio > 0


class Gate:
    """Holds base's own figures, each measured once, when it is first needed."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.canary = canaries(policy.model_dir)
        self._backdrop = Backdrop(policy, self.canary)
        self._base: dict[int, BaseBlock] = {}
        with policy.as_base():
            self._base_end = self._stop_probability()[1]
        self._of_base(next(iter(self.canary.blocks())))

    # ── answers ───────────────────────────────────────────────────────────────────────────────────────
    def _answers(self, block: range) -> list[list[int]]:
        """Answers of the policy as it stands to the questions of a block, without stop tokens."""
        found = sample(
            self._policy,
            [self.canary.prompts[i] for i in block],
            stop_ids=self.canary.stop_ids,
            max_tokens=ANSWER_TOKENS,
            temperature=0.7,
            seed=7 + block.start,
        )
        return [self.canary.body(a.ids) for a in found]

    def _of_base(self, block: range) -> BaseBlock:
        if block.start not in self._base:
            with self._policy.as_base():
                answers = self._answers(block)
            logp = self._backdrop.logp(block, answers)
            marks = marks_of(self.canary, block, answers, logp)
            least = min(
                (m.logp for m in marks if math.isfinite(m.logp)), default=-math.inf
            )  # empty: no likelihood
            draft = BaseBlock(least, margin_curve(logp, ANSWER_TOKENS), 0)
            unsound = sum(fault(m, draft) is not None for m in marks)
            self._base[block.start] = BaseBlock(draft.least_logp, draft.margin, unsound)
        return self._base[block.start]

    def _faults(self, block: range) -> list[str | None]:
        base, answers = self._of_base(block), self._answers(block)
        marks = marks_of(self.canary, block, answers, self._backdrop.logp(block, answers))
        return [fault(mark, base) for mark in marks]

    # ── the verdict ───────────────────────────────────────────────────────────────────────────────────
    def judge(self, settings: dict[str, Any]) -> GateReport:
        """Measure the adapter that the policy carries now against the bounds in `settings`.

        The cheap checks come first; canaries are asked only if these pass.
        """
        if not all(bool(torch.isfinite(p).all()) for p in self._policy.parameters):
            return GateReport(False, "The update left numbers that are not finite.", {"finite": False})
        checks: dict[str, Any] = {"finite": True, **self._cheap(float(settings["max_kl"]))}
        failed = [_complaint(n, c) for n, c in checks.items() if n != "finite" and not c["passed"]]
        if not failed:
            checks["sound"] = self._sound(float(settings["min_sound"]))
            if not checks["sound"]["passed"]:
                failed = [_complaint("sound", checks["sound"])]
        return GateReport(not failed, " ".join(failed) or "All checks passed.", checks)

    def _cheap(self, max_kl: float) -> dict[str, dict[str, Any]]:
        kl, (start, end) = self._kl(), self._stop_probability()
        least_end = LEAST_STOP_AT_END * self._base_end
        return {
            "kl": {"value": kl, "bound": max_kl, "passed": kl <= max_kl},
            "stop_at_start": {
                "value": start,
                "bound": MOST_STOP_AT_START,
                "passed": start <= MOST_STOP_AT_START,
            },
            "stop_at_end": {"value": end, "bound": least_end, "passed": end >= least_end},
        }

    def _sound(self, least_share: float) -> dict[str, Any]:
        """Ask canaries until it is sure whether at most this share of base's are sound; at last, what is likelier."""
        found: list[str | None] = []
        of_base, ratio = 0, 0.0
        for block in self.canary.blocks():
            found += self._faults(block)
            of_base += self._of_base(block).unsound
            usual = min(max(USUAL_UNSOUND, of_base / len(found)), MOST_UNSOUND)
            bound = 1 - least_share * (1 - usual)
            unsound = sum(f is not None for f in found)
            ratio = log_likelihood_ratio(unsound, len(found), usual, bound)
            if decided(ratio) is not None:
                break
        return {
            "asked": len(found),
            "value": unsound,
            "of_base": of_base,
            "ratio": ratio,
            "faults": dict(Counter(f for f in found if f)),
            "passed": ratio <= 0 or unsound <= of_base,
        }

    @torch.no_grad()
    def _kl(self) -> float:
        total, count = 0.0, 0
        for ids in self.canary.neutral:
            now_TV = self._policy.logp_NV(self._policy.hidden_ND([ids], [1]))
            with self._policy.as_base():
                base_TV = self._policy.logp_NV(self._policy.hidden_ND([ids], [1]))
            total += float(losses.forward_kl_T(now_TV, base_TV).sum())
            count += len(ids) - 1
        return total / count

    @torch.no_grad()
    def _stop_probability(self) -> tuple[float, float]:
        """Mean probability of stopping before the first token, and geometric mean after a complete answer."""
        start, end = [], []
        stop = torch.as_tensor(self.canary.stop_ids)
        for prompt, answer in self.canary.endings:
            row = [*prompt, *answer, int(stop[0])]
            logp_TV = self._policy.logp_NV(self._policy.hidden_ND([row], [len(prompt)]))
            stop_T = logp_TV[:, stop].logsumexp(-1)
            start.append(float(stop_T[0].exp()))
            end.append(float(stop_T[-1]))
        return statistics.fmean(start), math.exp(statistics.fmean(end))


def _complaint(name: str, check: dict[str, Any]) -> str:
    """One plain sentence."""
    if name == "sound":
        faults = sorted(check["faults"].items(), key=lambda pair: -pair[1])
        what = ", ".join(f"{count} {WORDS[kind]}" for kind, count in faults)
        return f"{check['value']} of {check['asked']} answers to canary questions are not sound: {what}."
    figures = f"{name} is {check['value']:.3g}, the bound is {check['bound']:.3g}"
    return f"{TROUBLE[name]} ({figures})."
