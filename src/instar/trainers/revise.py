"""What should the model have said? The best answer that it can find itself, chosen without knowing the wish.

Candidates are our own answer to the user's correction, which was served anyway; some answers of base to the request
with the user's words in front of it; and the rejected answer, ended earlier where these words make an end likely. All
are scored by the frozen base:

    fluency  mean log p(answer | request) a token: is it language?
    margin   mean log p(answer | request) − log p(answer | other requests) a token: is it about the request?
    hint     mean log p(answer | words + request) − log p(answer | request) a token: does it show the words?
    whole    what the whole answer and its end say of the words and of the request, in nats

A candidate must keep up with the rejected answer in fluency and margin. Where the learner's verdicts so far can tell an
answer that pleases from one that does not (answer_scorer.py), it must more likely please than not, and the largest
product of that probability and of what it says about the request, in nats, is learned: the most about the request alone
would choose at the border of what pleases. Elsewhere it must show the words more than the rejected answer does, and the
largest whole is learned. If there is none, nothing is learned from the correction.

Candidates and scores rest on base alone. They hold for any update, so they are looked for as soon as a turn is judged
and remembered until a batch is full.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from instar.methods.weights import lesson_T
from instar.records import BASE, Origin, WeightedSample
from instar.trainers.answer_scorer import AnswerScorer
from instar.trainers.canaries import canaries, chat_of, loops
from instar.trainers.policy import LOGITS_CHUNK, Policy, PrefixCache
from instar.trainers.sampling import sample

FEWEST_TOKENS = 4
OTHERS = 3
"""How many other requests an answer is held against."""
TRIES = (0.3, 0.3, 0.7, 0.7)
"""Temperatures of base's own tries: low ones are fluent, high ones differ."""
ENOUGH = 3
"""Tries that must end; the last one may be rambling."""
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

TAKEN = "A better answer was found."
NO_ANSWER = "With these words the model came to no complete answer."
WORSE = "With these words the model's answers were less fluent than the rejected one, or off its subject."
NOT_SHOWN = "None of the model's answers showed these words more than the rejected one."
NOT_PLEASING = "None of the model's answers is likely to please, by your verdicts so far."


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


@dataclass(frozen=True, slots=True)
class View:
    """An answer of T tokens as base sees it after P prompts: the request, the hinted request, other requests.

    `logp_PT` are log-probs of its tokens, `stop_PS` of stopping before each of them and at the end (S = T + 1).
    """

    logp_PT: Tensor
    stop_PS: Tensor

    def score(self, length: int) -> Score:
        """Of the answer's first `length` tokens, and of ending there."""
        mean_P = self.logp_PT[:, :length].mean(1)
        margin = float(mean_P[0] - mean_P[2:].mean())
        words = float((self.logp_PT[1, :length] - self.logp_PT[0, :length]).sum())
        words += float(self.stop_PS[1, length] - self.stop_PS[0, length])
        subject = margin * length
        return Score(
            float(mean_P[0]), float(mean_P[1] - mean_P[0]), margin, subject, words + SUBJECT * subject
        )

    def endings(self) -> list[int]:
        """Lengths at which the words make an end likely, before the answer's own; shortest first."""
        stop_T = self.stop_PS[1, :-1].exp()
        likeliest = stop_T.topk(min(ENDINGS, len(stop_T)))
        places = zip(likeliest.values.tolist(), likeliest.indices.tolist(), strict=True)
        return sorted(at for p, at in places if p >= LEAST_STOP and at >= FEWEST_TOKENS)


@dataclass(slots=True)
class _Known:
    """What is known of one rejected answer: its view, base's own tries, views by candidate."""

    rejected: View
    tries: list[list[int]]
    views: dict[tuple[int, ...], View] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Revision:
    """What is learned from a correction: a sample of its own, or None; and a sentence that says why."""

    lesson: WeightedSample | None
    why: str


class Reviser:
    """Finds revisions, and remembers what it sampled and scored for them."""

    def __init__(self, policy: Policy, *, max_tokens: int) -> None:
        self._policy = policy
        self._chat = chat_of(policy.model_dir)
        self._canary = canaries(policy.model_dir)
        self._max_tokens = max_tokens
        self._known: dict[str, _Known] = {}
        self.prefixes = PrefixCache(policy)
        self.prefixes.hold_for(BASE)

    def look(self, asking: WeightedSample) -> None:
        """Find and score the candidates, for a revision that is asked for later."""
        self._scored(asking)

    def revise(self, asking: WeightedSample, scorer: AnswerScorer | None = None) -> Revision:
        """The answer that should have been given, or why there is none to be had.

        The same turn gives the same revision, alone or in a batch, now or later. `scorer` is the learner's.
        """
        rejected, candidates = self._scored(asking)
        if not candidates:
            return Revision(None, NO_ANSWER)
        good = [(score, ids) for score, ids in candidates if score.keeps_up_with(rejected)]
        if not good:
            return Revision(None, WORSE)
        if scorer is not None:
            chances = [scorer.probability(asking.question, self._chat.decode(c)) for _, c in good]
            worth = [(p * s.subject, c) for p, (s, c) in zip(chances, good, strict=True) if p > 0.5]
        else:
            worth = [(s.whole, c) for s, c in good if s.hint > rejected.hint]
        if not worth:
            return Revision(None, NOT_SHOWN if scorer is None else NOT_PLEASING)
        return Revision(as_lesson(asking, max(worth)[1]), TAKEN)

    def _scored(self, asking: WeightedSample) -> tuple[Score, list[tuple[Score, list[int]]]]:
        """The rejected answer's score, and the sane candidates with theirs."""
        body, stop = self._canary.body(asking.response_ids), self._canary.stop_ids[0]
        with self._policy.as_base():
            known = self._known_of(asking, body)
            found = [
                (self._view(asking, known, c).score(len(self._canary.body(c))), c)
                for c in [*asking.revisions, *known.tries]
                if self._is_sane(c)
            ]
        ended = [(known.rejected.score(n), [*body[:n], stop]) for n in known.rejected.endings()]
        return known.rejected.score(len(body)), [*found, *(e for e in ended if self._is_sane(e[1]))]

    def _known_of(self, asking: WeightedSample, body: Sequence[int]) -> _Known:
        """The answer to the correction may come after the first look; what was found before stays."""
        key = repr((asking.prompt_ids, asking.teacher_prompt_ids, asking.response_ids))
        if key not in self._known:
            while len(self._known) >= REMEMBERED:
                del self._known[next(iter(self._known))]
            view = self._view_of(asking, body)
            self._known[key] = _Known(view, self._tries(asking, seed=zlib.crc32(key.encode())))
        return self._known[key]

    def _tries(self, asking: WeightedSample, seed: int) -> list[list[int]]:
        """Base's own answers to the hinted request; those that do not end count as none."""
        found = sample(
            self._policy,
            [asking.teacher_prompt_ids or []] * len(TRIES),
            stop_ids=self._canary.stop_ids,
            max_tokens=self._max_tokens,
            temperature=TRIES,
            seed=seed,
            enough=ENOUGH,
            prefixes=self.prefixes,
        )
        return [answer.ids for answer in found if answer.ended]

    def _is_sane(self, ids: Sequence[int]) -> bool:
        body = self._canary.body(ids)
        return len(body) >= FEWEST_TOKENS and not loops(body)

    def _view(self, asking: WeightedSample, known: _Known, answer: Sequence[int]) -> View:
        body = tuple(self._canary.body(answer))
        if body not in known.views:
            known.views[body] = self._view_of(asking, body)
        return known.views[body]

    @torch.no_grad()
    def _view_of(self, asking: WeightedSample, body: Sequence[int]) -> View:
        prompts = [asking.prompt_ids, asking.teacher_prompt_ids or [], *self._canary.others[:OTHERS]]
        stop = self._canary.stop_ids
        rows, starts = [[*p, *body, stop[0]] for p in prompts], [len(p) for p in prompts]
        hidden_ND = self._policy.hidden_ND(rows, starts, self.prefixes)
        seen = [self._read(hidden_SD, body) for hidden_SD in torch.split(hidden_ND, len(body) + 1)]
        return View(torch.stack([logp_T for logp_T, _ in seen]), torch.stack([stop_S for _, stop_S in seen]))

    def _read(self, hidden_SD: Tensor, body: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Log-probs of the answer's tokens, shape (T,), and of stopping instead of each and at the end, (T + 1,)."""
        token_S = torch.as_tensor([*body, self._canary.stop_ids[0]])
        logp, stop = [], []
        for at in range(0, len(token_S), LOGITS_CHUNK):
            logp_SV = self._policy.logp_NV(hidden_SD[at : at + LOGITS_CHUNK])
            logp.append(logp_SV.gather(-1, token_S[at : at + LOGITS_CHUNK, None])[:, 0])
            stop.append(logp_SV[:, self._canary.stop_ids].logsumexp(-1))
        return torch.cat(logp)[:-1], torch.cat(stop)


def asks(sample: WeightedSample) -> bool:
    """Whether a revision is wanted for this sample."""
    return sample.revise > 0 and bool(sample.teacher_prompt_ids)


def as_lesson(asking: WeightedSample, ids: list[int]) -> WeightedSample:
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
