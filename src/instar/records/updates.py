"""One update: what goes to the trainer, what comes back, and what the store keeps of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from instar.records.samples import HeldBackTurn, JudgedAnswer, Origin, WeightedSample


@dataclass(frozen=True, slots=True)
class UpdateJob:
    """One update, complete in itself: the compute child needs nothing else.

    `parent` is the version to start from; `parent_dir` its folder, None for base. The same job gives the same
    adapter, byte for byte, on the same machine and thread count: `seed` fixes every choice. `history` are verdicts
    of the samples' learners, oldest first, theirs on these samples included.
    """

    update_id: str
    parent: str
    parent_dir: str | None
    model_dir: str
    out_dir: str
    seed: int
    samples: list[WeightedSample]
    history: list[JudgedAnswer] = field(default_factory=list)
    anchors: list[list[int]] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)
    held_back: list[HeldBackTurn] = field(default_factory=list)


def job_lists(document: dict[str, Any]) -> dict[str, list[Any]]:
    """A job's samples, history and held-back turns from JSON. Raises KeyError, TypeError or ValueError."""
    return {
        "samples": [WeightedSample(**{**s, "origin": Origin(s["origin"])}) for s in document["samples"]],
        "history": [JudgedAnswer(**h) for h in document["history"]],
        "held_back": [HeldBackTurn(**t) for t in document["held_back"]],
    }


@dataclass(frozen=True, slots=True)
class UpdateResult:
    """What an update left in its `out_dir`: adapter, optimizer state, and these numbers.

    `taught` is False when the trainer found nothing to learn in it, and `why` says so in a sentence: then there are
    no files and no gate.
    """

    update_id: str
    ok: bool
    metrics: dict[str, Any]
    gate: GateReport | None = None
    error: str | None = None
    taught: bool = True
    why: str = ""


@dataclass(frozen=True, slots=True)
class GateReport:
    """Whether a proposed version may serve. `checks` holds every figure beside its bound."""

    passed: bool
    why: str
    checks: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Update:
    """One update's life in the store."""

    id: str
    number: int
    parent: str
    status: str  # running, proposed, rejected, failed, unused, superseded
    turn_ids: list[str]
    created_at: float
    version: str | None = None
    scale: float = 1.0
    note: str | None = None
    finished_at: float | None = None
