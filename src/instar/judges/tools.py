"""Rules for tool output: did the call that the model made work?

The order is that of trust: an exit code, a JSON status, a test summary, then signs in the text. A rule that is
not sure says nothing, since a file that was read may *contain* a traceback. Only the beginning and the end of
an output are looked at, so that a log of a gigabyte costs as much as a line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from instar.judges.tool_patterns import FAILURE_SIGNS, LISTING_LINE, SUCCESS_SIGNS, SUMMARIES
from instar.records import JudgeItem, NextKind, Verdict

HEAD_CHARS = TAIL_CHARS = 4000
HEAD_LINES, TAIL_LINES = 4, 12
MAX_JSON_CHARS = 100_000
MAX_RESULTS = 64
"""Tool results of one step that are read; a step that made more calls is judged by its last ones."""

_EXIT = re.compile(
    r"^\W{0,3}(?:process |command )?(?:finished |failed |completed )?(?:with )?"
    r"(?:exit(?:ed)?(?: with)?(?:[ _]?(?:code|status))?|return ?code|rc)\s{0,3}[:=]?\s{0,3}(-?\d{1,5})\W{0,3}$",
    re.I,
)
_GOOD = {"ok", "success", "succeeded", "successful", "completed", "complete", "done", "passed", "created"}
_BAD = {"error", "failed", "failure", "fail", "timeout", "denied", "forbidden", "unauthorized", "exception"}


class ToolLink:
    """Judges a step by the results of its own tool calls: any failure −1, all clear successes +1."""

    name = "tools"

    def judge(self, item: JudgeItem) -> Verdict | None:
        results = [state.text for state in item.next_states if state.kind is NextKind.TOOL_RESULT]
        if not results:
            return None
        votes = [read_result(text) for text in results[-MAX_RESULTS:]]
        spoken = tuple(vote for vote in votes if vote is not None)
        if -1 in spoken:
            return Verdict(score=-1, votes=spoken, why="a tool that the model called reported a failure")
        if len(spoken) == len(votes):
            return Verdict(score=1, votes=spoken, why="every tool that the model called reported success")
        return None


def read_result(text: str) -> int | None:
    """+1 for a clear success, −1 for a clear failure, None where one output leaves it open."""
    window, whole = _window(text)
    lines = [line.strip() for line in window.splitlines() if line.strip()]
    if not lines:
        return None
    for judge in (_by_exit_code, _by_summary):
        vote = judge(lines)
        if vote is not None:
            return vote
    if lines[0][0] in "{[" and len(text) <= MAX_JSON_CHARS:
        fields = _as_json(text)
        if fields is not None:
            return _by_fields(fields) if isinstance(fields, dict) else None
    return _by_signs(lines, whole)


def _window(text: str) -> tuple[str, bool]:
    """Head and tail of the text, and whether that is all of it."""
    if len(text) <= HEAD_CHARS + TAIL_CHARS:
        return text, True
    return text[:HEAD_CHARS] + "\n" + text[-TAIL_CHARS:], False


def _edges(lines: Sequence[str]) -> list[str]:
    """A verdict of the tool itself stands first or last; the middle is what the tool was asked for."""
    if len(lines) <= HEAD_LINES + TAIL_LINES:
        return list(lines)
    return [*lines[:HEAD_LINES], *lines[-TAIL_LINES:]]


def _by_exit_code(lines: Sequence[str]) -> int | None:
    for line in reversed(_edges(lines)):
        found = _EXIT.match(line[:120])
        if found:
            return 1 if int(found[1]) == 0 else -1
    return None


def _by_summary(lines: Sequence[str]) -> int | None:
    """The closing line of a test run or a build: the last one that matches decides."""
    for line in reversed(lines[-TAIL_LINES:]):
        for pattern, vote in SUMMARIES:
            if pattern.search(line[:300]):
                return vote
    return None


def _by_signs(lines: Sequence[str], whole: bool) -> int | None:
    edges = [line[:300] for line in _edges(lines)]
    failed = any(pattern.search(line) for line in edges for pattern in FAILURE_SIGNS)
    worked = any(pattern.search(line) for line in edges for pattern in SUCCESS_SIGNS)
    if failed or worked:
        return None if failed and worked else (-1 if failed else 1)
    if whole and all(LISTING_LINE.match(line[:300]) for line in lines):
        return 1
    return None


def _as_json(text: str) -> Any:
    """The value that a text is the JSON of; None where it is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _by_fields(value: dict[str, Any]) -> int | None:
    """The usual names of success and failure; a failure anywhere among them wins."""
    found = [vote for name, field in value.items() if (vote := _field_vote(name.lower(), field)) is not None]
    if -1 in found:
        return -1
    return 1 if found else None


def _field_vote(name: str, field: Any) -> int | None:
    if name in {"error", "errors", "exception", "traceback"}:
        return -1 if field else None
    if name in {"iserror", "is_error", "failed"} and isinstance(field, bool):
        return -1 if field else 1
    if name in {"ok", "success", "successful", "succeeded"} and isinstance(field, bool):
        return 1 if field else -1
    if name in {"exit_code", "exitcode", "returncode", "return_code", "exit_status"}:
        return (1 if field == 0 else -1) if isinstance(field, int) else None
    if name in {"status", "state", "result", "outcome", "status_code", "statuscode", "code", "type"}:
        return _status_vote(name, field)
    return None


def _status_vote(name: str, field: Any) -> int | None:
    if isinstance(field, str):
        word = field.strip().lower()
        return 1 if word in _GOOD else -1 if word in _BAD else None
    if isinstance(field, bool) or not isinstance(field, int) or name in {"result", "type", "state"}:
        return None
    return 1 if 200 <= field < 300 else -1 if 400 <= field < 600 else None
