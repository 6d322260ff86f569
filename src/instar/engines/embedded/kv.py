"""Keys and values of many streams of different lengths, and attention over them without padding.

Each stream owns one tensor for all layers, as long as its prompt and its longest answer; memory that was never
written costs nothing until then, so a reservation is a number and no zeroing. A forward pass takes a *batch*:
either one stream with a chunk of its prompt (T tokens), or many streams with one token each. transformers hands
new keys and values to `Batch.update` and then calls `attend`, which reads each stream's own memory.

Shapes: H query heads, K key-value heads, G = H / K, D head size, S tokens so far, T new ones, B streams.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import Cache
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

ATTENTION = "instar_ragged"


@dataclass(frozen=True, slots=True)
class Layout:
    """Per layer (K, D of keys, D of values), found by a trial pass, and how they are kept."""

    layers: tuple[tuple[int, int, int], ...]
    dtype: torch.dtype
    device: torch.device

    @property
    def bytes_per_token(self) -> int:
        return sum(heads * (dk + dv) for heads, dk, dv in self.layers) * self.dtype.itemsize

    @property
    def is_uniform(self) -> bool:
        heads, dk, dv = self.layers[0]
        return dk == dv and all(layer == (heads, dk, dv) for layer in self.layers)


class StreamCache:
    """One stream's keys and values; the first `length` of `capacity` tokens are written."""

    def __init__(self, layout: Layout, capacity: int) -> None:
        self.capacity, self.length = capacity, 0
        options: dict[str, Any] = {"dtype": layout.dtype, "device": layout.device}
        self.whole: Tensor | None = None  # (layers, 2K, capacity, D): keys, then values
        self._parts: list[Tensor] = []
        if layout.is_uniform:
            heads, dim, _ = layout.layers[0]
            self.whole = torch.empty(len(layout.layers), 2 * heads, capacity, dim, **options)
        else:
            for heads, dk, dv in layout.layers:
                self._parts += [torch.empty(heads, capacity, dim, **options) for dim in (dk, dv)]

    def views(self, start: int, stop: int) -> Sequence[Tensor]:
        """Keys and values of layer 0, of layer 1, …: each (K, stop − start, D), not copied."""
        if self.whole is not None:  # one call for all layers: it matters, at sixty views a stream a step
            layers, both, capacity, dim = self.whole.shape
            split = self.whole.view(2 * layers, both // 2, capacity, dim)
            return split[:, :, start:stop].unbind(0)
        return [part[:, start:stop] for part in self._parts]

    def copy_from(self, other: StreamCache, length: int) -> None:
        """Take over another stream's first `length` tokens."""
        for mine, theirs in zip(self.views(0, length), other.views(0, length), strict=True):
            mine.copy_(theirs)
        self.length = length


def causal_mask(past: int, count: int, groups: int, window: int, like: Tensor) -> Tensor | None:
    """Additive (G·T, S) mask for T = count new tokens after `past` ones; None where one token sees all."""
    if count == 1:
        return None
    total = past + count
    at = torch.arange(past, total, device=like.device)[:, None]
    keys = torch.arange(total, device=like.device)[None, :]
    hidden = keys > at
    if window:
        hidden |= keys <= at - window
    mask_TS = torch.zeros(hidden.shape, dtype=like.dtype, device=like.device)
    return mask_TS.masked_fill_(hidden, float("-inf")).repeat(groups, 1)


class Batch(Cache):  # type: ignore[misc]
    """The cache of one forward pass over B streams with `count` new tokens each."""

    def __init__(self, streams: Sequence[StreamCache], count: int) -> None:
        super().__init__(layers=[])
        self.count = count
        self.streams = streams
        self.layer = 0
        self._past = streams[0].length
        fresh = [stream.views(stream.length, stream.length + count) for stream in streams]
        seen = [stream.views(0, stream.length + count) for stream in streams]
        self._fresh = [list(at) for at in zip(*fresh, strict=True)]
        self.seen = [list(at) for at in zip(*seen, strict=True)]
        self._masks: dict[tuple[int, int], Tensor | None] = {}

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Write (B, K, T, D) into the streams' memory. What is returned only carries shapes: `attend` reads on."""
        self.layer = layer_idx
        torch._foreach_copy_(self._fresh[2 * layer_idx], list(key_states.unbind(0)))
        torch._foreach_copy_(self._fresh[2 * layer_idx + 1], list(value_states.unbind(0)))
        return key_states, value_states

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self._past

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        return self._past + self.count, 0

    def mask(self, groups: int, window: int, like: Tensor) -> Tensor | None:
        """Additive (G·T, S) mask of a prompt chunk, the same for all layers of one window; None: see all."""
        key = (groups, window)
        if key not in self._masks:
            self._masks[key] = causal_mask(self._past, self.count, groups, window, like)
        return self._masks[key]

    def advance(self) -> None:
        """The pass is over: its tokens count as written."""
        for stream in self.streams:
            stream.length += self.count


class _Current:
    """The batch of the pass under way. Passes run in one thread, one after another."""

    batch: Batch | None = None


def running(batch: Batch | None) -> None:
    _Current.batch = batch


def attend(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """transformers' attention interface over the current batch: (B, H, T, D) → (B, T, H, D)."""
    batch = _Current.batch
    if batch is None or options.get("s_aux") is not None:
        raise NotImplementedError("this kind of attention is not supported by the embedded engine")
    count, heads, steps, dim = query.shape
    kv_heads = key.shape[1]
    groups = heads // kv_heads
    window = sliding_window or 0
    # G query heads share one key head: laid out as G·T queries of it, no key is ever repeated in memory
    packed = query.reshape(count, kv_heads, groups * steps, dim)
    keys, values = batch.seen[2 * batch.layer], batch.seen[2 * batch.layer + 1]
    mask = batch.mask(groups, window, query)
    out = []
    for row in range(count):
        k, v = keys[row], values[row]
        if window and steps == 1 and k.shape[1] > window:
            k, v = k[:, -window:], v[:, -window:]
        if softcap is None:
            out.append(
                scaled_dot_product_attention(
                    packed[row : row + 1], k[None], v[None], attn_mask=mask, scale=scaling
                )
            )
        else:
            out.append(_capped(packed[row : row + 1], k[None], v[None], mask, scaling, softcap))
    joined = out[0] if count == 1 else torch.cat(out)
    return joined.reshape(count, heads, steps, -1).transpose(1, 2), None


def _capped(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float | None, softcap: float
) -> Tensor:
    """Attention whose logits are squashed by softcap · tanh(x / softcap), as in Gemma 2."""
    scale = scaling if scaling is not None else query.shape[-1] ** -0.5
    logits = query.float() @ key.float().transpose(-1, -2) * scale
    logits = torch.tanh(logits / softcap) * softcap
    if mask is not None:
        logits = logits + mask
    return torch.softmax(logits, dim=-1).to(value.dtype) @ value


ALL_ATTENTION_FUNCTIONS.register(ATTENTION, attend)
