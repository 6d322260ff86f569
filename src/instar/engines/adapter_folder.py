"""What can be told of an adapter folder without torch: PEFT's config and the names and shapes in its file."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from instar.engines.safetensors_file import tensor_shapes
from instar.engines.wire import bad
from instar.errors import RequestError

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
_KEY = re.compile(r"^(?:base_model\.model\.)?(?P<module>.+)\.lora_(?P<side>[AB])(?:\.default)?\.weight$")
# what would change the arithmetic that is served: refuse rather than serve another policy than was trained
_MUST_BE_OFF = ("use_dora", "use_rslora", "modules_to_save", "rank_pattern", "alpha_pattern", "lora_bias")


@dataclass(frozen=True, slots=True)
class AdapterHead:
    """`modules` maps a module's path in the model to the keys of its A (rank × in) and B (out × rank)."""

    folder: Path
    rank: int
    scaling: float
    modules: dict[str, tuple[str, str]]
    shapes: dict[str, tuple[int, ...]]


def _damaged(folder: Path, why: str) -> RequestError:
    return bad(f"The adapter in {folder} cannot be served: {why}.", "lora_path", "bad_adapter")


def read_adapter(folder: Path, max_rank: int) -> AdapterHead:
    """Check an adapter's config and header. Raises RequestError (400) saying what is wrong with it."""
    if not folder.is_absolute():
        raise bad("'lora_path' must be an absolute path.", "lora_path")
    if not folder.is_dir():
        raise _damaged(folder, "there is no such folder")
    config = _config(folder)
    rank, alpha = config.get("r"), config.get("lora_alpha")
    if isinstance(rank, bool) or not isinstance(rank, int) or rank < 1:
        raise _damaged(folder, f"{CONFIG} gives no rank 'r'")
    if rank > max_rank:
        raise _damaged(folder, f"its rank {rank} is above this engine's {max_rank} (engine.max_lora_rank)")
    if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not math.isfinite(alpha):
        raise _damaged(folder, f"{CONFIG} gives no 'lora_alpha'")
    shapes = _header(folder)
    return AdapterHead(folder, rank, float(alpha) / rank, _modules(folder, shapes, rank), shapes)


def _config(folder: Path) -> dict[str, Any]:
    try:
        config = json.loads((folder / CONFIG).read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise _damaged(folder, f"{CONFIG} cannot be read ({error})") from error
    if not isinstance(config, dict):
        raise _damaged(folder, f"{CONFIG} holds no JSON object")
    if config.get("peft_type") != "LORA":
        raise _damaged(folder, f"{CONFIG} is not of peft_type LORA")
    for name in _MUST_BE_OFF:
        if config.get(name):
            raise _damaged(folder, f"'{name}' is not supported")
    if config.get("bias", "none") != "none":
        raise _damaged(folder, "trained biases are not supported")
    return config


def _header(folder: Path) -> dict[str, tuple[int, ...]]:
    try:
        return tensor_shapes(folder / WEIGHTS)
    except ValueError as error:
        raise _damaged(folder, f"{WEIGHTS} cannot be read ({error})") from error


def _modules(folder: Path, shapes: dict[str, tuple[int, ...]], rank: int) -> dict[str, tuple[str, str]]:
    sides: dict[str, dict[str, str]] = {}
    for key, shape in shapes.items():
        match = _KEY.match(key)
        if match is None:
            raise _damaged(folder, f"{WEIGHTS} has an unknown tensor '{key}'")
        expected = 0 if match["side"] == "A" else 1
        if len(shape) != 2 or shape[expected] != rank:
            raise _damaged(folder, f"'{key}' has shape {shape}, which does not fit rank {rank}")
        sides.setdefault(match["module"], {})[match["side"]] = key
    lone = [module for module, pair in sides.items() if len(pair) != 2]
    if lone:
        raise _damaged(folder, f"'{lone[0]}' lacks one of its two matrices")
    if not sides:
        raise _damaged(folder, f"{WEIGHTS} is empty")
    return {module: (pair["A"], pair["B"]) for module, pair in sides.items()}
