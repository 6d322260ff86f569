"""Tiny models of several kinds, with random weights that are large enough for their differences to show."""

from __future__ import annotations

from pathlib import Path
from typing import Any

_COMMON: dict[str, Any] = {
    "vocab_size": 259,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,
    "pad_token_id": 0,
    "bos_token_id": 0,
    "eos_token_id": 2,
}
KINDS: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"sliding_window": 9},
    "qwen2": {},
    "qwen3": {"tie_word_embeddings": True},
    "gemma2": {"sliding_window": 9, "query_pre_attn_scalar": 12},
    "gemma3_text": {"sliding_window": 9, "query_pre_attn_scalar": 12, "sliding_window_pattern": 2},
    "olmo2": {},
    "smollm3": {"no_rope_layer_interval": 2},
}
"""What is special about each: windows, squashed scores, norms of queries and keys, layers without positions."""


def write_tiny_kind(folder: Path, kind: str, **changes: Any) -> Path:
    """A causal LM of this kind in fp32."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(1)
    config = AutoConfig.for_model(kind, **{**_COMMON, **KINDS[kind], **changes})
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder
