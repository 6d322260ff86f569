"""What should the model have said? The best answer that it can find itself, chosen without knowing the wish.

Candidates are our own answer to the user's correction, which was served anyway, and one answer of base to the request
with the user's words in front of it. Both are scored by the frozen base:

    hint     mean over tokens of log p(answer | words + request) − log p(answer | request): does it show the words?
    margin   mean over tokens of log p(answer | request) − log p(answer | other requests): is it about the request?
    whole    what the whole answer and its end say of both, in nats; so a longer answer that still heeds the words
             is worth more than a shorter one

A candidate must beat the rejected answer in hint and margin; of those that do, the one with the largest whole is
learned. A hint that the model cannot follow on the subject yields no candidate, and then nothing is learned from it.

All of this rests on base alone. A revision holds for any update, so it is looked for as soon as its turn is judged
and remembered until a batch is full.
"""

from __future__ import annotations

import statistics
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from torch import Tensor

from instar.methods.weights import lesson_T
from instar.records import Origin, WeightedSample
from instar.trainers.gate import canaries, loops, token_logp
from instar.trainers.policy import Policy
from instar.trainers.sampling import sample

FEWEST_TOKENS = 4
OTHERS = 3
"""How many other requests an answer is held against."""
TEMPERATURE = 0.3
"""Low: a revision is a model answer to learn from, not a try."""
SUBJECT = 0.3
"""Worth of a nat about the request, beside one about the user's words."""
REMEMBERED = 256
"""Turns kept in memory: those that wait for a full batch, and more."""


@dataclass(frozen=True, slots=True)
class Score:
    """`hint` and `margin` in nats a token, `whole` in nats."""

    hint: float
    margin: float
    whole: float

    def beats(self, other: Score) -> bool:
        return self.hint > other.hint and self.margin > other.margin


@dataclass(slots=True)
class _Known:
    """What is known of one rejected answer: base's own try with the hint, and scores by answer."""

    hinted: list[int]
    scores: dict[tuple[int, ...], Score] = field(default_factory=dict)


class Reviser:
    """Finds revisions, and remembers what it sampled and scored for them."""

    def __init__(self, policy: Policy, *, max_tokens: int) -> None:
        self._policy = policy
        self._canary = canaries(policy.model_dir)
        self._max_tokens = max_tokens
        self._known: dict[str, _Known] = {}

    def revise(self, samples: Sequence[WeightedSample]) -> list[WeightedSample]:
        """One more sample for each that asks for a revision and gets one."""
        found = [(s, self.revision(s)) for s in samples if asks(s)]
        return [_as_lesson(s, ids) for s, ids in found if ids]

    def revision(self, asking: WeightedSample) -> list[int] | None:
        """Ids of the answer that should have been given; None if there is none to be had.

        The same turn gives the same revision, alone or in a batch, now or later.
        """
        with self._policy.as_base():
            known = self._known_of(asking)
            sane = [c for c in [*asking.revisions, known.hinted] if self._is_sane(c)]
            if not sane:
                return None
            rejected, *scores = self._scores(asking, known, [asking.response_ids, *sane])
        better = [(s.whole, c) for s, c in zip(scores, sane, strict=True) if s.beats(rejected)]
        return max(better)[1] if better else None

    def _known_of(self, asking: WeightedSample) -> _Known:
        """The answer to the correction may come after the first look; what was found before stays."""
        key = repr((asking.prompt_ids, asking.teacher_prompt_ids, asking.response_ids))
        if key not in self._known:
            while len(self._known) >= REMEMBERED:
                del self._known[next(iter(self._known))]
            self._known[key] = _Known(self._hinted_answer(asking, seed=zlib.crc32(key.encode())))
        return self._known[key]

    def _hinted_answer(self, asking: WeightedSample, seed: int) -> list[int]:
        """Base's own answer to the hinted request; one that does not end counts as none."""
        (answer,) = sample(
            self._policy,
            [asking.teacher_prompt_ids or []],
            stop_ids=self._canary.stop_ids,
            max_tokens=self._max_tokens,
            temperature=TEMPERATURE,
            seed=seed,
        )
        return answer.ids if answer.ended else []

    def _is_sane(self, ids: Sequence[int]) -> bool:
        body = self._body(ids)
        return len(body) >= FEWEST_TOKENS and not loops(body)

    def _body(self, ids: Sequence[int]) -> list[int]:
        return [i for i in ids if i not in self._canary.stop_ids]

    def _scores(self, asking: WeightedSample, known: _Known, answers: Sequence[list[int]]) -> list[Score]:
        bodies = [self._body(a) for a in answers]
        for body in bodies:
            if tuple(body) not in known.scores:
                known.scores[tuple(body)] = self._score(asking, body)
        return [known.scores[tuple(body)] for body in bodies]

    def _score(self, asking: WeightedSample, body: Sequence[int]) -> Score:
        prompts = [asking.prompt_ids, asking.teacher_prompt_ids or [], *self._canary.prompts[:OTHERS]]
        whole = [*body, self._canary.stop_ids[0]]
        return score_from(*token_logp(self._policy, prompts, [whole] * len(prompts)))


def score_from(own_T: Tensor, hinted_T: Tensor, *others: Tensor) -> Score:
    """From log-probs of an answer and its stop token, which says when to end but not what is talked about."""
    body = slice(0, len(own_T) - 1)
    margin = float(own_T[body].mean()) - statistics.fmean(float(o[body].mean()) for o in others)
    words_T = hinted_T - own_T
    whole = float(words_T.sum()) + SUBJECT * margin * (len(own_T) - 1)
    return Score(float(words_T[body].mean()), margin, whole)


def asks(sample: WeightedSample) -> bool:
    """Whether a revision is wanted for this sample."""
    return sample.revise > 0 and bool(sample.teacher_prompt_ids)


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
