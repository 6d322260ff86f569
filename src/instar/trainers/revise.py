"""What should the model have said? The best answer that it can find itself, chosen without knowing the wish.

Candidates are our own answer to the user's correction, which was served anyway, and one answer of base to the request
with the user's words in front of it. Both are scored by the frozen base:

    hint    mean over tokens of log p(answer | words + request) − log p(answer | request): does it show the words?
    margin  mean over tokens of log p(answer | request) − log p(answer | other requests): is it about the request?

A candidate must beat the rejected answer in both; of those that do, the one with the largest hint is learned. A
hint that the model cannot follow on the subject yields no candidate, and then nothing is learned from it.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from instar.methods.weights import lesson_T
from instar.records import Origin, WeightedSample
from instar.trainers.gate import canaries, loops, mean_logp
from instar.trainers.policy import Policy
from instar.trainers.sampling import sample

FEWEST_TOKENS = 4
OTHERS = 3
"""How many other requests an answer is held against."""
TEMPERATURE = 0.3
"""Low: a revision is a model answer to learn from, not a try."""
ROWS = 16
"""Rows scored in one pass."""


@dataclass(frozen=True, slots=True)
class Score:
    """Both in nats a token."""

    hint: float
    margin: float

    def beats(self, other: Score) -> bool:
        return self.hint > other.hint and self.margin > other.margin


class Reviser:
    """Finds revisions for the samples of one update."""

    def __init__(self, policy: Policy, *, max_tokens: int, seed: int) -> None:
        self._policy = policy
        self._canary = canaries(policy.model_dir)
        self._max_tokens = max_tokens
        self._seed = seed
        self.asked = 0
        self.found = 0

    def revise(self, samples: Sequence[WeightedSample]) -> list[WeightedSample]:
        """One more sample for each that asks for a revision and gets one."""
        asking = [s for s in samples if s.revise and s.teacher_prompt_ids]
        if not asking:
            return []
        hinted = self._hinted_answers(asking)
        with self._policy.as_base():
            found = [self._best(s, [*s.revisions, new]) for s, new in zip(asking, hinted, strict=True)]
        revised = [_as_lesson(s, ids) for s, ids in zip(asking, found, strict=True) if ids]
        self.asked, self.found = len(asking), len(revised)
        return revised

    def _hinted_answers(self, asking: Sequence[WeightedSample]) -> list[list[int]]:
        """Base's own answers to the hinted requests; an answer that does not end counts as none."""
        with self._policy.as_base():
            answers = sample(
                self._policy,
                [s.teacher_prompt_ids or [] for s in asking],
                stop_ids=self._canary.stop_ids,
                max_tokens=self._max_tokens,
                temperature=TEMPERATURE,
                seed=self._seed,
            )
        return [a.ids if a.ended else [] for a in answers]

    def _best(self, asking: WeightedSample, candidates: Sequence[list[int]]) -> list[int] | None:
        sane = [c for c in candidates if self._is_sane(c)]
        if not sane:
            return None
        rejected, *scores = self._scores(asking, [asking.response_ids, *sane])
        better = [(s.hint, c) for s, c in zip(scores, sane, strict=True) if s.beats(rejected)]
        return max(better)[1] if better else None

    def _is_sane(self, ids: Sequence[int]) -> bool:
        body = self._body(ids)
        return len(body) >= FEWEST_TOKENS and not loops(body)

    def _body(self, ids: Sequence[int]) -> list[int]:
        return [i for i in ids if i not in self._canary.stop_ids]

    def _scores(self, asking: WeightedSample, answers: Sequence[Sequence[int]]) -> list[Score]:
        prompts = [asking.prompt_ids, asking.teacher_prompt_ids or [], *self._canary.prompts[:OTHERS]]
        rows = [(p, self._body(a)) for a in answers for p in prompts]
        logp: list[float] = []
        for at in range(0, len(rows), ROWS):
            part = rows[at : at + ROWS]
            logp += mean_logp(self._policy, [p for p, _ in part], [a for _, a in part])
        width = len(prompts)
        found = [logp[at : at + width] for at in range(0, len(logp), width)]
        return [Score(hinted - own, own - statistics.fmean(others)) for own, hinted, *others in found]


def _as_lesson(asking: WeightedSample, ids: list[int]) -> WeightedSample:
    """The revision as a sample of its own: learned at the request without the hint."""
    zeros = [0.0] * len(ids)
    return replace(
        asking,
        origin=Origin.REVISION,
        response_ids=ids,
        logprobs=[],
        pg_T=zeros,
        distill_T=zeros,
        nll_T=[asking.revise * w for w in lesson_T(asking.response_ids, ids)],
        kl_T=zeros,
        revise=0.0,
        revisions=[],
    )
