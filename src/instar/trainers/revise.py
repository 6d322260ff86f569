"""What should the model have said? The best answer that it can find itself, chosen without knowing the wish.

Candidates are our own answer to the user's correction, which was served anyway; some answers of base to the request
with the user's words in front of it; and the rejected answer, ended earlier where these words make an end likely. All
are scored by the frozen base:

    fluency  mean log p(answer | request) a token: is it language?
    margin   mean log p(answer | request) − log p(answer | other requests) a token: is it about the request?
    hint     mean log p(answer | words + request) − log p(answer | request) a token: does it show the words?
    whole    what the whole answer and its end say of the words and of the request, in nats

A candidate must keep up with the rejected answer in fluency and margin. Where the learner's verdicts so far can tell an
answer that pleases from one that does not (answer_scorer.py), it must be one that pleases, and of those the one that
says most about the request is learned. Elsewhere it must show the words more than the rejected answer does, and the
one with the largest whole is learned. If there is none, nothing is learned from the correction.

Candidates and scores rest on base alone. They hold for any update, so they are looked for as soon as a turn is judged
and remembered until a batch is full.
"""

from __future__ import annotations

import statistics
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from instar.chat_format import ChatFormat
from instar.methods.weights import lesson_T
from instar.records import Origin, WeightedSample
from instar.trainers.answer_scorer import AnswerScorer
from instar.trainers.gate import canaries, loops, token_logp
from instar.trainers.policy import Policy
from instar.trainers.sampling import sample

FEWEST_TOKENS = 4
OTHERS = 3
"""How many other requests an answer is held against."""
TRIES = ((0.3, 1), (0.7, 3))
"""Temperatures of base's own tries, and how many of each. A low one gives the most fluent."""
ENDINGS = 4
"""Most places where the rejected answer is ended earlier."""
LEAST_STOP = 0.02
"""Probability of stopping, with the user's words in front, from which a place counts as an end."""
FLUENCY_SLACK = 0.2
"""Nats a token that a revision may be less fluent than the rejected answer."""
MARGIN_SHARE = 0.5
"""Share of the rejected answer's margin that a revision must have."""
SUBJECT = 0.3
"""Worth of a nat about the request, beside one about the user's words."""
REMEMBERED = 256
"""Turns kept in memory: those that wait for a full batch, and more."""


@dataclass(frozen=True, slots=True)
class Score:
    """`fluency`, `hint` and `margin` in nats a token; `subject` and `whole` in nats."""

    fluency: float
    hint: float
    margin: float
    subject: float
    whole: float

    def keeps_up_with(self, rejected: Score) -> bool:
        return (
            self.fluency >= rejected.fluency - FLUENCY_SLACK
            and self.margin > 0
            and self.margin >= MARGIN_SHARE * rejected.margin
        )


@dataclass(slots=True)
class _Known:
    """What is known of one rejected answer: candidates that need no later turn, and scores by answer."""

    candidates: list[list[int]]
    scores: dict[tuple[int, ...], Score] = field(default_factory=dict)


class Reviser:
    """Finds revisions, and remembers what it sampled and scored for them."""

    def __init__(self, policy: Policy, *, max_tokens: int) -> None:
        self._policy = policy
        self._chat = ChatFormat(policy.model_dir)
        self._canary = canaries(policy.model_dir)
        self._max_tokens = max_tokens
        self._known: dict[str, _Known] = {}

    def revise(
        self, samples: Sequence[WeightedSample], scorers: Mapping[str, AnswerScorer | None]
    ) -> list[WeightedSample]:
        """One more sample for each that asks for a revision and gets one. `scorers` by learner."""
        found = [(s, self.revision(s, scorers.get(s.learner))) for s in samples if asks(s)]
        return [_as_lesson(s, ids) for s, ids in found if ids]

    def look(self, asking: WeightedSample) -> None:
        """Find and score the candidates, for a revision that is asked for later."""
        self._scored(asking)

    def revision(self, asking: WeightedSample, scorer: AnswerScorer | None = None) -> list[int] | None:
        """Ids of the answer that should have been given; None if there is none to be had.

        The same turn gives the same revision, alone or in a batch, now or later.
        """
        rejected, candidates = self._scored(asking)
        good = [(score, ids) for score, ids in candidates if score.keeps_up_with(rejected)]
        if scorer is not None:
            pleasing = [
                (s.subject, c) for s, c in good if scorer.accepts(asking.question, self._chat.decode(c))
            ]
        else:
            pleasing = [(s.whole, c) for s, c in good if s.hint > rejected.hint]
        return max(pleasing)[1] if pleasing else None

    def _scored(self, asking: WeightedSample) -> tuple[Score, list[tuple[Score, list[int]]]]:
        """The rejected answer's score, and the sane candidates with theirs."""
        with self._policy.as_base():
            known = self._known_of(asking)
            sane = [c for c in [*asking.revisions, *known.candidates] if self._is_sane(c)]
            rejected, *scores = (self._score(asking, known, a) for a in [asking.response_ids, *sane])
        return rejected, list(zip(scores, sane, strict=True))

    def _known_of(self, asking: WeightedSample) -> _Known:
        """The answer to the correction may come after the first look; what was found before stays."""
        key = repr((asking.prompt_ids, asking.teacher_prompt_ids, asking.response_ids))
        if key not in self._known:
            while len(self._known) >= REMEMBERED:
                del self._known[next(iter(self._known))]
            tries = self._tries(asking, seed=zlib.crc32(key.encode()))
            self._known[key] = _Known([*tries, *self._endings(asking)])
        return self._known[key]

    def _tries(self, asking: WeightedSample, seed: int) -> list[list[int]]:
        """Base's own answers to the hinted request; those that do not end count as none."""
        found = []
        for temperature, count in TRIES:
            found += sample(
                self._policy,
                [asking.teacher_prompt_ids or []] * count,
                stop_ids=self._canary.stop_ids,
                max_tokens=self._max_tokens,
                temperature=temperature,
                seed=seed,
            )
        return [answer.ids for answer in found if answer.ended]

    @torch.no_grad()
    def _endings(self, asking: WeightedSample) -> list[list[int]]:
        """The rejected answer up to each of the likeliest places to stop, shortest first."""
        body, prompt = self._body(asking.response_ids), asking.teacher_prompt_ids or []
        stop = self._canary.stop_ids
        hidden_TD = self._policy.hidden_ND([[*prompt, *body, stop[0]]], [len(prompt)])
        stops_T = self._policy.logp_NV(hidden_TD)[:, stop].exp().sum(-1)
        stops_T = stops_T[: len(body)]  # at its own end it is the rejected answer itself
        likeliest = stops_T.topk(min(ENDINGS, len(stops_T)))
        places = [
            int(at)
            for p, at in zip(likeliest.values, likeliest.indices, strict=True)
            if p >= LEAST_STOP and at >= FEWEST_TOKENS
        ]
        return [[*body[:at], stop[0]] for at in sorted(places)]

    def _is_sane(self, ids: Sequence[int]) -> bool:
        body = self._body(ids)
        return len(body) >= FEWEST_TOKENS and not loops(body)

    def _body(self, ids: Sequence[int]) -> list[int]:
        return [i for i in ids if i not in self._canary.stop_ids]

    def _score(self, asking: WeightedSample, known: _Known, answer: Sequence[int]) -> Score:
        body = self._body(answer)
        if tuple(body) not in known.scores:
            prompts = [asking.prompt_ids, asking.teacher_prompt_ids or [], *self._canary.prompts[:OTHERS]]
            whole = [*body, self._canary.stop_ids[0]]
            known.scores[tuple(body)] = score_from(*token_logp(self._policy, prompts, [whole] * len(prompts)))
        return known.scores[tuple(body)]


def score_from(own_T: Tensor, hinted_T: Tensor, *others: Tensor) -> Score:
    """From log-probs of an answer and its stop token, which says when to end but not what is talked about."""
    length = len(own_T) - 1
    fluency = float(own_T[:length].mean())
    margin = fluency - statistics.fmean(float(o[:length].mean()) for o in others)
    words_T = hinted_T - own_T
    subject = margin * length
    whole = float(words_T.sum()) + SUBJECT * subject
    return Score(fluency, float(words_T[:length].mean()), margin, subject, whole)


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
