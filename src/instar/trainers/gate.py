"""May the proposed version serve? Measured in the compute child, relative to what base does itself.

Nothing here knows a wish: a version may answer shorter, longer, in lists or in verse. It must still speak, speak
to the question, know when to stop, and leave unrelated text alone.

    finite      every number of the adapter
    kl          KL(base ‖ version) a token over neutral texts that no update is pulled towards
    coherent    share of canary answers without a run of four tokens more than twice, whose mean log-prob under
                base is not far below base's own answers
    relevant    share of canary answers that base finds likelier after their own question than after others, by a
                quarter of base's own margin, and that do not merely repeat the question
    stop        probability of the stop token: small where an answer begins, not lost where one ends
"""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from instar.chat_format import ChatFormat
from instar.records import GateReport
from instar.trainers import losses
from instar.trainers.policy import Policy
from instar.trainers.sampling import sample

DATA = Path(__file__).parent / "data"
ANSWER_TOKENS = 40
FEWEST_TOKENS = 3
OTHERS = 3
"""How many other questions an answer is held against."""
LOGP_SLACK = 1.0
"""Nats a token that an answer may be less likely under base than the least likely of base's own."""
MARGIN_SHARE = 0.25
MOST_REPEATED = 0.7
"""Share of an answer's tokens that may stand in the question before it counts as an echo."""
MOST_STOP_AT_START = 0.2
LEAST_STOP_AT_END = 1e-3


@dataclass(frozen=True, slots=True)
class Canaries:
    """Prompts as ids: one canary is asked by its own prompt and scored against `OTHERS` of the rest."""

    prompts: list[list[int]]
    endings: list[tuple[list[int], list[int]]]
    neutral: list[list[int]]
    stop_ids: list[int]


@dataclass(frozen=True, slots=True)
class Marks:
    """What one set of canary answers shows, one entry per canary."""

    logp: list[float]
    margin: list[float]
    loops: list[bool]
    echo: list[bool]
    length: list[int]


@lru_cache(maxsize=4)
def canaries(model_dir: Path) -> Canaries:
    chat = ChatFormat(model_dir)
    data = json.loads((DATA / "canaries.json").read_text("utf-8"))

    def prompt(text: str) -> list[int]:
        return chat.encode_prompt([{"role": "user", "content": text}])

    return Canaries(
        prompts=[prompt(q) for q in data["questions"]],
        endings=[(prompt(q), chat.encode(a)) for q, a in data["complete_answers"]],
        neutral=[chat.encode(text) for text in data["neutral_texts"]],
        stop_ids=list(chat.stop_ids),
    )


@torch.no_grad()
def token_logp(
    policy: Policy, prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[int]]
) -> list[Tensor]:
    """Log-probs of each answer's tokens after its prompt, under the policy as it stands: shape (T,) each."""
    hidden_ND = policy.hidden_ND(
        [[*p, *a] for p, a in zip(prompts, answers, strict=True)], [len(p) for p in prompts]
    )
    found, at = [], 0
    for answer in answers:
        token_T = torch.as_tensor(list(answer))[:, None]
        logp_TV = policy.logp_NV(hidden_ND[at : at + len(answer)])
        found.append(logp_TV.gather(-1, token_T)[:, 0])
        at += len(answer)
    return found


def mean_logp(
    policy: Policy, prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[int]]
) -> list[float]:
    """Mean log-prob a token of each answer after its prompt."""
    return [float(logp_T.mean()) for logp_T in token_logp(policy, prompts, answers)]


def loops(ids: Sequence[int], size: int = 4, most: int = 2) -> bool:
    """Whether some run of `size` tokens stands more than `most` times."""
    runs = Counter(tuple(ids[i : i + size]) for i in range(len(ids) - size + 1))
    return any(count > most for count in runs.values())


def mark(policy: Policy, canary: Canaries, answers: Sequence[Sequence[int]]) -> Marks:
    """Score canary answers with the frozen base."""
    count = len(canary.prompts)
    texts = [[i for i in a if i not in canary.stop_ids] for a in answers]
    logp, margin = [], []
    with policy.as_base():
        for i, text in enumerate(texts):
            if not text:
                logp.append(float("-inf"))
                margin.append(float("-inf"))
                continue
            asked = [i, *((i + 1 + k) % count for k in range(OTHERS))]
            own, *others = mean_logp(policy, [canary.prompts[j] for j in asked], [text] * len(asked))
            logp.append(own)
            margin.append(own - statistics.fmean(others))
    echo = [_echo(text, prompt) for text, prompt in zip(texts, canary.prompts, strict=True)]
    return Marks(logp, margin, [loops(t) for t in texts], echo, [len(t) for t in texts])


def _echo(text: Sequence[int], prompt: Sequence[int]) -> bool:
    known = set(prompt)
    return bool(text) and sum(i in known for i in text) / len(text) > MOST_REPEATED


class Gate:
    """Holds base's own figures, measured once."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._canary = canaries(policy.model_dir)
        with policy.as_base():
            self._base = mark(policy, self._canary, self._answers())
        self._floor = min(self._base.logp) - LOGP_SLACK
        self._least_margin = MARGIN_SHARE * statistics.median(self._base.margin)

    def _answers(self) -> list[list[int]]:
        found = sample(
            self._policy,
            self._canary.prompts,
            stop_ids=self._canary.stop_ids,
            max_tokens=ANSWER_TOKENS,
            temperature=0.7,
            seed=7,
        )
        return [a.ids for a in found]

    def coherent(self, marks: Marks) -> list[bool]:
        return [
            n >= FEWEST_TOKENS and not loop and logp > self._floor
            for n, loop, logp in zip(marks.length, marks.loops, marks.logp, strict=True)
        ]

    def relevant(self, marks: Marks) -> list[bool]:
        return [
            margin > self._least_margin and not echo
            for margin, echo in zip(marks.margin, marks.echo, strict=True)
        ]

    def judge(self, settings: dict[str, Any]) -> GateReport:
        """Measure the adapter that the policy carries now against the bounds in `settings`."""
        if not all(bool(torch.isfinite(p).all()) for p in self._policy.parameters):
            return GateReport(False, "The update left numbers that are not finite.", {"finite": False})
        marks = mark(self._policy, self._canary, self._answers())
        start, end = self._stop_probability()
        figures = {
            "kl": (self._kl(), float(settings["max_kl"])),
            "coherent": (
                sum(self.coherent(marks)),
                least(sum(self.coherent(self._base)), float(settings["min_coherent"])),
            ),
            "relevant": (
                sum(self.relevant(marks)),
                least(sum(self.relevant(self._base)), float(settings["min_relevant"])),
            ),
            "stop_at_start": (start, MOST_STOP_AT_START),
            "stop_at_end": (end, LEAST_STOP_AT_END),
        }
        upper = {"kl", "stop_at_start"}
        checks: dict[str, Any] = {"finite": True, "canaries": len(marks.length)}
        failed = []
        for name, (value, bound) in figures.items():
            fine = value <= bound if name in upper else value >= bound
            checks[name] = {"value": value, "bound": bound, "passed": fine}
            if not fine:
                failed.append(f"{name} is {value:.3g}, the bound is {bound:.3g}")
        checks["mean_length"] = statistics.fmean(marks.length)
        why = "; ".join(failed) if failed else "All checks passed."
        return GateReport(not failed, why, checks)

    @torch.no_grad()
    def _kl(self) -> float:
        total, count = 0.0, 0
        for ids in self._canary.neutral:
            now_TV = self._policy.logp_NV(self._policy.hidden_ND([ids], [1]))
            with self._policy.as_base():
                base_TV = self._policy.logp_NV(self._policy.hidden_ND([ids], [1]))
            total += float(losses.forward_kl_T(now_TV, base_TV).sum())
            count += len(ids) - 1
        return total / count

    @torch.no_grad()
    def _stop_probability(self) -> tuple[float, float]:
        """Mean probability of stopping before the first token, and after a complete answer."""
        start, end = [], []
        stop = torch.as_tensor(self._canary.stop_ids)
        for prompt, answer in self._canary.endings:
            row = [*prompt, *answer, int(stop[0])]
            logp_TV = self._policy.logp_NV(self._policy.hidden_ND([row], [len(prompt)]))
            stop_T = logp_TV[:, stop].exp().sum(-1)
            start.append(float(stop_T[0]))
            end.append(float(stop_T[-1]))
        return statistics.fmean(start), statistics.fmean(end)


def least(of_base: int, share: float) -> int:
    """How many canaries must pass: the share of base's, less one, since a single answer is a coin's toss."""
    return max(1, int(share * of_base + 1e-9) - (1 if share < 1 else 0)) if of_base else 0
