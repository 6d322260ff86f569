"""How much memory an engine that is not ours may take. Pure, but for reading a model's folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from instar.errors import ConfigError, ModelError

MIB = 2**20
CONTEXT_MIB = 1024
"""What CUDA itself takes for each process, with its libraries; and a rest that fragmentation makes useless."""
MOST_SHARE = 0.92
"""vLLM's own default: above it, its warm-up runs out of memory."""
LEAST_SHARE = 0.1


def update_mib(model_dir: Path, memory_mib: int, *, enabled: bool) -> int:
    """What an update takes of a GPU: the model once more, and `train.memory_mib` beside it. 0 where nothing is
    learned."""
    if not enabled:
        return 0
    weights = sum(file.stat().st_size for file in model_dir.glob("*.safetensors"))
    return -(-weights // MIB) + memory_mib + CONTEXT_MIB


def gpu_share(gpu_mib: int, update_mib: int) -> float:
    """vLLM's `--gpu-memory-utilization` where an update needs `update_mib` of the same GPU.

    Rounded down to hundredths, so that the update's part is never the one that falls short. Raises ConfigError if less
    than a tenth is left.
    """
    share = int(100 * (gpu_mib - update_mib) / gpu_mib) / 100
    if share < LEAST_SHARE:
        raise ConfigError(
            f"Training takes {update_mib} of the GPU's {gpu_mib} MiB, which leaves vLLM too little. Lower "
            "train.memory_mib, set engine.gpu_share yourself, or serve without learning (train.enabled=false)."
        )
    return min(share, MOST_SHARE)


def cache_bytes(model_dir: Path, tokens: int) -> int:
    """Bytes of the keys and values, in bf16, of so many tokens. Raises ModelError if the folder does not tell."""
    try:
        config: dict[str, Any] = json.loads((model_dir / "config.json").read_text("utf-8"))
        config = config.get("text_config") or config
        heads = int(config["num_attention_heads"])
        head_dim = int(config.get("head_dim") or int(config["hidden_size"]) // heads)
        key_heads = int(config.get("num_key_value_heads") or heads)
        return 2 * 2 * int(config["num_hidden_layers"]) * key_heads * head_dim * tokens
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelError(f"{model_dir / 'config.json'} does not tell the model's shape: {error}") from error
