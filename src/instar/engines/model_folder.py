"""What Instar needs to know of a model folder, read without torch: JSON and safetensors headers only."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from instar.chat_format import stated_context
from instar.config import models_dir
from instar.engines.safetensors_file import tensor_shapes
from instar.errors import ModelError

MANIFEST = "instar-model.json"
_CAUSAL_SUFFIXES = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What the rest of Instar asks of a model without loading it.

    `eos_ids` end an answer (from generation_config, config and the tokenizer's own eos token); `sha256`
    covers all weight files in name order; `parameters` counts stored tensors (tied weights once).
    """

    context_length: int
    eos_ids: tuple[int, ...]
    sha256: str
    architecture: str
    parameters: int


def sha256_file(path: Path) -> str:
    """Hex sha256 of a file's content."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a model's folder. Raises ModelError if it is missing, unreadable or no object."""
    try:
        value = json.loads(path.read_text("utf-8"))
    except OSError as error:
        reason = error.strerror or str(error)
        raise ModelError(f"{path} cannot be read ({reason}). Check the permissions.") from error
    except ValueError as error:
        raise ModelError(f"{path} is not valid JSON ({error}). Download the model again.") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path} does not hold a JSON object. Download the model again.")
    return value


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files that make up the model, in name order. Raises ModelError."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        weight_map = read_json(index).get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise ModelError(f"{index} names no weights. Download the model again.")
        files = [folder / name for name in sorted(set(map(str, weight_map.values())))]
    else:
        files = [folder / "model.safetensors"]
    missing = [file.name for file in files if not file.is_file()]
    if not missing:
        return files
    if any(folder.glob("*.bin")):
        raise ModelError(
            f"{folder} holds pickled weights (*.bin), which Instar does not load because they can run code. "
            "Save the model as safetensors: AutoModelForCausalLM.from_pretrained(…).save_pretrained(…)."
        )
    raise ModelError(
        f"{folder} lacks its weights ({', '.join(missing)}). Name a folder saved by save_pretrained, "
        "or download the model again."
    )


def safetensors_parameters(path: Path) -> int:
    """Number of stored values, from the header alone. Raises ModelError if the file is cut or damaged."""
    try:
        return sum(math.prod(shape) for shape in tensor_shapes(path).values())
    except ValueError as error:
        raise ModelError(f"{path} cannot be read: {error}. Download or save the model again.") from error


def _architecture(folder: Path, config: dict[str, Any]) -> str:
    names = config.get("architectures")
    found = names[0] if isinstance(names, list) and names and isinstance(names[0], str) else ""
    if not found.endswith(_CAUSAL_SUFFIXES):
        what = f"is a {found}" if found else "names no architecture"
        raise ModelError(
            f"The model in {folder} {what}; Instar serves causal language models (…ForCausalLM). "
            "Choose a chat or instruct model."
        )
    return found


def _context_length(folder: Path, config: dict[str, Any]) -> int:
    found = stated_context(config)
    if found is None:
        raise ModelError(f"{folder / 'config.json'} does not say how long a context the model takes.")
    return found


def _ids(value: Any) -> list[int]:
    values = value if isinstance(value, list) else [value]
    return [item for item in values if isinstance(item, int) and not isinstance(item, bool) and item >= 0]


def _tokenizer_eos(folder: Path) -> list[int]:
    """Id of the tokenizer's eos token: chat models end a message with it, whatever config.json says."""
    path = folder / "tokenizer_config.json"
    if not path.is_file():
        return []
    token = read_json(path).get("eos_token")
    content = token.get("content") if isinstance(token, dict) else token
    tokenizer = read_json(folder / "tokenizer.json")
    added = tokenizer.get("added_tokens") or []
    ids = [entry.get("id") for entry in added if isinstance(entry, dict) and entry.get("content") == content]
    return _ids(ids)


def _eos_ids(folder: Path, config: dict[str, Any]) -> tuple[int, ...]:
    generation = folder / "generation_config.json"
    found = _ids(read_json(generation).get("eos_token_id")) if generation.is_file() else []
    found += _ids(config.get("eos_token_id")) + _tokenizer_eos(folder)
    if not found:
        raise ModelError(
            f"The model in {folder} names no end-of-answer token (eos_token_id in generation_config.json or "
            "config.json). Add it, or choose an instruct model."
        )
    return tuple(dict.fromkeys(found))


def _digest(files: list[Path]) -> str:
    if len(files) == 1:
        return sha256_file(files[0])
    return hashlib.sha256("".join(sha256_file(file) for file in files).encode()).hexdigest()


def _weights_sha256(folder: Path, files: list[Path]) -> str:
    """Hash of the weights, remembered by path, size and time, since hashing costs a second a gigabyte."""
    manifest = folder / MANIFEST
    if manifest.is_file() and len(files) == 1:
        entry = read_json(manifest).get("files", {}).get(files[0].name, {})
        if isinstance(entry.get("sha256"), str) and entry.get("size") == files[0].stat().st_size:
            return str(entry["sha256"])
    stats = [(str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    key = hashlib.sha256(json.dumps(stats).encode()).hexdigest()
    note = models_dir() / "hashes" / key
    try:
        known = note.read_text("ascii")
        if len(known) == 64:
            return known
    except (OSError, UnicodeDecodeError):
        pass  # not remembered, or not readable: hash again
    value = _digest(files)
    try:
        note.parent.mkdir(parents=True, exist_ok=True)
        note.write_text(value, "ascii")
    except OSError:
        pass  # remembering is a convenience
    return value


def check_model_folder(folder: Path) -> None:
    """Raise ModelError, saying what to do, unless the folder holds a servable chat model."""
    if not (folder / "config.json").is_file():
        raise ModelError(
            f"{folder} is no model folder: it has no config.json. Name a folder saved by save_pretrained, "
            "a Hugging Face name such as Qwen/Qwen3-0.6B, or 'starter'."
        )
    config = read_json(folder / "config.json")
    _architecture(folder, config)
    _context_length(folder, config)
    for file in weight_files(folder):
        safetensors_parameters(file)
    if not (folder / "tokenizer.json").is_file():
        raise ModelError(f"{folder} has no tokenizer.json. Add the tokenizer's files of the model.")
    read_json(folder / "tokenizer.json")
    if not has_chat_template(folder):
        raise ModelError(
            f"The model in {folder} has no chat template, so it cannot hold a conversation. Choose an "
            "instruct model, or put a chat_template.jinja into the folder."
        )


def has_chat_template(folder: Path) -> bool:
    if (folder / "chat_template.jinja").is_file() or (folder / "chat_template.json").is_file():
        return True
    config = folder / "tokenizer_config.json"
    return config.is_file() and bool(read_json(config).get("chat_template"))


def model_facts(folder: Path) -> ModelFacts:
    """Facts of a model folder, without importing torch. Raises ModelError saying what is wrong with it."""
    check_model_folder(folder)
    config = read_json(folder / "config.json")
    files = weight_files(folder)
    return ModelFacts(
        context_length=_context_length(folder, config),
        eos_ids=_eos_ids(folder, config),
        sha256=_weights_sha256(folder, files),
        architecture=_architecture(folder, config),
        parameters=sum(safetensors_parameters(file) for file in files),
    )
