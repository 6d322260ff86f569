"""A direct forward pass for the Llama family, several times lighter than the general one.

At one token a step the general path spends more time in Python and in small kernels than in reading weights.
This one computes the same function with a third of the calls: keys, values and rotated queries live in one
buffer, the residual is kept in fp32 and rounded only where a product reads it, and only rows that are sampled
reach the head. Model kinds outside the list, and any whose numbers differ, take the general path.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from instar.engines.embedded.kv import Layout, StreamCache, causal_mask
from instar.engines.embedded.linear import Product

_KINDS = {"llama", "mistral", "qwen2", "qwen3"}


@dataclass(frozen=True, slots=True)
class Layer:
    qkv: Product
    out: Product
    gate_up: Product
    down: Product
    norm_in: Tensor
    norm_mid: Tensor
    norm_q: Tensor | None
    norm_k: Tensor | None


class Lean:
    """H query heads, K key heads, G = H / K, D head size, N rows: streams (one token each) or tokens (of one)."""

    def __init__(self, network: Any, products: dict[str, Product], layout: Layout, max_length: int) -> None:
        config, inner = network.config, network.model
        self.kv_heads, self.dim, _ = layout.layers[0]
        self.heads = int(config.num_attention_heads)
        self._groups = self.heads // self.kv_heads
        self.eps = float(config.rms_norm_eps)
        self.dtype = layout.dtype
        self.embedding: Tensor = inner.embed_tokens.weight
        self.norm_last = inner.norm.weight.float()
        self.head = products["lm_head"]
        self.layers = [
            _layer(place, layer, products, self.kv_heads, self.dim)
            for place, layer in enumerate(inner.layers)
        ]
        self.intermediate = self.layers[0].gate_up.out_features // 2
        positions = torch.arange(max_length, device=layout.device)[None]
        cos, sin = inner.rotary_emb(self.embedding[:1], position_ids=positions)
        half = self.dim // 2
        self.cos = cos[0][:, None].contiguous()
        # rotating half and rolling differ by the sign of the first half
        self.sin = torch.cat([-sin[0][:, :half], sin[0][:, half:]], dim=-1)[:, None].contiguous()

    def prefill(self, cache: StreamCache, ids_T: Tensor, *, all_rows: bool) -> Tensor:
        """Logits (1, V) after the last token, or (T, V)."""
        steps, past = ids_T.shape[0], cache.length
        total = past + steps
        assert cache.whole is not None
        fresh = cache.whole[:, :, past:total].unbind(0)
        keys = cache.whole[:, None, : self.kv_heads, :total].unbind(0)
        values = cache.whole[:, None, self.kv_heads :, :total].unbind(0)
        mask = causal_mask(past, steps, self._groups, 0, like=self.cos)
        cos, sin = self.cos[past:total], self.sin[past:total]
        residual = self.embedding[ids_T].float()
        for place, layer in enumerate(self.layers):
            qkv = self._project(layer, residual, cos, sin)
            fresh[place].copy_(qkv[:, self.heads :].transpose(0, 1))
            query = qkv[:, : self.heads].view(steps, self.kv_heads, self._groups, self.dim)
            query = query.permute(1, 2, 0, 3).reshape(1, self.kv_heads, -1, self.dim)
            mixed = functional.scaled_dot_product_attention(query, keys[place], values[place], attn_mask=mask)
            mixed = mixed.view(self.kv_heads, self._groups, steps, self.dim).permute(2, 0, 1, 3)
            self._finish_layer(layer, residual, mixed.reshape(steps, -1))
        cache.length = total
        return self._logits(residual if all_rows else residual[-1:])

    def decode(self, caches: Sequence[StreamCache], ids_B: Tensor) -> Tensor:
        """Logits (B, V) after one token of each stream."""
        heads, kv_heads = self.heads, self.kv_heads
        lengths = [cache.length for cache in caches]
        wholes = [cache.whole for cache in caches if cache.whole is not None]
        rows = list(zip(wholes, lengths, strict=True))
        # one call a stream for the views of all layers
        fresh = list(zip(*(whole[:, :, past].unbind(0) for whole, past in rows), strict=True))
        keys = list(zip(*(whole[:, None, :kv_heads, : n + 1].unbind(0) for whole, n in rows), strict=True))
        values = list(zip(*(whole[:, None, kv_heads:, : n + 1].unbind(0) for whole, n in rows), strict=True))
        positions = torch.tensor(lengths, device=ids_B.device)
        cos, sin = self.cos[positions], self.sin[positions]
        residual = self.embedding[ids_B].float()
        shape = (len(rows), 1, kv_heads, self._groups, self.dim)
        attention = functional.scaled_dot_product_attention
        for place, layer in enumerate(self.layers):
            qkv = self._project(layer, residual, cos, sin)
            torch._foreach_copy_(list(fresh[place]), list(qkv[:, heads:].unbind(0)))
            queries = qkv[:, :heads].reshape(shape).unbind(0)
            mixed = [attention(q, k, v) for q, k, v in zip(queries, keys[place], values[place], strict=True)]
            joined = mixed[0] if len(mixed) == 1 else torch.cat(mixed)
            self._finish_layer(layer, residual, joined.reshape(len(rows), -1))
        for cache in caches:
            cache.length += 1
        return self._logits(residual)

    def _normed(self, residual: Tensor, weight: Tensor) -> Tensor:
        return functional.rms_norm(residual, weight.shape, weight, self.eps).to(self.dtype)

    def _project(self, layer: Layer, residual: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Queries and keys, rotated, and values: (N, H + 2K, D)."""
        qkv = layer.qkv(self._normed(residual, layer.norm_in))
        qkv = qkv.view(qkv.shape[0], self.heads + 2 * self.kv_heads, self.dim)
        qk = qkv[:, : self.heads + self.kv_heads]
        if layer.norm_q is not None and layer.norm_k is not None:
            q, k = qk[:, : self.heads].float(), qk[:, self.heads :].float()
            qk = torch.cat([self._normed(q, layer.norm_q), self._normed(k, layer.norm_k)], dim=1)
        rotated = torch.addcmul(qk * cos, qk.roll(self.dim // 2, -1), sin)
        qkv[:, : self.heads + self.kv_heads] = rotated
        return qkv

    def _finish_layer(self, layer: Layer, residual: Tensor, mixed: Tensor) -> None:
        """Output projection and feed-forward, added to the residual in place."""
        residual += layer.out(mixed)
        both = layer.gate_up(self._normed(residual, layer.norm_mid))
        gated = functional.silu(both[:, : self.intermediate]).mul_(both[:, self.intermediate :])
        residual += layer.down(gated)

    def _logits(self, residual: Tensor) -> Tensor:
        return self.head(self._normed(residual, self.norm_last))


def _layer(place: int, layer: Any, products: dict[str, Product], kv_heads: int, dim: int) -> Layer:
    stem = f"model.layers.{place}"
    attention = layer.self_attn
    norms = [getattr(attention, name, None) for name in ("q_norm", "k_norm")]
    norm_q, norm_k = (None if norm is None else norm.weight.float() for norm in norms)
    return Layer(
        qkv=products[f"{stem}.self_attn.q_proj"],
        out=products[f"{stem}.self_attn.o_proj"],
        gate_up=products[f"{stem}.mlp.gate_proj"],
        down=products[f"{stem}.mlp.down_proj"],
        norm_in=layer.input_layernorm.weight.float(),
        norm_mid=layer.post_attention_layernorm.weight.float(),
        norm_q=norm_q,
        norm_k=norm_k,
    )


def is_lean(network: Any, products: dict[str, Product], layout: Layout) -> bool:
    """Whether the model is one that `Lean` computes: its kind, and nothing unusual in its config."""
    config = network.config
    if config.model_type not in _KINDS or not layout.is_uniform:
        return False
    kinds = getattr(config, "layer_types", None) or []
    windowed = "sliding_attention" in kinds or (not kinds and getattr(config, "sliding_window", None))
    rope = getattr(config, "rope_parameters", None) or {}
    usual_rope = rope.get("rope_type", "default") in ("default", "linear", "llama3")
    whole_rope = float(rope.get("partial_rotary_factor", 1.0)) == 1.0
    if windowed or not usual_rope or not whole_rope or config.hidden_act != "silu":
        return False
    first = "model.layers.0"
    fused = (
        products.get(f"{first}.self_attn.q_proj") is products.get(f"{first}.self_attn.v_proj")
        and products.get(f"{first}.mlp.gate_proj") is products.get(f"{first}.mlp.up_proj")
        and "lm_head" in products
    )
    return bool(fused)
