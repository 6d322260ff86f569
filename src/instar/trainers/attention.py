"""Attention for transformers' models as an update needs it: no key is repeated in memory, and short rows are quick.

H query heads share K key heads, G = H / K each. Laid out as G·T queries of one key head, they are one product. Small
ones are computed as plain products, whose backward pass takes half as long as the fused kernel's and whose single
queries, at each sampled token, a twentieth; large ones by the fused kernel, which keeps no T × S matrix.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

NAME = "instar_trainer"
PRODUCTS_UP_TO = 512 * 512
"""Queries times keys of a head up to which the matrix of scores may exist: 9.4 MB for nine heads in fp32."""


def attend(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    softcap: float | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """transformers' attention interface: query (B, H, T, D), key and value (B, K, S, D) → (B, T, H, D).

    `attention_mask` (B or 1, 1, T, S) is true where a query sees a key; None is causal.
    """
    if options.get("s_aux") is not None:
        raise NotImplementedError("attention with sinks cannot be trained here")
    rows, heads, steps, dim = query.shape
    groups, length = heads // key.shape[1], key.shape[2]
    packed = query.reshape(rows, key.shape[1], groups * steps, dim)
    scale = scaling if scaling is not None else dim**-0.5
    mask = _mask(attention_mask, steps, length, groups, query.device)
    if softcap is not None or steps * length <= PRODUCTS_UP_TO:
        mixed = _products(packed, key, value, mask, scale, softcap)
    else:
        mixed = scaled_dot_product_attention(packed, key, value, attn_mask=mask, scale=scale)
    return mixed.reshape(rows, heads, steps, -1).transpose(1, 2).contiguous(), None


def _mask(given: Tensor | None, steps: int, length: int, groups: int, device: torch.device) -> Tensor | None:
    """(B or 1, 1, G·T, S), true where a key is seen; None: all are."""
    if given is None and steps == 1:
        return None
    if given is None:
        given = torch.ones((steps, length), dtype=torch.bool, device=device).tril(length - steps)[None, None]
    return given[..., :length].repeat(1, 1, groups, 1)


def _products(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float, softcap: float | None
) -> Tensor:
    """Softmax in fp32. `softcap` squashes scores as in Gemma 2: softcap · tanh(x / softcap)."""
    scores = (query @ key.transpose(-1, -2)) * scale
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    if mask is not None:
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    return torch.softmax(scores, -1, dtype=torch.float32).to(value.dtype) @ value


ALL_ATTENTION_FUNCTIONS.register(NAME, attend)
ALL_MASK_ATTENTION_FUNCTIONS.register(NAME, sdpa_mask)
