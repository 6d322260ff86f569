"""How good is a judge? Figures from labelled cases, per link, language and kind, and in all.

A case is one JSON object a line: `response`, `next_role` (user or tool), `next_text`, `label` (+1, −1, 0). There may
be `request`, the user's message that the response answers, and `language` (or `lang`) and `kind`, to be counted by.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from instar.errors import ConfigError
from instar.judges.chain import Chain
from instar.records import BASE, JudgeItem, Kind, NextKind, NextState, Turn, Verdict

LABELS = (-1, 0, 1)
ROLES = ("user", "tool")

Figures = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Case:
    response: str
    next_role: str
    next_text: str
    label: int
    request: str = ""
    language: str = ""
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Reading:
    """What was said of one case: the score of each link that was asked, and of the chain; None abstains."""

    case: Case
    links: dict[str, int | None]
    score: int | None
    cpu_ms: float = 0.0


# ── cases ───────────────────────────────────────────────────────────────────────────────────────────────────


def read_cases(path: Path) -> list[Case]:
    """Raises ConfigError that names the line which is not a case."""
    try:
        lines = path.read_text("utf-8").split("\n")
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        line = path.read_bytes()[: error.start].count(b"\n") + 1
        raise ConfigError(f"{path}, line {line}: this is not UTF-8 text.") from error
    cases = [_case(line, f"{path}, line {number}") for number, line in enumerate(lines, 1) if line.strip()]
    if not cases:
        raise ConfigError(f"{path} holds no cases: one JSON object a line is expected.")
    return cases


def _case(line: str, where: str) -> Case:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where} is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise ConfigError(f"{where} is not a JSON object.")
    if "lang" in found:
        found["language"] = found.pop("lang")
    known = {field.name for field in fields(Case)}
    needed = {"response", "next_role", "next_text", "label"}
    if wrong := sorted(found.keys() - known):
        raise ConfigError(f"{where}: {', '.join(wrong)} cannot be in a judge case.")
    if missing := sorted(needed - found.keys()):
        raise ConfigError(f"{where}: {', '.join(missing)} is missing.")
    if type(found["label"]) is not int or found["label"] not in LABELS:
        raise ConfigError(f"{where}: label must be -1, 0 or 1.")
    for name in found.keys() - {"label"}:
        if not isinstance(found[name], str):
            raise ConfigError(f"{where}: {name} must be text.")
    if found["next_role"] not in ROLES:
        raise ConfigError(f"{where}: next_role must be user or tool.")
    return Case(**found)


def as_item(case: Case, number: int = 0) -> JudgeItem:
    """The case as the chain would meet it."""
    turn = Turn(
        id=f"case_{number}",
        session_id="cases",
        episode_id="cases",
        parent_id=None,
        key_id="cases",
        learner="cases",
        kind=Kind.MAIN,
        version=BASE,
        pinned=False,
        messages=[{"role": "user", "content": case.request}],
        request_hash="",
        created_at=0.0,
        answer={"role": "assistant", "content": case.response},
    )
    kind = NextKind.TOOL_RESULT if case.next_role == "tool" else NextKind.USER_REPLY
    return JudgeItem(turn, [NextState(turn.id, kind, case.next_text, 0.0)], lease="")


def judge_cases(
    chain: Chain,
    cases: Sequence[Case],
    *,
    each: bool = False,
    progress: Callable[[str, float], None] | None = None,
) -> list[Reading]:
    """Ask the links in order until one speaks, as the server does; with `each`, ask every link about every case."""
    readings = []
    for number, case in enumerate(cases):
        if progress:
            progress("judging", number / len(cases))
        readings.append(_read(chain, case, number, each))
    if progress:
        progress("judging", 1.0)
    return readings


def _read(chain: Chain, case: Case, number: int, each: bool) -> Reading:
    item, began = as_item(case, number), time.process_time()
    links: dict[str, int | None] = {}
    for link in chain.links:
        said = link.judge(item)
        links[link.name] = said.score if isinstance(said, Verdict) else None
        if links[link.name] is not None and not each:
            break
    score = next((score for score in links.values() if score is not None), None)
    return Reading(case, links, score, (time.process_time() - began) * 1e3)


# ── figures ─────────────────────────────────────────────────────────────────────────────────────────────────


def report(readings: Sequence[Reading]) -> Figures:
    """`all` of the chain, and the same figures by `links`, `languages` and `kinds`; of a link, over the cases on

    which it was asked.
    """
    links = list(dict.fromkeys(name for reading in readings for name in reading.links))
    cpu_ms = sorted(reading.cpu_ms for reading in readings)
    return {
        "all": figures([(r.case.label, r.score) for r in readings]),
        "links": {
            name: figures([(r.case.label, r.links[name]) for r in readings if name in r.links])
            for name in links
        },
        "languages": _by(readings, "language"),
        "kinds": _by(readings, "kind"),
        "cpu_ms": {"median": round(cpu_ms[len(cpu_ms) // 2], 2), "max": round(cpu_ms[-1], 2)},
    }


def figures(pairs: Sequence[tuple[int, int | None]]) -> Figures:
    """Of pairs (label, verdict). All shares are of the cases named; a share of no cases is None.

    accuracy           right among the cases labelled ±1, where an abstention counts as not right
    wrong_sign         the opposite sign, among the cases labelled ±1
    coverage           cases where somebody spoke (0 is speaking too)
    accuracy_spoken    right among those
    alarms             ±1 among the cases labelled 0
    confusion          label → verdict → count
    """
    signed = [(label, score) for label, score in pairs if label != 0]
    neutral = [score for label, score in pairs if label == 0]
    spoken = [(label, score) for label, score in pairs if score is not None]
    return {
        "cases": len(pairs),
        "accuracy": _share(sum(score == label for label, score in signed), len(signed)),
        "wrong_sign": _share(sum(score == -label for label, score in signed), len(signed)),
        "coverage": _share(len(spoken), len(pairs)),
        "accuracy_spoken": _share(sum(score == label for label, score in spoken), len(spoken)),
        "alarms": _share(sum(bool(score) for score in neutral), len(neutral)),
        "confusion": confusion(pairs),
    }


def confusion(pairs: Sequence[tuple[int, int | None]]) -> dict[str, dict[str, int]]:
    counted, verdicts = Counter(pairs), (*LABELS, None)
    return {
        f"{label:+d}": {_name(score): counted[label, score] for score in verdicts}
        for label in LABELS
        if any(counted[label, score] for score in verdicts)
    }


def _by(readings: Sequence[Reading], field: str) -> dict[str, Figures]:
    """Figures of the chain for each value of a field, but for cases that do not name it."""
    values = sorted({getattr(reading.case, field) for reading in readings} - {""})
    return {
        value: figures([(r.case.label, r.score) for r in readings if getattr(r.case, field) == value])
        for value in values
    }


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _name(score: int | None) -> str:
    return "abstains" if score is None else f"{score:+d}"
