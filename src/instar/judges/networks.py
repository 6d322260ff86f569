"""The heads themselves: m small networks with one hidden layer, each fitted on its own draw of examples.

    logits = V · relu(U · x + c) + b

numpy only. AdamW (Loshchilov and Hutter 2019) on mini-batches, dropout on the hidden layer (Srivastava et al. 2014), a
fixed number of passes, one seed a network.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from instar.judges.embedding import Floats

Reals = NDArray[np.floating[Any]]

HIDDEN = 192
EPOCHS = 14
BATCH = 128
RATE = 1e-3
DECAY = 0.1
DROPOUT = 0.5
BETAS = (0.9, 0.999)
EPSILON = 1e-8


@dataclass(frozen=True, slots=True)
class Networks:
    """m networks from D inputs through H hidden units to C classes.

    `hidden` [m, H, D], `hidden_bias` [m, H], `out` [m, C, H], `out_bias` [m, C].
    """

    hidden: Floats
    hidden_bias: Floats
    out: Floats
    out_bias: Floats

    def __len__(self) -> int:
        return len(self.out_bias)

    def first(self, count: int) -> Networks:
        return Networks(*(array[:count] for array in self.arrays().values()))

    def logits(self, input_D: Floats) -> Floats:
        """Of each network: [m, C]."""
        active_MH = np.maximum(self.hidden @ input_D + self.hidden_bias, 0)
        found: Floats = (self.out @ active_MH[:, :, None])[:, :, 0] + self.out_bias
        return found

    def arrays(self) -> dict[str, Floats]:
        return {field.name: getattr(self, field.name) for field in fields(self)}


def fit_networks(
    input_ND: Floats,
    class_N: NDArray[np.int64],
    seen_MN: NDArray[np.bool_],
    classes: int,
    seed: int,
    epochs: int = EPOCHS,
    hidden: int = HIDDEN,
) -> Networks:
    """One network for each row of `seen_MN`, which says what it sees. Inputs [N, D], classes 0 … C − 1."""
    fitted = [
        _fit(input_ND[seen_N], class_N[seen_N], classes, [seed, number], epochs, hidden)
        for number, seen_N in enumerate(seen_MN)
    ]
    return Networks(*(np.stack(arrays) for arrays in zip(*fitted, strict=True)))


def _fit(
    input_ND: Floats,
    class_N: NDArray[np.int64],
    classes: int,
    seed: list[int],
    epochs: int,
    hidden: int,
) -> list[Floats]:
    draw = np.random.default_rng(seed)
    shapes = ((hidden, input_ND.shape[1]), (hidden,), (classes, hidden), (classes,))
    weights = [_begin(draw, shape) for shape in shapes]
    first, second, step = [np.zeros_like(w) for w in weights], [np.zeros_like(w) for w in weights], 0
    for _ in range(epochs):
        order = draw.permutation(len(class_N))
        for at in range(0, len(order), BATCH):
            some = order[at : at + BATCH]
            kept = (draw.random((len(some), hidden), dtype=np.float32) >= DROPOUT) / np.float32(1 - DROPOUT)
            slopes = slopes_of(weights, input_ND[some], class_N[some], kept.astype(np.float32))
            step += 1
            for place, slope in enumerate(slopes):
                _adamw(weights[place], slope, first[place], second[place], step)
    return weights


def _begin(draw: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    """He et al. 2015 for matrices, zero for biases."""
    if len(shape) == 1:
        return np.zeros(shape, dtype=np.float32)
    found: Floats = (draw.standard_normal(shape) * np.sqrt(2 / shape[1])).astype(np.float32)
    return found


def slopes_of(
    weights: list[Floats], input_BD: Floats, class_B: NDArray[np.int64], kept_BH: Floats
) -> list[Floats]:
    """Gradients of the mean cross-entropy."""
    hidden_HD, hidden_bias_H, out_CH, out_bias_C = weights
    before_BH = input_BD @ hidden_HD.T + hidden_bias_H
    active_BH = np.maximum(before_BH, 0) * kept_BH
    logits_BC = active_BH @ out_CH.T + out_bias_C
    error_BC = softmax(logits_BC)
    error_BC[np.arange(len(class_B)), class_B] -= 1
    error_BC /= np.float32(len(class_B))
    back_BH = (error_BC @ out_CH) * kept_BH * (before_BH > 0)
    return [back_BH.T @ input_BD, back_BH.sum(axis=0), error_BC.T @ active_BH, error_BC.sum(axis=0)]


def softmax(logits_C: Reals) -> Reals:
    """Over the last axis."""
    grown_C = np.exp(logits_C - logits_C.max(axis=-1, keepdims=True))
    out: Reals = grown_C / grown_C.sum(axis=-1, keepdims=True)
    return out


def _adamw(weight: Floats, slope: Floats, first: Floats, second: Floats, step: int) -> None:
    """One step in place; biases do not decay."""
    first += (1 - BETAS[0]) * (slope - first)
    second += (1 - BETAS[1]) * (slope * slope - second)
    scale = np.sqrt(second / (1 - BETAS[1] ** step)) + EPSILON
    if weight.ndim > 1:
        weight *= np.float32(1 - RATE * DECAY)
    weight -= (RATE / (1 - BETAS[0] ** step)) * first / scale
