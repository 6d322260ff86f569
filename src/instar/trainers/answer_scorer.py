"""Would this person be content with this answer? A small preference head over general features of a text.

It knows no wish. It is fitted anew for each update on what this one learner accepted and rejected, and tested on the
same verdicts by cross-validation; where it cannot tell them apart, there is no scorer and nothing may rest on one.

    length      of the text in characters, words and lines
    characters  how many there are of each Unicode category: capitals, digits, punctuation, dashes, symbols, …
    words       which of the words that recur in the learner's corrections stand in the answer, at its beginning, at
                its end
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from instar.records import JudgedAnswer

Floats = NDArray[np.float64]

CATEGORIES = (
    "Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Nd", "No", "Pc", "Pd", "Ps",
    "Pe", "Pi", "Pf", "Po", "Sm", "Sc", "Sk", "So", "Zs", "Cc", "Cf",
)  # fmt: skip
"""Unicode's general categories, those that occur in texts."""
EDGE_WORDS = 3
"""Words that count as an answer's beginning or end."""
OWN_WORDS = 16
"""Words of the learner's corrections that are looked for, the most frequent first."""
FEWEST = 4
"""Accepted answers, and rejected ones, without which nothing is fitted."""
LEAST_ACCURACY = 0.8
"""Balanced accuracy on held-out verdicts below which the scorer abstains. Chance is 0.5."""
ABOVE_CHANCE = 2.8
"""Standard errors that it must also stand above chance: of a few verdicts drawn by lot, .75 is no rarity."""
FOLDS = 5
PENALTY = 5.0
"""L2 penalty on standardised features, beside a sum of log-losses."""
CLIP = 4.0
"""Standard deviations at which a feature is clipped, so that one odd answer does not decide."""
NEWTON_STEPS = 30

_WORD = re.compile(r"\w+")


@dataclass(frozen=True, slots=True)
class AnswerScorer:
    """A fitted head. `accuracy` is its balanced accuracy in cross-validation."""

    accuracy: float
    words: tuple[str, ...]
    head: Head

    def probability(self, question: str, answer: str) -> float:
        """That the learner would accept the answer."""
        return float(self.head(features(question, answer, self.words)[None])[0])


def fit_scorer(history: Sequence[JudgedAnswer]) -> AnswerScorer | None:
    """The learner's scorer; None where there are too few verdicts, or it cannot tell them apart."""
    told = [h for h in history if h.score]
    if rarer(told) < FEWEST:
        return None
    words, rows_NF, accepted_N = as_table(told)
    accuracy = cross_validated(rows_NF, accepted_N)
    if accuracy < least_accuracy(accepted_N):
        return None
    return AnswerScorer(accuracy, words, Head.fit(rows_NF, accepted_N))


def least_accuracy(accepted_N: Floats) -> float:
    """What cross-validation must show. A coin's balanced accuracy on a and b verdicts has variance (1/a + 1/b) / 16."""
    yes = accepted_N.sum()
    error = math.sqrt(1 / yes + 1 / (len(accepted_N) - yes)) / 4
    return max(LEAST_ACCURACY, 0.5 + ABOVE_CHANCE * error)


def rarer(told: Sequence[JudgedAnswer]) -> int:
    """How many there are of the verdict that is rarer: accepted or rejected."""
    good = sum(h.score > 0 for h in told)
    return min(good, len(told) - good)


def as_table(told: Sequence[JudgedAnswer]) -> tuple[tuple[str, ...], Floats, Floats]:
    """The words that are looked for, the features (N, F), and 1 for accepted, 0 for rejected (N,)."""
    words = recurring_words([h.hint for h in told if h.hint])
    rows_NF = np.stack([features(h.question, h.answer, words) for h in told])
    return words, rows_NF, np.array([float(h.score > 0) for h in told])


# ── features ──────────────────────────────────────────────────────────────────────────────────────────────
def recurring_words(corrections: Sequence[str], most: int = OWN_WORDS) -> tuple[str, ...]:
    """The words that stand in the most corrections, in at least two; ties by the alphabet."""
    counts = Counter(word for text in corrections for word in set(_words(text)))
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return tuple(word for word, count in ordered if count > 1)[:most]


def features(question: str, answer: str, words: Sequence[str]) -> Floats:
    """One answer as numbers, shape (F,). A word that the question brought along does not count."""
    found, asked = _words(answer), set(_words(question))
    lines = [line for line in answer.splitlines() if line.strip()]
    counts = Counter(unicodedata.category(char) for char in answer)
    looked_for = [w for w in words if w not in asked]
    places = (set(found), set(found[:EDGE_WORDS]), set(found[-EDGE_WORDS:]))
    return np.array([
        math.log1p(len(answer)),
        math.log1p(len(found)),
        math.log1p(len(lines)),
        len(found) / max(1, len(lines)),
        *(math.log1p(counts[c]) for c in CATEGORIES),
        *(counts[c] / max(1, len(answer)) for c in CATEGORIES),
        *(float(word in place and word in looked_for) for word in words for place in places),
    ])  # fmt: skip


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


# ── the head ──────────────────────────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True, slots=True)
class Head:
    """Logistic regression with an L2 penalty on standardised features."""

    mean_F: Floats
    scale_F: Floats
    weights_G: Floats
    """One a feature, and the bias."""

    def __call__(self, rows_NF: Floats) -> Floats:
        """Probabilities, shape (N,)."""
        return _sigmoid(_standard(rows_NF, self.mean_F, self.scale_F) @ self.weights_G)

    @classmethod
    def fit(cls, rows_NF: Floats, accepted_N: Floats) -> Head:
        """By Newton's method (iteratively reweighted least squares); both classes weigh the same in sum."""
        mean_F, scale_F = rows_NF.mean(0), rows_NF.std(0) + 1e-6
        rows_NG = _standard(rows_NF, mean_F, scale_F)
        count, yes = len(accepted_N), accepted_N.sum()
        weight_N = count / 2 * np.where(accepted_N == 1, 1 / yes, 1 / (count - yes))
        penalty_G = np.full(rows_NG.shape[1], PENALTY)
        penalty_G[-1] = 1e-6  # the bias is free
        weights_G = np.zeros(rows_NG.shape[1])
        for _ in range(NEWTON_STEPS):
            said_N = _sigmoid(rows_NG @ weights_G)
            slope_G = rows_NG.T @ (weight_N * (said_N - accepted_N)) + penalty_G * weights_G
            bend_N = weight_N * np.maximum(said_N * (1 - said_N), 1e-4)
            bend_GG = (rows_NG * bend_N[:, None]).T @ rows_NG + np.diag(penalty_G)
            weights_G = weights_G - np.linalg.solve(bend_GG, slope_G)
        return cls(mean_F, scale_F, weights_G)


def _standard(rows_NF: Floats, mean_F: Floats, scale_F: Floats) -> Floats:
    return np.hstack([np.clip((rows_NF - mean_F) / scale_F, -CLIP, CLIP), np.ones((len(rows_NF), 1))])


def _sigmoid(x_N: Floats) -> Floats:
    return 1 / (1 + np.exp(-np.clip(x_N, -30, 30)))


def cross_validated(rows_NF: Floats, accepted_N: Floats) -> float:
    """Balanced accuracy on folds that the head did not see, each with its share of both classes."""
    fold_N = np.empty(len(accepted_N), dtype=int)
    for label in (0.0, 1.0):
        where = np.flatnonzero(accepted_N == label)
        fold_N[where] = np.arange(len(where)) % FOLDS
    said_N = np.empty(len(accepted_N))
    for fold in range(FOLDS):
        seen = fold_N != fold
        if not seen.all():
            said_N[~seen] = Head.fit(rows_NF[seen], accepted_N[seen])(rows_NF[~seen])
    right_N = (said_N > 0.5) == (accepted_N == 1)
    return float((right_N[accepted_N == 1].mean() + right_N[accepted_N == 0].mean()) / 2)
