"""`manifest.json`: what a version is, made of what, and the sha256 of everything beside it.

The file is written in one fixed form and carries a checksum of itself, so that no byte of it can change unseen.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from dataclasses import asdict, fields
from typing import Any

from instar.errors import ArtifactError
from instar.records import Manifest

FILE = "manifest.json"
_CHECKSUM = "sha256"

VERSION_NAME = re.compile(r"v[1-9][0-9]{0,8}")
FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}\.(safetensors|json)")
"""Data only: nothing that runs code when it is read."""

_SHA256 = re.compile(r"[0-9a-f]{64}")
_TYPES: dict[str, type | tuple[type, ...]] = {
    "name": str,
    "parent": str,
    "created_at": (int, float),
    "update_id": str,
    "base_model": str,
    "base_sha256": str,
    "files": dict,
    "turn_ids": list,
    "settings": dict,
    "metrics": dict,
    "gate": dict,
    "runtime": dict,
}


def version_number(name: str) -> int:
    """`v7` → 7. Raises ArtifactError for anything that is not the name of a version, a path for one."""
    if not isinstance(name, str) or VERSION_NAME.fullmatch(name) is None:
        raise ArtifactError(f"{str(name)[:80]!r} is not the name of a version. Versions are called v1, v2, …")
    return int(name[1:])


def render(manifest: Manifest) -> bytes:
    """The manifest as it lies on disk. Raises ArtifactError if it holds what JSON cannot say."""
    try:
        content = _plain(asdict(manifest))
        return _form({**content, _CHECKSUM: _checksum(content)})
    except (TypeError, ValueError) as error:
        raise ArtifactError(f"The manifest of {manifest.name} cannot be written as JSON: {error}") from error


def parse(data: bytes, name: str) -> Manifest:
    """Read a manifest back, refusing every change. Raises ArtifactError."""
    try:
        content = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise _damaged(name, f"it is not JSON ({error})") from error
    if not isinstance(content, dict):
        raise _damaged(name, "it is not an object")
    claimed = content.pop(_CHECKSUM, None)
    if claimed != _checksum(content) or _form({**content, _CHECKSUM: claimed}) != data:
        raise _damaged(name, "its checksum does not match")
    if set(content) != {field.name for field in fields(Manifest)}:
        raise _damaged(name, "its fields are not those of this Instar")
    for key, kind in _TYPES.items():
        if not isinstance(content[key], kind):
            raise _damaged(name, f"{key} has the wrong type")
    if content["name"] != name:
        raise _damaged(name, f"it belongs to {content['name'][:80]!r}")
    _check_files(content["files"], name)
    return Manifest(**content)


def _check_files(files: dict[str, Any], name: str) -> None:
    for file, digest in files.items():
        if FILE_NAME.fullmatch(file) is None or file == FILE:
            raise _damaged(name, f"it lists {file[:80]!r}; only safetensors and JSON files are allowed")
        if not isinstance(digest, str) or _SHA256.fullmatch(digest) is None:
            raise _damaged(name, f"the sha256 of {file} is none")


def _damaged(name: str, why: str) -> ArtifactError:
    return ArtifactError(f"The manifest of {name} is damaged: {why}. Activate another version.")


def _checksum(content: dict[str, Any]) -> str:
    return hashlib.sha256(_form(content)).hexdigest()


def _form(content: dict[str, Any]) -> bytes:
    return (json.dumps(content, indent=2, ensure_ascii=True, allow_nan=True) + "\n").encode("ascii")


def _plain(value: Any) -> Any:
    """JSON values only. A figure that is not finite becomes its name: "nan" says more than a parser's error."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
