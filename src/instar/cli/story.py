"""A version in plain words: what it learned from, what changed, and why it serves or does not."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from instar.flow.fidelity import in_words
from instar.flow.story import EVENTS

MOST_HINTS = 5
LONGEST = 300
"""Characters of an answer that are shown."""


def when(seconds: float | None) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds)) if seconds else "–"


def tell(console: Console, version: dict[str, Any]) -> None:
    """Print everything a person wants to know of a version, from `GET /v1/versions/{version}`."""
    for line in headline(version):
        console.print(Text(line))
    metrics = version.get("metrics") or {}
    _section(console, "learned from", [*learned(version.get("learned_from") or {}), *gave_nothing(metrics)])
    gate = version.get("gate") or {}
    _examples(console, (gate.get("checks") or {}).get("examples") or [])
    _section(console, "why it passed" if gate.get("passed") else "why it did not pass", gate_lines(gate))
    _section(console, "engine and trainer", compared(metrics.get("fidelity")))
    _section(console, "history", [event(line) for line in version.get("history", [])])


def headline(version: dict[str, Any]) -> list[str]:
    name = version["name"]
    if version.get("damaged"):
        return [f"{name} is damaged: {version['damaged']}"]
    if version.get("parent") is None:
        lines = [f"{name} is the untouched model."]
    else:
        lines = [f"{name} was made {when(version.get('created_at'))} from {version['parent']}."]
    why = f": {version['state_why']}" if version.get("state_why") else ""
    lines.append(f"Now: {version.get('state', '–')}{why}")
    if version.get("children"):
        lines.append(f"Made from it: {', '.join(version['children'])}")
    return lines


def learned(facts: dict[str, Any]) -> list[str]:
    if not facts.get("turns"):
        return []
    lines = [
        f"{_count(facts['turns'], 'turn')} of {_count(facts['sessions'], 'conversation')}: "
        f"{facts['bad']} you did not like, {facts['good']} you liked"
    ]
    hints = facts.get("hints", [])
    lines += [f"you said: {_short(hint)}" for hint in hints[:MOST_HINTS]]
    return [*lines, f"and {len(hints) - MOST_HINTS} more"] if len(hints) > MOST_HINTS else lines


def gave_nothing(metrics: dict[str, Any]) -> list[str]:
    """Of the turns that went in, those that taught nothing or less, and why."""
    refused = Counter((metrics.get("revisions") or {}).get("refused", {}).values())
    lines = [f"{_count(count, 'turn')} gave no better answer: {why}" for why, count in refused.most_common()]
    apart = len((metrics.get("fidelity") or {}).get("set_aside") or {})
    if apart:
        lines.append(
            f"{_count(apart, 'turn')} set aside: the log-probs of sampling and training did not agree"
        )
    return lines


def event(line: dict[str, Any]) -> str:
    why = f": {line['why']}" if line["why"] else ""
    return f"{when(line['at'])}  {EVENTS.get(line['what'], line['what'])}{why}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def gate_lines(gate: dict[str, Any]) -> list[str]:
    if "passed" not in gate:
        return []
    checks = gate.get("checks") or {}
    lines = [gate["why"]]
    if sound := checks.get("sound"):
        fine, base = sound["asked"] - sound["value"], sound["asked"] - sound["of_base"]
        lines.append(
            f"canary questions: {fine} of {sound['asked']} answers sound, the untouched model {base}"
        )
    if kl := checks.get("kl"):
        lines.append(
            f"distance to the untouched model on unrelated texts: {kl['value']:.3f} (at most {kl['bound']:.2f})"
        )
    held = checks.get("held_back") or {}
    if "value" in held:
        lines.append(
            f"turns held back: {held['turns']}, win share {held['value']:.2f}, "
            f"between {held['lower']:.2f} and {held['upper']:.2f} (must be above {held['bound']:.2f})"
        )
    return lines


def compared(facts: dict[str, Any] | None) -> list[str]:
    """How far the log-probs of sampling and of training disagree."""
    return [f"log-probs {in_words(facts)}"] if facts and facts["turns"] else []


def _section(console: Console, title: str, lines: list[str]) -> None:
    if lines:
        console.print(Text(f"\n{title}", style="bold"))
        for line in lines:
            console.print(Text(f"  {line}"))


def _examples(console: Console, examples: list[dict[str, str]]) -> None:
    if not examples:
        return
    table = Table(title=None, header_style="bold", show_lines=True)
    for column in ("question", "before", "after"):
        table.add_column(column, ratio=1 if column == "question" else 2, overflow="fold")
    for example in examples:
        table.add_row(*(Text(_short(example[key])) for key in ("question", "before", "after")))
    console.print(Text("\nwhat changed", style="bold"))
    console.print(table)


def _short(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST].rstrip()} …"
