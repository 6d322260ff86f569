"""Sampling: the distribution, the raw log-probs, and seeds."""

from __future__ import annotations

import math
import random
from collections import Counter

import pytest
import torch

from instar.engines.embedded.sampler import Choosing, is_usable, sample


def draw(logits: torch.Tensor, count: int, temperature: float, top_p: float) -> Counter[int]:
    row = Choosing(temperature, top_p, random.Random(1))
    found: Counter[int] = Counter()
    for _ in range(count // 500):
        found.update(s.token_id for s in sample(logits.repeat(500, 1), [row] * 500))
    return found


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_frequencies_follow_the_tempered_distribution(temperature: float) -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0, -30.0]])
    expected = torch.softmax(logits[0] / temperature, dim=-1).tolist()
    found = draw(logits, 10_000, temperature, 1.0)
    for token_id, p in enumerate(expected):
        assert found[token_id] / 10_000 == pytest.approx(p, abs=5 * math.sqrt(0.25 / 10_000))


def test_top_p_keeps_the_smallest_set_that_reaches_it() -> None:
    logits = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log()
    assert set(draw(logits, 2_000, 1.0, 0.49)) == {0}
    assert set(draw(logits, 2_000, 1.0, 0.51)) == {0, 1}
    assert set(draw(logits, 2_000, 1.0, 0.81)) == {0, 1, 2}
    kept = draw(logits, 10_000, 1.0, 0.7)
    assert kept[0] / 10_000 == pytest.approx(0.5 / 0.8, abs=0.03)


def test_top_p_beyond_the_likeliest_64_falls_back_to_all() -> None:
    flat = torch.zeros(1, 200)
    assert len(draw(flat, 4_000, 1.0, 0.9)) in (180, 181)
    flat[0, 17] = 20.0
    assert set(draw(flat, 500, 1.0, 0.9)) == {17}


def test_logprob_is_raw_whatever_the_sampling() -> None:
    logits = torch.randn(3, 50, generator=torch.Generator().manual_seed(0))
    expected = torch.log_softmax(logits, dim=-1)
    rows = [
        Choosing(0.0, 1.0, random.Random(1)),
        Choosing(0.3, 1.0, random.Random(2)),
        Choosing(1.7, 0.5, random.Random(3), alternatives=4),
    ]
    found = sample(logits, rows)
    for row, sampled in zip(expected, found, strict=True):
        assert sampled.logprob == pytest.approx(float(row[sampled.token_id]), abs=1e-5)
    assert found[0].token_id == int(logits[0].argmax())
    assert [len(sampled.top) for sampled in found] == [0, 0, 4]
    assert found[2].top[0][1] == pytest.approx(float(expected[2].max()), abs=1e-5)


def test_seed_fixes_every_draw_of_a_row_in_any_company() -> None:
    logits = torch.randn(1, 40, generator=torch.Generator().manual_seed(4))

    def answer(company: int) -> list[int]:
        mine = Choosing(1.0, 0.95, random.Random(9))
        others = [Choosing(1.0, 1.0, random.Random(100 + i)) for i in range(company)]
        return [sample(logits.repeat(company + 1, 1), [*others, mine])[-1].token_id for _ in range(20)]

    assert answer(0) == answer(0) == answer(3)


def test_tiny_temperature_is_greedy() -> None:
    logits = torch.tensor([[1.0, 1.5, 0.0]])
    assert draw(logits, 500, 1e-9, 1.0) == Counter({1: 500})


def test_impossible_tokens_are_never_sampled() -> None:
    logits = torch.tensor([[float("-inf"), 0.0, float("-inf"), 0.0, float("-inf")]])
    assert set(draw(logits, 2_000, 1.0, 1.0)) == {1, 3}


def test_broken_row_is_told_and_leaves_its_neighbours_alone() -> None:
    logits = torch.randn(2, 20)
    logits[0, 3] = float("nan")
    broken, whole = sample(logits, [Choosing(1.0, 1.0, random.Random(0))] * 2)
    assert not is_usable(broken)
    assert is_usable(whole)
