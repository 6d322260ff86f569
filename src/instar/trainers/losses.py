"""The four components of the loss, as plain functions of log-probs.

Shapes: T response tokens (of one sample or of several laid end to end), V vocabulary, K kept tokens. All inputs
are fp32 natural logarithms of the raw policy; all results are per token and not yet weighted.
"""

from __future__ import annotations

import torch
from torch import Tensor

IMPORTANCE_CEILING = 2.0
"""Largest weight that a token may get for having become likelier since it was sampled."""

_FLOOR = 1e-6
"""Smallest probability of the tail: below it, bf16 rounding would decide the sign of the loss."""


def importance_T(old_logp_T: Tensor, mu_T: Tensor) -> Tensor:
    """min(π_old / μ, 2), detached: corrects for who sampled (μ, the engine) and who learns (π_old).

    Truncated importance sampling as in "Your efficient RL framework secretly brings you off-policy RL training"
    (Yao et al., 2025), per token: a product over tokens would explode with the length.
    """
    return (old_logp_T - mu_T).exp().clamp(max=IMPORTANCE_CEILING).detach()


def policy_gradient_T(
    logp_T: Tensor, old_logp_T: Tensor, advantage_T: Tensor, weight_T: Tensor, low: float, high: float
) -> Tensor:
    """Clipped surrogate −w · min(r·A, clip(r, 1−low, 1+high)·A) with r = π_θ/π_old per token.

    PPO (Schulman et al., 2017, eq. 7) with the unequal clip of DAPO (Yu et al., 2025, eq. 10).
    """
    ratio_T = (logp_T - old_logp_T.detach()).exp()
    clipped_T = ratio_T.clamp(1.0 - low, 1.0 + high)
    return -weight_T * torch.minimum(ratio_T * advantage_T, clipped_T * advantage_T)


def log_tail(logp_TK: Tensor) -> Tensor:
    """log of the probability that the K kept tokens leave over, shape (T,)."""
    return (1.0 - logp_TK.exp().sum(-1)).clamp(min=_FLOOR).log()


def reverse_kl_T(logp_TV: Tensor, teacher_ids_TK: Tensor, teacher_logp_TK: Tensor) -> Tensor:
    """KL(π_θ ‖ teacher) over the teacher's K likeliest tokens and one bucket for all others.

    Reverse KL on the student's own tokens: on-policy distillation (Agarwal et al., 2024; Gu et al., 2024). The
    bucket keeps the sum a KL (≥ 0, zero only at equality of the K + 1 probabilities), so mass cannot hide in
    the tokens that were left out.
    """
    logp_TK = logp_TV.gather(-1, teacher_ids_TK)
    inside_T = (logp_TK.exp() * (logp_TK - teacher_logp_TK)).sum(-1)
    tail_T = log_tail(logp_TK)
    return inside_T + tail_T.exp() * (tail_T - log_tail(teacher_logp_TK))


def forward_kl_T(logp_TV: Tensor, reference_logp_TV: Tensor) -> Tensor:
    """KL(reference ‖ π_θ) over the whole vocabulary: the pull to base, which punishes what was forgotten."""
    return (reference_logp_TV.exp() * (reference_logp_TV - logp_TV)).sum(-1)


def guided(plain_logp_TV: Tensor, hinted_logp_TV: Tensor, strength: float) -> Tensor:
    """A teacher that takes the hint more seriously than the hinted model does.

    log-softmax of plain + strength · (hinted − plain): classifier-free guidance for text (Sanchez et al., 2023).
    Strength 1 is the hinted model itself.
    """
    if strength == 1.0:
        return hinted_logp_TV
    return torch.log_softmax(plain_logp_TV + strength * (hinted_logp_TV - plain_logp_TV), -1)


def weighted_sum(loss_T: Tensor, weight_T: Tensor) -> Tensor:
    """Σ weight · loss over tokens with a weight; a token without one adds exactly zero, NaN or not."""
    chosen_T = weight_T != 0
    if not bool(chosen_T.any()):
        return loss_T.new_zeros(())
    return (loss_T[chosen_T] * weight_T[chosen_T]).sum()
