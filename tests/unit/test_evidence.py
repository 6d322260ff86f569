"""The tests that decide about versions, on data whose truth is known."""

from __future__ import annotations

import random
from collections.abc import Callable
from math import comb

import pytest
from hypothesis import given
from hypothesis import strategies as st

from instar.flow.evidence import ENOUGH, bootstrap, fisher, not_worse, to_blame, win, worse_live


# ── held-back turns ───────────────────────────────────────────────────────────────────────────────────────
def simulated_wins(chance: random.Random, mean: float, count: int) -> list[float]:
    return [win(chance.gauss(mean, 0.25), 0.25) for _ in range(count)]


def share_passing(mean: float, count: int, runs: int = 200) -> float:
    chance = random.Random(3)
    return sum(bool(not_worse(simulated_wins(chance, mean, count), 0)[0]) for _ in range(runs)) / runs


def test_a_version_at_the_margin_passes_as_seldom_as_the_level_says() -> None:
    """Mean win share .4: a difference of about −.125 nats with this spread."""
    chance = random.Random(1)
    found = simulated_wins(chance, -0.115, 20_000)
    assert sum(found) / len(found) == pytest.approx(0.4, abs=0.01)
    assert share_passing(-0.115, 40) < 0.10


def test_a_version_that_is_as_good_passes_and_a_worse_one_does_not() -> None:
    assert share_passing(0.0, 40) > 0.8
    assert share_passing(0.1, 40) > 0.99
    assert share_passing(-0.25, 40) == 0.0


def test_too_few_turns_decide_nothing() -> None:
    assert not_worse([], 0) == (None, None)
    verdict, interval = not_worse([0.0] * (ENOUGH - 1), 0)
    assert verdict is None
    assert interval is not None
    assert interval.mean == 0.0
    assert not_worse([0.0] * ENOUGH, 0)[0] is False
    assert not_worse([0.5] * ENOUGH, 0)[0] is True


def test_the_same_figures_and_seed_give_the_same_interval() -> None:
    values = [0.1, 0.9, 0.4, 0.6, 0.7] * 8
    assert bootstrap(values, 5) == bootstrap(values, 5)
    assert bootstrap(values, 5) != bootstrap(values, 6)
    assert bootstrap(values, 5).lower < 0.54 < bootstrap(values, 5).upper


@given(st.floats(-5, 5), st.floats(0.05, 1.0))
def test_a_win_of_one_is_a_loss_of_the_other(difference: float, scale: float) -> None:
    assert win(difference, scale) + win(-difference, scale) == pytest.approx(1.0)
    assert win(0.0, scale) == 0.5
    assert win(1.0, 0.25) > 0.98


# ── live feedback ─────────────────────────────────────────────────────────────────────────────────────────
@given(st.integers(0, 12), st.integers(0, 12), st.integers(0, 12), st.integers(0, 12))
def test_fishers_p_is_the_hypergeometric_tail(a: int, b: int, c: int, d: int) -> None:
    total, good, size = a + b + c + d, a + c, a + b
    expected = sum(
        comb(good, k) * comb(total - good, size - k) for k in range(a + 1) if size - k <= total - good
    ) / comb(total, size)
    assert fisher(a, b, c, d) == pytest.approx(expected)


def test_fishers_own_example() -> None:
    """The lady and the tea: all four told right by chance, 1 in 70; here all four told wrong."""
    assert fisher(0, 4, 4, 0) == pytest.approx(1 / 70)


def lives(good: float, good_before: float, runs: int, seed: int = 7) -> float:
    """Share of versions that are taken back when they are looked at after each of 300 judged turns."""
    chance, alarms = random.Random(seed), 0
    for _ in range(runs):
        before = [1 if chance.random() < good_before else -1 for _ in range(chance.choice([20, 40, 100]))]
        scores = [1 if chance.random() < good else -1 for _ in range(320)]
        alarms += any(
            (found := worse_live(scores[:n], before)) is not None and found.worse
            for n in (19, 20, 40, 80, 160, 320)
        )
    return alarms / runs


@pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
def test_a_version_as_good_as_its_parent_is_seldom_taken_back(share: float) -> None:
    assert lives(share, share, 400) <= 0.05


def test_a_version_that_is_much_worse_is_taken_back() -> None:
    assert lives(0.4, 0.8, 200) > 0.9
    assert lives(0.9, 0.5, 100) == 0.0


def test_it_is_looked_at_only_when_there_is_twice_as_much_to_see() -> None:
    good = [1] * 40
    assert worse_live([-1] * 19, good) is None
    assert worse_live([-1] * 40, good[:19]) is None
    first = worse_live([-1] * 39, good)
    assert first is not None
    assert (first.judged, first.judged_before, first.worse) == (20, 40, True)
    second = worse_live([-1] * 20 + [1] * 20, good)
    assert second is not None
    assert (second.good, second.judged) == (20, 40)
    assert worse_live([-1] * 20, [1] * 1000).judged_before == 80  # type: ignore[union-attr]


# ── a line of versions, one every eight judged turns ──────────────────────────────────────────────────────
EVERY = 8
Share = Callable[[int, int], float]
"""Turn, number of the version → chance that its user likes the answer."""


def live_through(chance: random.Random, liked: Share, turns: int = 100) -> int | None:
    """The number of the version that is blamed first in so many turns after 40 of base; None if none is."""
    line = [[1 if chance.random() < liked(-1, 0) else -1 for _ in range(40)]]
    for turn in range(turns):
        if turn % EVERY == 0:
            line.insert(0, [])
        line[0].append(1 if chance.random() < liked(turn, len(line) - 1) else -1)
        # A look's turns are its first 20, 40, …: between two versions nothing new is seen.
        if turn % EVERY == EVERY - 1 or turn == turns - 1:
            blamed = to_blame(line, len(line))
            if blamed is not None:
                return len(line) - 1 - blamed[0]
    return None


def blamed_in(runs: int, liked: Callable[[random.Random], Share]) -> list[int | None]:
    chance = random.Random(11)
    return [live_through(chance, liked(chance)) for _ in range(runs)]


@pytest.mark.parametrize("share", [0.2, 0.5, 0.8, 0.9])
def test_versions_as_good_as_their_parents_are_seldom_taken_back_in_a_hundred_turns(share: float) -> None:
    found = blamed_in(150, lambda _: lambda turn, version: share)
    assert sum(name is not None for name in found) / len(found) <= 0.05


def test_a_fall_of_several_versions_is_seen_and_blamed_on_the_first_of_them() -> None:
    found = blamed_in(60, lambda _: lambda turn, version: 0.35 if version >= 4 else 0.85)
    assert sum(name is not None for name in found) / len(found) > 0.8
    assert sum(name in (3, 4, 5) for name in found) / len(found) > 0.7


def test_a_slow_slide_is_seen_too() -> None:
    found = blamed_in(60, lambda _: lambda turn, version: max(0.2, 0.85 - 0.05 * version))
    assert sum(name is not None for name in found) / len(found) > 0.7


LEARNED = (0.05, 0.15, 0.3, 0.5, 0.65, 0.8)
"""How a new wish is kept by the versions that follow it."""


def changes_their_mind(chance: random.Random) -> Share:
    at = 24 + chance.randrange(1, EVERY)  # version 4 serves then
    return lambda turn, version: 0.85 if turn < at else LEARNED[min(max(0, version - 4), 5)]


def test_who_wants_something_else_is_seldom_taken_for_a_worse_version() -> None:
    """Without the two exceptions nearly all of these would be."""
    found = blamed_in(100, changes_their_mind)
    assert sum(name is not None for name in found) / len(found) < 0.5


def test_only_those_that_may_be_examined_are_blamed() -> None:
    line = [[-1] * 10, [-1] * 10, [1] * 30]
    blamed = to_blame(line, 3)
    assert blamed is not None
    assert (blamed[0], blamed[1].judged, blamed[1].judged_before) == (1, 20, 30)
    assert to_blame(line, 1) is None
    assert to_blame(line[:2], 2) is None
