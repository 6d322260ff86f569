"""Losses: what has no weight adds nothing, and each formula is what its source says."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from instar.trainers import losses


def logp(rows: int, vocabulary: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.log_softmax(torch.randn(rows, vocabulary, generator=generator) * 2, -1)


@given(seed=st.integers(0, 10_000), kept=st.integers(1, 11))
@settings(max_examples=50, deadline=None)
def test_reverse_kl_is_zero_at_the_teacher_and_positive_elsewhere(seed: int, kept: int) -> None:
    teacher_TV, student_TV = logp(3, 12, seed), logp(3, 12, seed + 1)
    top = teacher_TV.topk(kept, -1)
    same_T = losses.reverse_kl_T(teacher_TV, top.indices, top.values)
    other_T = losses.reverse_kl_T(student_TV, top.indices, top.values)
    assert same_T.abs().max() < 1e-5
    assert (other_T > -1e-5).all()


def test_reverse_kl_over_the_whole_vocabulary_is_the_textbook_sum() -> None:
    teacher_TV, student_TV = logp(2, 6, 1), logp(2, 6, 2)
    everything_TK = torch.arange(6).expand(2, 6)
    expected_T = (student_TV.exp() * (student_TV - teacher_TV)).sum(-1)
    assert torch.allclose(losses.reverse_kl_T(student_TV, everything_TK, teacher_TV), expected_T, atol=1e-4)


def test_mass_that_hides_outside_the_kept_tokens_is_seen() -> None:
    teacher_TV = torch.log(torch.tensor([[0.6, 0.38, 0.01, 0.01]]))
    student_TV = torch.log(torch.tensor([[0.06, 0.038, 0.9, 0.002]]))
    top = teacher_TV.topk(2, -1)
    assert losses.reverse_kl_T(student_TV, top.indices, top.values)[0] > 2.0


def test_forward_kl_is_the_textbook_sum_and_zero_at_the_reference() -> None:
    a_TV, b_TV = logp(2, 6, 1), logp(2, 6, 2)
    assert losses.forward_kl_T(a_TV, a_TV).abs().max() < 1e-6
    expected_T = (b_TV.exp() * (b_TV - a_TV)).sum(-1)
    assert torch.allclose(losses.forward_kl_T(a_TV, b_TV), expected_T)


def test_importance_is_the_ratio_up_to_two_and_carries_no_gradient() -> None:
    old_T = torch.tensor([-1.0, -1.0, -1.0], requires_grad=True)
    weight_T = losses.importance_T(old_T, torch.tensor([-1.0, -0.5, -5.0]))
    assert weight_T.tolist() == pytest.approx([1.0, math.exp(-0.5), 2.0])
    assert not weight_T.requires_grad


@pytest.mark.parametrize(
    ("ratio", "advantage", "moves"),
    [(1.0, 1.0, True), (1.5, 1.0, False), (1.5, -1.0, True), (0.5, -1.0, False), (0.5, 1.0, True)],
)
def test_the_clip_stops_a_token_that_has_moved_far_enough(
    ratio: float, advantage: float, moves: bool
) -> None:
    old_T = torch.tensor([-2.0])
    now_T = (old_T + math.log(ratio)).requires_grad_(True)
    loss_T = losses.policy_gradient_T(now_T, old_T, torch.tensor([advantage]), torch.ones(1), 0.2, 0.28)
    (gradient_T,) = torch.autograd.grad(loss_T.sum(), now_T)
    assert bool(gradient_T.abs() > 0) is moves


def test_the_clip_is_wider_upwards() -> None:
    old_T = torch.zeros(1)
    for ratio, moves in ((1.25, True), (1.3, False)):
        now_T = torch.tensor([math.log(ratio)], requires_grad=True)
        loss_T = losses.policy_gradient_T(now_T, old_T, torch.ones(1), torch.ones(1), 0.2, 0.28)
        (gradient_T,) = torch.autograd.grad(loss_T.sum(), now_T)
        assert bool(gradient_T.abs() > 0) is moves


@given(
    values=st.lists(st.floats(-50, 50), min_size=4, max_size=4),
    weights=st.lists(st.sampled_from([0.0, 0.5, -1.0]), min_size=4, max_size=4),
)
@settings(max_examples=50, deadline=None)
def test_a_token_without_weight_adds_exactly_zero(values: list[float], weights: list[float]) -> None:
    loss_T = torch.tensor(values, requires_grad=True)
    total = losses.weighted_sum(loss_T, torch.tensor(weights))
    assert float(total) == pytest.approx(sum(v * w for v, w in zip(values, weights, strict=True)), abs=1e-3)
    if any(weights):
        (gradient_T,) = torch.autograd.grad(total, loss_T)
        assert gradient_T.tolist() == weights


def test_a_nan_without_weight_stays_out() -> None:
    loss_T = torch.tensor([float("nan"), 2.0])
    assert float(losses.weighted_sum(loss_T, torch.tensor([0.0, 0.5]))) == 1.0
    assert float(losses.weighted_sum(loss_T, torch.zeros(2))) == 0.0


def test_guidance_of_one_is_the_hinted_model_and_more_goes_beyond_it() -> None:
    plain_TV, hinted_TV = logp(2, 5, 3), logp(2, 5, 4)
    assert losses.guided(plain_TV, hinted_TV, 1.0) is hinted_TV
    beyond_TV = losses.guided(plain_TV, hinted_TV, 2.0)
    assert torch.allclose(beyond_TV.exp().sum(-1), torch.ones(2))
    gap_TV, wider_TV = hinted_TV - plain_TV, beyond_TV - plain_TV
    most_T = gap_TV.argmax(-1, keepdim=True)
    least_T = gap_TV.argmin(-1, keepdim=True)
    spread_T = (gap_TV.gather(-1, most_T) - gap_TV.gather(-1, least_T))[:, 0]
    wider_T = (wider_TV.gather(-1, most_T) - wider_TV.gather(-1, least_T))[:, 0]
    assert torch.allclose(wider_T, 2 * spread_T, atol=1e-4)
