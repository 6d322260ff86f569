"""Attention for transformers' models as an update needs it: no key is repeated in memory, and short rows are quick.

H query heads share K key heads, G = H / K each. Laid out as G·T queries of one key head, they are one product. Small
ones are computed as plain products, whose backward pass takes half as long as the fused kernel's and whose single
queries, at each sampled token, a twentieth; large ones by the fused kernel, which keeps no T × S matrix.

A pass over a tree of rows (packing.py) is computed stretch by stretch: its tokens see those before them in their rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, reduce
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from instar.trainers.packing import PRODUCTS_UP_TO, Segment, Stretch

NAME = "instar_trainer"
QUERIES = 512
"""Queries of a long stretch that are computed at once where a mask is needed: it has a row for each."""


def attend(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    softcap: float | None = None,
    segments: Sequence[Segment] | None = None,
    sliding_window: int | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """transformers' attention interface: query (B, H, T, D), key and value (B, K, S, D) → (B, T, H, D).

    `attention_mask` (B or 1, 1, T, S) is true where a query sees a key; None is causal. With `segments` it is not
    looked at: the rows of a tree are computed, in a batch of one.
    """
    if options.get("s_aux") is not None:
        raise NotImplementedError("attention with sinks cannot be trained here")
    scale = scaling if scaling is not None else query.shape[-1] ** -0.5
    if segments is not None:
        parts = [_along(query, key, value, s, scale, softcap, sliding_window) for s in segments]
        return torch.cat(parts, 2).transpose(1, 2).contiguous(), None
    rows, heads, steps, _ = query.shape
    groups, length = heads // key.shape[1], key.shape[2]
    packed = _by_key_head(query, key.shape[1])
    mask = _mask(attention_mask, steps, length, groups, query.device)
    if softcap is not None or steps * length <= PRODUCTS_UP_TO:
        unseen = None if mask is None else ~mask
        mixed = _products(packed, [key], [value], unseen, scale, softcap)
    else:
        mixed = scaled_dot_product_attention(packed, key, value, attn_mask=mask, scale=scale)
    return mixed.reshape(rows, heads, steps, -1).transpose(1, 2).contiguous(), None


def _by_key_head(query: Tensor, key_heads: int) -> Tensor:
    """(B, H, T, D) → (B, K, G·T, D)."""
    return query.reshape(query.shape[0], key_heads, -1, query.shape[-1])


def _mask(given: Tensor | None, steps: int, length: int, groups: int, device: torch.device) -> Tensor | None:
    """(B or 1, 1, G·T, S), true where a key is seen; None: all are."""
    if given is None and steps == 1:
        return None
    if given is None:
        given = causal(steps, length, None, device)[None, None]
    return given[..., :length].repeat(1, 1, groups, 1)


def causal(steps: int, length: int, window: int | None, device: torch.device) -> Tensor:
    """(T, S), true where the last T of S tokens see a key: all up to their own, or the `window` last of these."""
    seen = torch.ones((steps, length), dtype=torch.bool, device=device).tril(length - steps)
    return seen if window is None else seen.triu(length - steps - window + 1)


def _products(
    query: Tensor,
    keys: Sequence[Tensor],
    values: Sequence[Tensor],
    unseen: Tensor | None,
    scale: float,
    softcap: float | None,
) -> Tensor:
    """Softmax in fp32. `softcap` squashes scores as in Gemma 2: softcap · tanh(x / softcap).

    Keys and values come in pieces, so that shared ones are views and need no copy. `unseen` is true where a query does
    not see a key.
    """
    scores = _joined([query @ key.transpose(-1, -2) for key in keys], -1) * scale
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    if unseen is not None:
        scores = scores.masked_fill(unseen, torch.finfo(scores.dtype).min)
    weights = torch.softmax(scores, -1, dtype=torch.float32).to(values[0].dtype)
    shares = torch.split(weights, [key.shape[-2] for key in keys], -1)
    return reduce(torch.add, [share @ value for share, value in zip(shares, values, strict=True)])


def _joined(parts: Sequence[Tensor], dim: int) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts), dim)


# ── one stretch of a tree ─────────────────────────────────────────────────────────────────────────────────
def _along(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    segment: Segment,
    scale: float,
    softcap: float | None,
    window: int | None,
) -> Tensor:
    """Attention of a segment's tokens, shape (1, H, T, D): plain products where it is small, else the fused kernel."""
    queries = _cut(query, segment.own)
    keys, values = [_cut(key, s) for s in segment.path], [_cut(value, s) for s in segment.path]
    length = segment.depth + segment.steps
    if segment.steps * length <= PRODUCTS_UP_TO:
        return _small(queries, keys, values, scale, softcap, window)
    all_keys, all_values = _joined(keys, 2), _joined(values, 2)
    if softcap is None and window is None and not segment.past:
        groups = query.shape[1] // key.shape[1]
        return scaled_dot_product_attention(
            queries,
            all_keys.repeat_interleave(groups, 1),
            all_values.repeat_interleave(groups, 1),
            is_causal=True,
            scale=scale,
        )
    return _chunked(queries, all_keys, all_values, segment.depth, scale, softcap, window)


def _cut(tensor: Tensor, stretch: Stretch) -> Tensor:
    return tensor[:, :, slice(*stretch)]


def _small(
    query: Tensor,
    keys: Sequence[Tensor],
    values: Sequence[Tensor],
    scale: float,
    softcap: float | None,
    window: int | None,
) -> Tensor:
    """By plain products: query (1, H, T, D), keys and values in pieces of (1, K, ·, D)."""
    heads, steps = query.shape[1], query.shape[2]
    length, key_heads = sum(k.shape[2] for k in keys), keys[0].shape[1]
    unseen = _unseen(steps, length, window, heads // key_heads, query.device)
    mixed = _products(_by_key_head(query, key_heads), keys, values, unseen, scale, softcap)
    return mixed.reshape(1, heads, steps, -1)


@lru_cache(maxsize=32)
def _unseen(steps: int, length: int, window: int | None, groups: int, device: torch.device) -> Tensor:
    """(G·T, S); kept, since the backward pass of every layer holds on to it."""
    return ~causal(steps, length, window, device).repeat(groups, 1)


def _chunked(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    depth: int,
    scale: float,
    softcap: float | None,
    window: int | None,
) -> Tensor:
    """A long stretch behind `depth` tokens, `QUERIES` at a time, so that no mask is large."""
    groups, parts = query.shape[1] // key.shape[1], []
    for at in range(0, query.shape[2], QUERIES):
        part = query[:, :, at : at + QUERIES]
        end = depth + at + part.shape[2]
        begin = 0 if window is None else max(0, depth + at - window + 1)
        keys, values = key[:, :, begin:end], value[:, :, begin:end]
        if softcap is not None:  # the kernel cannot; its matrix of scores is computed again instead of kept
            parts.append(
                checkpoint(_small, part, [keys], [values], scale, softcap, window, use_reentrant=False)
            )
            continue
        mask = causal(part.shape[2], end - begin, window, query.device)
        parts.append(
            scaled_dot_product_attention(
                part,
                keys.repeat_interleave(groups, 1),
                values.repeat_interleave(groups, 1),
                attn_mask=mask,
                scale=scale,
            )
        )
    return torch.cat(parts, 2)


ALL_ATTENTION_FUNCTIONS.register(NAME, attend)
ALL_MASK_ATTENTION_FUNCTIONS.register(NAME, sdpa_mask)
