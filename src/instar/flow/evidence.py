"""What the figures say about two versions. Plain functions of plain numbers.

`not_worse`      a proposed version against the serving one, on the same held-back turns
`worse_live`     a serving version against its parent, by what users said of their answers
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

ENOUGH = 30
"""Held-back turns below which nothing is concluded."""
MARGIN = 0.1
"""How far below one half the win share of a version may lie that counts as no worse."""
CONFIDENCE = 0.95
DRAWS = 2000

FIRST_LOOK = 20
"""Judged turns of a version at the first comparison with its parent; the others are at twice as many each."""
LOOKS = 5
FALSE_ALARM = 0.05
"""How often at most a version that is as good as its parent is taken back, over all looks together."""


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
    """Good and judged answers of a version and of its parent, and how likely so great a fall is by chance."""

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
    """Compare what users said (+1, −1) of a version with what they said of its parent; None while it is too early.

    It is looked at when the version has 20, 40, 80, … judged turns, five times at most, each time at a fifth of the
    level (Bonferroni), so that looking again and again raises no false alarm. The parent needs 20 as well; of a long
    history its last ones are taken, four times as many as the version has.
    """
    looks = [FIRST_LOOK * 2**k for k in range(LOOKS) if FIRST_LOOK * 2**k <= len(scores)]
    if not looks or len(before) < FIRST_LOOK:
        return None
    mine, theirs = scores[: looks[-1]], before[-4 * looks[-1] :]
    good, good_before = mine.count(1), theirs.count(1)
    p_value = fisher(good, len(mine) - good, good_before, len(theirs) - good_before)
    return LiveComparison(good, len(mine), good_before, len(theirs), p_value, FALSE_ALARM / LOOKS)
