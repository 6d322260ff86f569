"""What updates found when they scored the engine's answers again: kept for the newest, and summed up for people."""

from __future__ import annotations

from typing import Any

from instar.records import Update

FIDELITY = "fidelity"
"""Name of the document."""
KEPT = 20
"""Updates that are remembered."""
ALARM_SHARE = 0.05
"""Share of turns set aside above which something is wrong, and not with a turn."""


def remembered(
    document: dict[str, Any] | None, update: Update, facts: dict[str, Any] | None
) -> dict[str, Any] | None:
    """The document with one more update; None if that one compared nothing."""
    if not facts or not facts["turns"]:
        return None
    earlier = [u for u in (document or {}).get("updates", []) if u["number"] != update.number]
    return {"updates": [*earlier, {"number": update.number, **facts}][-KEPT:]}


def summary(document: dict[str, Any] | None) -> dict[str, Any] | None:
    """The newest comparison, how many turns were compared and set aside of late, and a sentence if too many were."""
    updates = (document or {}).get("updates", [])
    if not updates:
        return None
    turns, apart = sum(u["turns"] for u in updates), sum(len(u["set_aside"]) for u in updates)
    return {"last": updates[-1], "turns": turns, "set_aside": apart, "alarm": _alarm(turns, apart)}


def _alarm(turns: int, apart: int) -> str | None:
    if apart <= ALARM_SHARE * turns:
        return None
    return (
        f"Engine and trainer disagree about {apart} of the last {turns} answers that were trained on. They are set "
        "aside. Does the engine serve the same weights and versions as the trainer's?"
    )


def in_words(facts: dict[str, Any]) -> str:
    """One comparison, from an update's figures."""
    apart = f"; {len(facts['set_aside'])} set aside" if facts["set_aside"] else ""
    return (
        f"{facts['mean']:.3g} nats a token apart, {facts['largest']:.2g} at most, ratio {facts['ratio']:.3f}, over "
        f"{facts['turns']} turns ({facts['dtype']}: up to {facts['tolerance']:g}{apart})"
    )
