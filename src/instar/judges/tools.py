"""Rules for tool output: did the call that the model made work?

The order is that of trust: an exit code, the fields of a reply, the shape of what was asked for, a test summary,
then signs in the text. A rule that is not sure says nothing, since a file that was read may *contain* a traceback.
Only the beginning and the end of an output are looked at, so that a log of a gigabyte costs as much as a line.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Sequence
from typing import Any

from instar.judges import tool_patterns as signs
from instar.judges import tool_sentences as said
from instar.judges import tool_shapes as shapes
from instar.judges.tool_fields import read_value
from instar.records import JudgeItem, NextKind, Verdict

HEAD_CHARS = TAIL_CHARS = 4000
HEAD_LINES, TAIL_LINES = 4, 12
MAX_LINE = 200
MAX_JSON_CHARS = 100_000
MAX_LITERAL_CHARS = 8000
MESSAGE_LINES, MESSAGE_CHARS = 6, 600
"""An output that is no longer is what the tool says itself, and its sentences may be read."""

MAX_RESULTS = 64
"""Tool results of one step that are read; a step that made more calls is judged by its last ones."""


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
    lines = [line[:MAX_LINE] for line in window.splitlines() if line.strip()]
    if not lines:
        return None
    vote = _by_exit_code(lines)
    if vote is not None:
        return vote
    if lines[0].lstrip()[0] in "{[" and len(text) <= MAX_JSON_CHARS:
        value = _as_value(text.strip())
        if value is not None:
            return read_value(value, read_result)
    for judge in (_by_shape, _by_summary):
        vote = judge(lines)
        if vote is not None:
            return vote
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
        found = shapes.EXIT.match(line.strip()[:120])
        if found:
            return 1 if int(found[1]) == 0 else -1
    return None


def _as_value(text: str) -> Any:
    """The value that a text is the JSON of, or the Python literal; None where it is neither."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        pass
    if len(text) > MAX_LITERAL_CHARS or shapes.ODD_ESCAPE.search(text):
        return None
    try:
        return ast.literal_eval(text)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None


def _by_shape(lines: Sequence[str]) -> int | None:
    """What was asked for, in a form that no error message has; the words in it are not the tool's."""
    if shapes.RECORD_HEAD.match(lines[0]) or any(_all_match(form, lines) for form in shapes.CONTENT_FORMS):
        return 1
    if shapes.RESULT_HEAD.match(lines[0]) and any(shapes.RESULT_LINK.match(line) for line in lines):
        return 1
    return 1 if _is_table(lines) else None


def _is_table(lines: Sequence[str]) -> bool:
    """A head, perhaps a rule below it, and at least one row."""
    if len(lines) > 2 and shapes.TABLE_RULE.match(lines[1]):
        return not any(said.NOTHING.search(line) for line in lines)
    rows = [line for line in lines[1:] if line.strip(" -=+|")]
    return bool(rows and shapes.TABLE_HEAD.match(lines[0])) and all(
        shapes.COLUMNS.search(row) for row in rows
    )


def _all_match(form: re.Pattern[str], lines: Sequence[str]) -> bool:
    return all(form.match(line) for line in lines)


def _by_summary(lines: Sequence[str]) -> int | None:
    """The closing lines of a test run or a build: none of them may tell of a failure."""
    votes = {vote for line in lines[-TAIL_LINES:] if (vote := _summary_vote(line.strip())) is not None}
    if -1 in votes:
        return -1
    return 1 if votes and not _is_open(lines) else None


def _summary_vote(line: str) -> int | None:
    return next((vote for pattern, vote in signs.SUMMARIES if pattern.search(line)), None)


def _by_signs(lines: Sequence[str], whole: bool) -> int | None:
    """Failure where that is the last word; where a success follows on one, nobody knows which counts."""
    own = {lines[0], lines[-1]} if whole and _is_message(lines) else set()
    votes = [vote for line in _edges(lines) if (vote := _line_vote(line, line in own)) is not None]
    if -1 in votes:
        return -1 if votes[-1] == -1 else None
    if not votes and not (whole and _is_listing(lines)):
        return None
    return None if _is_open(lines) else 1


def _is_message(lines: Sequence[str]) -> bool:
    """Short, and not the text of a document."""
    short = len(lines) <= MESSAGE_LINES and sum(map(len, lines)) <= MESSAGE_CHARS
    return short and not said.DOCUMENT_HEAD.match(lines[0])


def _line_vote(line: str, own: bool) -> int | None:
    """What the signs on a line say; on one of the tool's `own` words its sentence is read too."""
    text, quoted = line.strip(), shapes.QUOTED.match(line)
    failed = not quoted and any(pattern.search(text) for pattern in signs.FAILURE_SIGNS)
    worked = any(pattern.search(text) for pattern in signs.SUCCESS_SIGNS)
    if own and not quoted and not failed:
        failed = bool(said.REFUSAL.search(text))
        worked = worked or bool(said.REPORT.search(text) and not said.DENIAL.search(text))
    if failed == worked:
        return None
    return -1 if failed else 1


def _is_listing(lines: Sequence[str]) -> bool:
    """Names or sizes of files; bare words are names only beside others with a suffix."""
    if not all(shapes.LISTING_LINE.match(line.strip()) for line in lines):
        return False
    return 2 * sum(bool(shapes.BARE_WORD.match(line)) for line in lines) <= len(lines)


def _is_open(lines: Sequence[str]) -> bool:
    """The tool waits for an answer, or had nothing to do."""
    return bool(said.PROMPT.search(lines[-1])) or any(
        said.NOTHING.search(line.strip()) for line in _edges(lines)
    )
