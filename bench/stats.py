"""Shares with bounds. "Lower 95 %" is one-sided: the value is above it with 95 % confidence. An interval (`low`,
`high`) is two-sided."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Z_ONE_SIDED = 1.6448536269514722
Z_TWO_SIDED = 1.959963984540054


@dataclass(frozen=True, slots=True)
class Share:
    """k of n, with Wilson's score bounds (one-sided 95 % each)."""

    k: int
    n: int

    @property
    def value(self) -> float:
        return self.k / self.n if self.n else math.nan

    @property
    def lower(self) -> float:
        return wilson(self.k, self.n)[0]

    @property
    def upper(self) -> float:
        return wilson(self.k, self.n)[1]

    def json(self) -> dict[str, float | int | None]:
        if not self.n:
            return {"k": 0, "n": 0, "share": None, "lower95": None, "upper95": None}
        return {
            "k": self.k,
            "n": self.n,
            "share": round(self.value, 4),
            "lower95": round(self.lower, 4),
            "upper95": round(self.upper, 4),
        }


def share(flags: Sequence[bool]) -> Share:
    return Share(sum(flags), len(flags))


def wilson(k: int, n: int, z: float = Z_ONE_SIDED) -> tuple[float, float]:
    """Wilson's score interval for k successes in n trials (E. B. Wilson, 1927). Needs n > 0."""
    p, z2 = k / n, z * z
    centre = (p + z2 / (2 * n)) / (1 + z2 / n)
    half = z / (1 + z2 / n) * math.sqrt(p * (1 - p) / n + z2 / (4 * n * n))
    return max(0.0, centre - half), min(1.0, centre + half)


def ratio_lower(after: Share, before: Share, z: float = Z_ONE_SIDED) -> float:
    """Lower bound of after/before for independent shares: Katz's log interval (Katz et al., 1978) with half
    a case added to hits and to misses, so that shares of 1 keep an uncertainty."""
    if not after.k or not before.k:
        return 0.0
    a, n, b, m = after.k + 0.5, after.n + 1, before.k + 0.5, before.n + 1
    spread = math.sqrt(1 / a - 1 / n + 1 / b - 1 / m)
    return math.exp(math.log((a / n) / (b / m)) - z * spread)


Groups = dict[str, list[bool]]
"""Flags of the answers to one question, under the question."""


def bootstrap_ratio_lower(after: Groups, before: Groups, *, draws: int = 4000, seed: int = 0) -> float:
    """Lower 95 % bound of after/before when answers to one question resemble each other: questions are drawn
    with replacement, before and after together."""
    keys = sorted(set(after) & set(before))
    if not keys:
        return 0.0
    drawn = np.random.default_rng(seed).integers(len(keys), size=(draws, len(keys)))
    up, down = _shares_of(after, keys, drawn), _shares_of(before, keys, drawn)
    ratios = np.divide(up, down, out=np.zeros_like(up), where=down > 0)
    return float(np.sort(ratios)[int(0.05 * draws)])


def bootstrap_share(groups: Groups, *, draws: int = 4000, seed: int = 0) -> tuple[float, float]:
    """Two-sided 95 % interval of a share when the flags of one group resemble each other: groups are drawn with
    replacement. Needs a group."""
    keys = sorted(groups)
    drawn = np.random.default_rng(seed).integers(len(keys), size=(draws, len(keys)))
    shares = np.sort(_shares_of(groups, keys, drawn))
    return float(shares[int(0.025 * draws)]), float(shares[int(0.975 * draws)])


def interval(groups: Groups) -> dict[str, float | int | None]:
    """k of n with a two-sided 95 % interval: the wider of Wilson's and a bootstrap over the groups, on each side."""
    flags = [flag for group in groups.values() for flag in group]
    k, n = sum(flags), len(flags)
    if not n:
        return {"k": 0, "n": 0, "share": None, "low": None, "high": None}
    ends = wilson(k, n, Z_TWO_SIDED), bootstrap_share(groups)
    low, high = min(e[0] for e in ends), max(e[1] for e in ends)
    return {"k": k, "n": n, "share": round(k / n, 4), "low": round(low, 4), "high": round(high, 4)}


def difference(a: tuple[int, int], b: tuple[int, int]) -> tuple[float, float, float]:
    """a − b of two independent shares (k, n) with a two-sided 95 % interval by Newcombe's hybrid of Wilson's
    (R. G. Newcombe, 1998, method 10). Needs n > 0 in both."""
    (ka, na), (kb, nb) = a, b
    pa, pb = ka / na, kb / nb
    (la, ua), (lb, ub) = wilson(ka, na, Z_TWO_SIDED), wilson(kb, nb, Z_TWO_SIDED)
    down = math.sqrt((pa - la) ** 2 + (ub - pb) ** 2)
    up = math.sqrt((ua - pa) ** 2 + (pb - lb) ** 2)
    return pa - pb, pa - pb - down, pa - pb + up


def _shares_of(groups: Groups, keys: Sequence[str], drawn: Any) -> Any:
    """Share of true flags in each draw of questions."""
    hits, counts = (np.array([f(groups[k]) for k in keys], dtype=float) for f in (sum, len))
    return hits[drawn].sum(1) / counts[drawn].sum(1)


def ratio(after: Groups, before: Groups) -> dict[str, float | None]:
    """after/before with the lower of both bounds: the careful reading."""
    a = share([f for flags in after.values() for f in flags])
    b = share([f for flags in before.values() for f in flags])
    if not a.n or not b.k:
        return {"ratio": None, "lower95": None}
    lower = min(ratio_lower(a, b), bootstrap_ratio_lower(after, before))
    return {"ratio": round(a.value / b.value, 4), "lower95": round(lower, 4)}


def percentile(values: Sequence[float], q: float) -> float:
    """The q-th percentile (0–100) with linear interpolation. Needs a value."""
    ordered = sorted(values)
    place = (len(ordered) - 1) * q / 100
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def bootstrap_percentile_ratio(
    after: Sequence[Sequence[float]],
    before: Sequence[Sequence[float]],
    q: float,
    *,
    draws: int = 2000,
    seed: int = 0,
) -> tuple[float, float, float]:
    """The q-th percentile of all values of `after` by that of `before`, with a two-sided 95 % interval. Values of one
    block resemble each other: whole blocks are drawn with replacement, of each side for itself. Needs a value."""
    generator = np.random.default_rng(seed)

    def drawn(blocks: Sequence[Sequence[float]]) -> Any:
        arrays = [np.asarray(block) for block in blocks]
        picks = generator.integers(len(arrays), size=(draws, len(arrays)))
        return np.array([np.percentile(np.concatenate([arrays[i] for i in pick]), q) for pick in picks])

    ratios = np.sort(drawn(after) / drawn(before))
    flat_after, flat_before = ([v for block in blocks for v in block] for blocks in (after, before))
    value = percentile(flat_after, q) / percentile(flat_before, q)
    low, high = float(ratios[int(0.025 * draws)]), float(ratios[int(0.975 * draws)])
    return round(value, 4), round(low, 4), round(high, 4)


def summary(values: Sequence[float]) -> dict[str, float | int | None]:
    """Count, mean, median, 95th percentile, largest; None where there is nothing."""
    if not values:
        return {"n": 0, "mean": None, "median": None, "p95": None, "max": None}
    return {
        "n": len(values),
        "mean": round(sum(values) / len(values), 3),
        "median": round(percentile(values, 50), 3),
        "p95": round(percentile(values, 95), 3),
        "max": round(max(values), 3),
    }
