"""What became of a version, told from its manifest and the decisions about it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from instar.records import Activation, Decision, Fate

STATES = {
    Fate.WAITS: "waits for approval",
    Fate.REJECTED: "rejected by a person",
    Fate.ROLLED_BACK: "taken back",
    Fate.SUPERSEDED: "superseded",
}
"""Fates that keep a version from serving."""

EVENTS = {
    "serves": "began to serve",
    "served": "served no longer",
    Fate.WAITS: "waited for a person",
    Fate.APPROVED: "approved",
    Fate.REJECTED: "rejected",
    Fate.ROLLED_BACK: "taken back",
    Fate.CHOSEN: "chosen by name",
    Fate.SUPERSEDED: "superseded",
}
"""What a line of a version's history says happened, for readers."""
_LETS_SERVE = (Fate.APPROVED, Fate.CHOSEN)


def newest_about(version: str, decisions: Sequence[Decision]) -> Decision | None:
    """What was decided about a version last, if anything. `decisions` are newest first."""
    return next((d for d in decisions if d.version == version), None)


def state_of(name: str, active: str, gate: dict[str, Any], decisions: Sequence[Decision]) -> tuple[str, str]:
    """In a word or two what a version is now, and a sentence why. `decisions` are newest first."""
    mine = newest_about(name, decisions)
    if name == active:  # a reason why it was taken back once is none why it serves now
        return "serving", mine.reason if mine is not None and mine.fate in _LETS_SERVE else ""
    if gate.get("passed") is False:
        return "refused by the gate", str(gate.get("why", ""))
    if mine is not None and mine.fate in STATES:
        return STATES[mine.fate], mine.reason
    return "kept", ""


def is_rejected(version: str, decisions: Sequence[Decision]) -> bool:
    """Whether a person rejected it and has not activated it by name since. `decisions` are newest first."""
    newest = newest_about(version, decisions)
    return newest is not None and newest.fate is Fate.REJECTED


def waiting_version(decisions: Sequence[Decision]) -> str | None:
    """The version that waits for a person, if one does. `decisions` are newest first."""
    seen: set[str] = set()
    for decision in decisions:
        if decision.version not in seen and decision.fate is Fate.WAITS:
            return decision.version
        seen.add(decision.version)
    return None


def history_of(
    name: str, activations: Sequence[Activation], decisions: Sequence[Decision]
) -> list[dict[str, Any]]:
    """When a version began to serve and ceased to, and what was decided about it, oldest first; both come newest first.

    Keys: at, what (a key of `EVENTS`), why.
    """
    lines = [(d.created_at, d.fate.value, d.reason) for d in decisions if d.version == name]
    before = None
    for activation in reversed(activations):
        if activation.version == name != before:
            lines.append((activation.created_at, "serves", activation.reason))
        elif before == name != activation.version:
            lines.append((activation.created_at, "served", f"{activation.version} serves"))
        before = activation.version
    return [{"at": at, "what": what, "why": why} for at, what, why in sorted(lines)]


def learned_from(views: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Counts and words of the turns that made a version, from `Store.turn_views`."""
    hints = [view["hint"] for view in views if view["hint"]]
    return {
        "turns": len(views),
        "good": sum(view["score"] == 1 for view in views),
        "bad": sum(view["score"] == -1 for view in views),
        "sessions": len({view["session_id"] for view in views}),
        "hints": list(dict.fromkeys(hints)),
    }
