"""What an update made, and what became of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

BASE = "base"
"""Name of the untouched model as a version."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a version on disk says about itself. `files` maps a file name to its sha256 in hex."""

    name: str
    parent: str
    created_at: float
    update_id: str
    base_model: str
    base_sha256: str
    files: dict[str, str]
    turn_ids: list[str]
    settings: dict[str, Any]
    metrics: dict[str, Any]
    gate: dict[str, Any]
    runtime: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Activation:
    """One line of the history of what was served. The last one is in force."""

    version: str
    reason: str
    created_at: float


class Fate(StrEnum):
    """What was decided about a version after its update. The newest decision is in force."""

    WAITS = "waits"  # passed the gate, and waits for a person
    APPROVED = "approved"  # a person let it serve
    REJECTED = "rejected"  # a person did not
    ROLLED_BACK = "rolled_back"  # served, and was taken back
    CHOSEN = "chosen"  # a person activated it by name
    SUPERSEDED = "superseded"  # another version was put in force while it was computed


@dataclass(frozen=True, slots=True)
class Decision:
    """One line of what was decided about versions, with the reason in a sentence."""

    version: str
    fate: Fate
    reason: str
    created_at: float
