"""What the figures say about two versions. Plain functions of plain numbers.

`not_worse`      a proposed version against the serving one, on the same held-back turns
`worse_live`     answers since a version served against those before it, by what users said of them
`to_blame`       which version of a line that tells to take back, if any
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

ENOUGH = 30
"""Held-back turns below which nothing is concluded."""
MARGIN = 0.1
"""How far below one half the win share of a version may lie that counts as no worse."""
CONFIDENCE = 0.95
DRAWS = 2000

FIRST_LOOK = 20
"""Judged turns since a version at the first comparison with those before it; the others are at twice as many each."""
LOOKS = 5
LEVEL = 0.005
"""Of each look. A line of versions is looked at from each of them: in simulations one that stays as good as it was is
taken back in at most 3.5 % of 100 judged turns with an update every eight."""
LIKELIER = 2.0
"""Nats by which another beginning of a fall must be likelier than a version's for that version not to be blamed."""
RISE = 0.2
"""Of the newer half of the answers, the share more than of the older half that must be good to say that it mends."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean with one-sided bounds: it is above `lower`, and below `upper`, each with 95 % confidence."""

    mean: float
    lower: float
    upper: float
    count: int


def win(difference: float, scale: float) -> float:
    """Probability that the better one is preferred: logistic in the difference (R. Bradley, M. Terry, 1952).

    0.5 where there is no difference, so that noise of a hundredth of a nat does not decide a turn.
    """
    return 0.5 * (1 + math.tanh(difference / scale / 2))


def bootstrap(values: Sequence[float], seed: int) -> Interval:
    """Percentile bootstrap of the mean of paired values (B. Efron, R. Tibshirani, 1993, chapter 13). Needs a value."""
    choose = random.Random(seed)
    count = len(values)
    means = sorted(sum(choose.choices(values, k=count)) / count for _ in range(DRAWS))
    place = int((1 - CONFIDENCE) * DRAWS)
    return Interval(sum(values) / count, means[place], means[DRAWS - 1 - place], count)


def not_worse(wins: Sequence[float], seed: int) -> tuple[bool | None, Interval | None]:
    """Non-inferiority: is the lower bound of the win share above one half less the margin?

    None where there is not enough evidence. The test is one-sided at 5 % (as D. Schuirmann's two tests of 1987, of
    which only the one against "worse" is asked here).
    """
    if not wins:
        return None, None
    interval = bootstrap(wins, seed)
    if len(wins) < ENOUGH:
        return None, interval
    return interval.lower > 0.5 - MARGIN, interval


@lru_cache(maxsize=4096)  # the same figures are looked at again and again
def fisher(good: int, bad: int, good_before: int, bad_before: int) -> float:
    """One-sided p-value of Fisher's exact test (1935): so few good ones or fewer, were both alike."""
    all_good, size = good + good_before, good + bad
    total = size + good_before + bad_before
    ways = [
        math.comb(all_good, k) * math.comb(total - all_good, size - k)
        for k in range(max(0, size - total + all_good), min(all_good, size) + 1)
    ]
    at_most = good - max(0, size - total + all_good) + 1
    return sum(ways[:at_most]) / sum(ways)


@dataclass(frozen=True, slots=True)
class LiveComparison:
    """Good and judged answers since a version and before it, and how likely so great a fall is by chance."""

    good: int
    judged: int
    good_before: int
    judged_before: int
    p_value: float
    level: float

    @property
    def worse(self) -> bool:
        return self.p_value < self.level


def worse_live(scores: Sequence[int], before: Sequence[int]) -> LiveComparison | None:
    """Compare what users said (+1, −1) since a version served with what they said before; None while it is too early.

    It is looked at when there are 20, 40, 80, … judged turns since, five times at most, each time at a strict level,
    so that looking again and again raises no false alarm. Before it 20 are needed as well; of a long history the
    last ones are taken, four times as many as there are since.
    """
    if (looked := _looked_at(scores, before)) is None:
        return None
    mine, theirs = looked
    good, good_before = mine.count(1), theirs.count(1)
    p_value = fisher(good, len(mine) - good, good_before, len(theirs) - good_before)
    return LiveComparison(good, len(mine), good_before, len(theirs), p_value, LEVEL)


def _looked_at(scores: Sequence[int], before: Sequence[int]) -> tuple[Sequence[int], Sequence[int]] | None:
    looks = [FIRST_LOOK * 2**k for k in range(LOOKS) if FIRST_LOOK * 2**k <= len(scores)]
    if not looks or len(before) < FIRST_LOOK:
        return None
    return scores[: looks[-1]], before[-4 * looks[-1] :]


def to_blame(line: Sequence[Sequence[int]], examined: int) -> tuple[int, LiveComparison] | None:
    """Which version must be taken back with all that came from it: its place in the line, and the figures.

    `line` are scores of the version in force, of its parent, and so on, each oldest first; the first `examined` may be
    blamed. While it learns a version serves a few turns only, too few to tell, so answers since it are told from those
    before it, whoever gave them; of several falls the clearest counts. Nobody is blamed for one that began elsewhere,
    as when the user wants something else from one message to the next, or that mends already.
    """
    found: list[tuple[int, LiveComparison]] = []
    for place in range(min(examined, len(line) - 1)):
        compared = worse_live(*_split(line, place))
        if compared is not None and compared.worse:
            found.append((place, compared))
    if not found:
        return None
    place, compared = min(found, key=lambda one: one[1].p_value)
    looked = _looked_at(*_split(line, place))
    assert looked is not None
    return None if mends(looked[0]) or began_elsewhere(*looked) else (place, compared)


def _split(line: Sequence[Sequence[int]], place: int) -> tuple[list[int], list[int]]:
    """Scores since the version at that place, and before it, oldest first."""
    since, before = reversed(line[: place + 1]), reversed(line[place + 1 :])
    return [s for scores in since for s in scores], [s for scores in before for s in scores]


def mends(scores: Sequence[int]) -> bool:
    """Whether the newer half of these answers is clearly better than the older: then going back undoes what helped."""
    half = len(scores) // 2
    return scores[half:].count(1) - scores[:half].count(1) >= RISE * half


def began_elsewhere(scores: Sequence[int], before: Sequence[int]) -> bool:
    """Whether a change from one share of good answers to another is clearly likelier in mid-version than where
    `before` ends (the likelihood ratio of a change point, D. Hinkley, 1970)."""
    all_scores = [*before, *scores]
    good, best, told = all_scores.count(1), -math.inf, 0
    for place, score in enumerate(all_scores[:-4], start=1):
        told += score == 1
        if place >= 4:
            best = max(best, _fit(told, place) + _fit(good - told, len(all_scores) - place))
    here = _fit(before.count(1), len(before)) + _fit(scores.count(1), len(scores))
    return best - here > LIKELIER


def _fit(good: int, count: int) -> float:
    """Log-likelihood of so many good ones under their own share."""
    return sum(k * math.log(k / count) for k in (good, count - good) if k)
