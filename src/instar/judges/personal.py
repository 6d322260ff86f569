"""The heads, moved towards one learner's own ratings: who rates an answer and says something teaches how to read them.

All heads get the same offset of their logits, Δ·x. It is a multinomial logistic regression on the learner's ratings
with the shipped logits as its fixed start and an L2 penalty on Δ (a prior that is centred on the shipped model, as in
Chelba and Acero 2004, "Adaptation of Maximum Entropy Capitalizer"):

    minimise over Δ:  Σ_i mean_m CE(logits_m(x_i) + Δ·x_i, y_i) + |Δ|²/(2·strength)

At the minimum Δ = αᵀX for some α [N, C], so N numbers a class are looked for instead of F, and a message is moved as
far as it resembles rated ones. The moved heads are used only where they read ratings that they have not seen better
than the shipped ones do.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from instar.judges.embedding import Embedding, Floats
from instar.judges.explicit import rated
from instar.judges.features import features
from instar.judges.heads import CLASSES, Heads, vote, what_was_said
from instar.judges.networks import softmax
from instar.ports import Ratings
from instar.records import RatedTurn

Doubles = NDArray[np.float64]

MOST = 200
"""Ratings of a learner that are looked at, the newest."""
FEWEST_TEXTS = 6
"""Different texts without which the heads are not moved. There must be a +1 and a −1 among them: where all have one
sign, moving everything towards it reads what is left out better, and nothing tells what it does to the others."""
STRENGTH = 3.0
"""Inverse of the penalty. Against a sure reading, one odd rating brings the heads to abstain, and only several turn
them round (docs/log.md)."""
FOLDS = 5
MAX_STEPS = 1000
TOLERANCE = 1e-4
"""Largest slope, in probability, at which the fit has converged."""
LEARNERS = 64
"""Learners whose offset is kept, some 50 kB, beside their ratings."""


@dataclass(frozen=True, slots=True)
class Rating:
    """What a learner said after a turn, in words, and how they rated it: −1, 0 or +1."""

    turn_id: str
    question: str
    text: str
    score: int


def as_ratings(turns: Sequence[RatedTurn]) -> tuple[Rating, ...]:
    """Those turns on which there is a rating as well as words."""
    found = ((turn, rated(turn.next_states), what_was_said(turn.next_states)) for turn in turns)
    return tuple(
        Rating(turn.turn_id, turn.question, said.text, verdict.score)
        for turn, verdict, said in found
        if verdict is not None and said is not None and said.text.strip()
    )


@dataclass(frozen=True, slots=True)
class Figures:
    """How some heads read ratings: as the learner, the opposite sign, sum of log-losses. Abstaining is neither."""

    agree: int
    wrong_sign: int
    log_loss: float

    def better_than(self, other: Figures) -> bool:
        """At no cost in agreement or wrong signs, and with a gain in them or in log-loss."""
        if self.agree < other.agree or self.wrong_sign > other.wrong_sign:
            return False
        gain = (self.agree - 2 * self.wrong_sign) - (other.agree - 2 * other.wrong_sign)
        return gain > 0 or self.log_loss < other.log_loss


@dataclass(frozen=True, slots=True)
class Moved:
    """What came of a learner's ratings. `offset_CF` [3, F] is None where the shipped heads go on.

    `shipped` and `moved` are figures of both on ratings that the moved ones had not seen; None with too few ratings, or
    of one sign alone.
    """

    ratings: int
    offset_CF: Floats | None = None
    shipped: Figures | None = None
    moved: Figures | None = None

    def facts(self) -> dict[str, Any]:
        return {
            "ratings": self.ratings,
            "in_use": self.offset_CF is not None,
            "agree_before": self.shipped.agree if self.shipped else None,
            "agree_after": self.moved.agree if self.moved else None,
        }


class PersonalHeads:
    """Fits each learner's offset when they have rated something new, and keeps it until then. Threads may share it."""

    def __init__(self, heads: Heads, embedding: Embedding, ratings: Ratings, min_agreement: float) -> None:
        self._heads, self._embedding, self._min_agreement = heads, embedding, min_agreement
        self._store = ratings
        self._known: dict[str, tuple[int, tuple[Rating, ...], Moved]] = {}
        self._lock = threading.Lock()

    def offset(self, learner: str, *, without: str) -> Floats | None:
        with self._lock:
            ratings, moved = self._of(learner)
        others = tuple(rating for rating in ratings if rating.turn_id != without)
        return (moved if len(others) == len(ratings) else self.fit(others)).offset_CF

    def facts(self) -> dict[str, Any]:
        with self._lock:
            return {learner: moved.facts() for learner, (_, ratings, moved) in self._known.items() if ratings}

    def fit(self, ratings: Sequence[Rating]) -> Moved:
        few = len({same_words(rating.text) for rating in ratings}) < FEWEST_TEXTS
        if few or not {1, -1} <= {rating.score for rating in ratings}:
            return Moved(len(ratings))
        return fit(self._heads, self._rows(ratings), ratings, self._min_agreement)

    def _of(self, learner: str) -> tuple[tuple[Rating, ...], Moved]:
        newest = self._store.newest_rating()
        seen, ratings, moved = self._known.pop(learner, (0, (), Moved(0)))
        if newest != seen:
            found = as_ratings(self._store.rated_turns(learner, MOST))
            ratings, moved = (ratings, moved) if found == ratings else (found, self.fit(found))
        self._known[learner] = (newest, ratings, moved)  # the one that was used last stands last
        if len(self._known) > LEARNERS:
            del self._known[next(iter(self._known))]
        return ratings, moved

    def _rows(self, ratings: Sequence[Rating]) -> Floats:
        """Features [N, F]."""
        raw_ND = self._embedding.embed([rating.text for rating in ratings])
        center_D = self._heads.center
        rows = [
            features(r.text, r.question, raw_D, center_D) for r, raw_D in zip(ratings, raw_ND, strict=True)
        ]
        return np.stack(rows)


# ── the fit ───────────────────────────────────────────────────────────────────────────────────────────────
def fit(heads: Heads, rows_NF: Floats, ratings: Sequence[Rating], min_agreement: float) -> Moved:
    """Fit the offset, and keep it only if its like does better on ratings left out."""
    score_N = np.array([rating.score for rating in ratings])
    target_NC = (score_N[:, None] == np.array(CLASSES)).astype(np.float64)
    shipped_NMC = np.stack([heads.logits(row_F) for row_F in rows_NF]).astype(np.float64)
    gram_NN = rows_NF.astype(np.float64) @ rows_NF.T
    held_out_NMC = shipped_NMC + held_out(gram_NN, shipped_NMC, target_NC, folds(ratings))[:, None]
    before, after = (figures(logits, score_N, min_agreement) for logits in (shipped_NMC, held_out_NMC))
    if not after.better_than(before):
        return Moved(len(ratings), None, before, after)
    offset_CF = (dual(gram_NN, shipped_NMC, target_NC).T @ rows_NF).astype(np.float32)
    return Moved(len(ratings), offset_CF, before, after)


def dual(gram_NN: Doubles, shipped_NMC: Doubles, target_NC: Doubles, strength: float = STRENGTH) -> Doubles:
    """α [N, C] with Δ = αᵀX. Accelerated gradient descent on Δ (Nesterov 1983), written in α.

    The loss bends by no more than half the top eigenvalue of the Gram matrix, which its row sums bound.
    """
    bend = 0.5 * float(np.abs(gram_NN).sum(axis=1).max()) + 1 / strength
    root = (bend * strength) ** 0.5
    momentum = (root - 1) / (root + 1)
    current_NC = ahead_NC = np.zeros_like(target_NC)
    for _ in range(MAX_STEPS):
        logits_NMC = shipped_NMC + (gram_NN @ ahead_NC)[:, None]
        slope_NC = softmax(logits_NMC).mean(axis=1) - target_NC + ahead_NC / strength
        following_NC = ahead_NC - slope_NC / bend
        ahead_NC = following_NC + momentum * (following_NC - current_NC)
        current_NC = following_NC
        if np.abs(slope_NC).max() < TOLERANCE:
            break
    return current_NC


def held_out(
    gram_NN: Doubles, shipped_NMC: Doubles, target_NC: Doubles, fold_N: NDArray[np.int64]
) -> Doubles:
    """How far each rating's logits would be moved by those of the other folds [N, C]."""
    moved_NC = np.zeros_like(target_NC)
    for fold in np.unique(fold_N):
        out, seen = fold_N == fold, fold_N != fold
        alpha_SC = dual(gram_NN[np.ix_(seen, seen)], shipped_NMC[seen], target_NC[seen])
        moved_NC[out] = gram_NN[np.ix_(out, seen)] @ alpha_SC
    return moved_NC


def same_words(text: str) -> str:
    """Texts that differ only in case, blanks and punctuation are one."""
    return "".join(char for char in text.casefold() if char.isalnum()) or text.strip()


def folds(ratings: Sequence[Rating]) -> NDArray[np.int64]:
    """The fold of each rating [N]: equal texts share one, and each fold has its part of every score."""
    texts = [same_words(rating.text) for rating in ratings]
    first = {text: rating.score for text, rating in zip(reversed(texts), reversed(ratings), strict=True)}
    order = {text: number for number, text in enumerate(sorted(first, key=lambda text: (first[text], text)))}
    return np.array([order[text] % FOLDS for text in texts])


def figures(logits_NMC: Doubles, score_N: NDArray[np.int64], min_agreement: float) -> Figures:
    p_NMC = softmax(logits_NMC)
    found = [vote(p_MC, min_agreement) for p_MC in p_NMC]
    spoken = [
        (each.score, int(score)) for each, score in zip(found, score_N, strict=True) if each is not None
    ]
    told_N = np.searchsorted(CLASSES, score_N)
    likely_N = p_NMC.mean(axis=1)[np.arange(len(score_N)), told_N]
    return Figures(
        agree=sum(said == score for said, score in spoken),
        wrong_sign=sum(score != 0 and said == -score for said, score in spoken),
        log_loss=float(-np.log(np.maximum(likely_N, 1e-12)).sum()),
    )
