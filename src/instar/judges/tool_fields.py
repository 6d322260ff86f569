"""Rules for tool output that is a well-formed reply: what its fields say of success and failure.

A failure that a field names wins. A reply that is pending or has found nothing stays open. After that a success
counts that a field names, then what the reply's text says, and last that the reply holds what was asked for.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

ReadText = Callable[[str], int | None]

MAX_DEPTH = 3
MAX_ITEMS = 32
DATA_FIELDS = 3
"""An object with so many fields, none of which tells of a failure, is an answer."""

_WORD_EDGE = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_GOOD = re.compile(
    r"^(?:ok|success(?:ful)?|succeeded|completed?|done|passed|created|confirmed|sent|delivered|saved|updated|deleted)$"
)
_BAD = re.compile(
    r"(?:^|[_\s-])(?:error|fail(?:ed|ure)?|time(?:d[_ ]?)?out|denied|forbidden|unauthori[sz]ed|unauthenticated"
    r"|exception|not[_ ]found|invalid|rejected|refused|expired|unavailable|unreachable|aborted|crashed|exceeded)$"
)
_ERRNO = re.compile(r"^E[A-Z]{4,}$")
_PENDING = re.compile(
    r"^(?:running|pending|queued|in[_ -]?progress|processing|waiting|starting|started|accepted|submitted"
    r"|awaiting\w*|(?:requires|needs|waiting)[_ ]\w{1,40})$"
)
_IDENTITY = re.compile(r"(?:^|_)(?:id|uid|uuid|url|uri|arn|link|sha)$")

_ERROR = re.compile(
    r"(?:^|_)(?:errors?|faults?|exception|traceback|failure)(?:_?(?:string|message|code|type|reason))?$"
)
_FAILED_FLAGS = {"is_error", "iserror", "failed", "timed_out"}
_WORKED_FLAGS = {"ok", "success", "successful", "succeeded", "is_success"}
_EXITS = {"exit_code", "exitcode", "returncode", "return_code", "exit_status"}
_STATUSES = {"status", "state", "result", "outcome", "status_code", "statuscode", "code", "type"}
_DONE_FLAGS = {
    "sent",
    "created",
    "saved",
    "updated",
    "deleted",
    "added",
    "acknowledged",
    "delivered",
    "completed",
}
_REASONS = {"reason", "message", "detail", "details", "msg"}
_TEXTS = {*_REASONS, "text", "output", "stdout", "content", "response", "result"}
_WRAPPERS = {"metadata", "meta", "result", "response", "output"}
_COUNTS = re.compile(r"^(?:count|total|(?:num|total)_(?:count|results)|result_(?:count|size_estimate))$")
_FINDINGS = re.compile(
    r"^(?:results|items|matches|hits|events|messages|emails|contacts|data|rows|records|files|entries)$"
)


def read_value(value: Any, read_text: ReadText, depth: int = 0) -> int | None:
    """+1, −1 or None for the value that a reply is; a text inside is read with `read_text`."""
    if depth > MAX_DEPTH:
        return None
    if isinstance(value, str):
        return read_text(value)
    if isinstance(value, list):
        return _by_items([item for item in value[:MAX_ITEMS] if isinstance(item, dict)], read_text, depth)
    return _by_fields(_named(value), read_text, depth) if isinstance(value, dict) else None


def _named(value: dict[str, Any]) -> dict[str, Any]:
    """Fields under one spelling: isError and is_error are the same."""
    return {_WORD_EDGE.sub("_", str(name)).lower(): field for name, field in value.items()}


def _by_items(items: list[dict[str, Any]], read_text: ReadText, depth: int) -> int | None:
    """A list is data: the states of its items are not the call's, only blocks of text and errors are."""
    if items and all(item.get("type") == "text" and isinstance(item.get("text"), str) for item in items):
        return _joined(read_text(item["text"]) for item in items)
    if any(_flag_vote(name, field) == -1 for item in items for name, field in _named(item).items()):
        return -1
    return 1 if any(items) else None


def _by_fields(fields: dict[str, Any], read_text: ReadText, depth: int) -> int | None:
    votes = [vote for name, field in fields.items() if (vote := _field_vote(name, field)) is not None]
    votes += [_inner(fields[name], read_text, depth) or 0 for name in _WRAPPERS & fields.keys()]
    if -1 in votes or _was_refused(fields):
        return -1
    if _is_open(fields):
        return None
    if 1 in votes:
        return 1
    told = _joined(read_value(fields[name], read_text, depth + 1) for name in _TEXTS & fields.keys())
    return told if told is not None else _by_data(fields)


def _inner(value: Any, read_text: ReadText, depth: int) -> int | None:
    return read_value(value, read_text, depth + 1) if isinstance(value, dict) else None


def _joined(votes: Iterable[int | None]) -> int | None:
    spoken = {vote for vote in votes if vote is not None}
    return min(spoken) if spoken else None


def _field_vote(name: str, field: Any) -> int | None:
    return _status_vote(name, field) if name in _STATUSES else _flag_vote(name, field)


def _flag_vote(name: str, field: Any) -> int | None:
    """Names that say for themselves that the call worked or not."""
    if isinstance(field, str) and field.lower() in {"true", "false"}:
        field = field.lower() == "true"
    if isinstance(field, bool):
        return _bool_vote(name, field)
    if _ERROR.search(name) or (name == "detail" and isinstance(field, list)):
        return -1 if field else None
    if name in _EXITS and isinstance(field, int):
        return 1 if field == 0 else -1
    return None


def _bool_vote(name: str, field: bool) -> int | None:
    if name in _FAILED_FLAGS or name == "error":
        return -1 if field else 1
    if name in _WORKED_FLAGS:
        return 1 if field else -1
    return 1 if name in _DONE_FLAGS and field else None


def _status_vote(name: str, field: Any) -> int | None:
    if isinstance(field, str) and field.isascii() and field.isdigit() and len(field) == 3:
        field = int(field)
    if isinstance(field, str):
        return _word_vote(field.strip())
    if isinstance(field, bool) or not isinstance(field, int) or name in {"result", "type", "state"}:
        return None
    return 1 if 200 <= field < 300 else -1 if 400 <= field < 600 else None


def _word_vote(word: str) -> int | None:
    if len(word) > 60:
        return None
    if _ERRNO.match(word) or _BAD.search(word.lower()):
        return -1
    return 1 if _GOOD.match(word.lower()) else None


def _was_refused(fields: dict[str, Any]) -> bool:
    """`"sent": false` beside a reason; without one it may be the state of a thing."""
    return bool(_REASONS & fields.keys()) and any(fields.get(name) is False for name in _DONE_FLAGS)


def _is_open(fields: dict[str, Any], depth: int = 0) -> bool:
    """Still under way, or a search without a match, here or in a reply inside."""
    inner = (_named(field) for field in fields.values() if isinstance(field, dict))
    if depth < MAX_DEPTH and any(_is_open(reply, depth + 1) for reply in inner):
        return True
    if any(isinstance(fields.get(name), str) and _PENDING.match(fields[name].lower()) for name in _STATUSES):
        return True
    if any(field == 0 for name, field in fields.items() if _COUNTS.match(name)):
        return True
    found = [field for name, field in fields.items() if _FINDINGS.match(name) and isinstance(field, list)]
    return bool(found) and not any(found)


def _by_data(fields: dict[str, Any]) -> int | None:
    """Something with a name of its own, a filled collection, or several fields."""
    if _REASONS & fields.keys():
        return None
    named = any(_IDENTITY.search(name) for name, field in fields.items() if isinstance(field, str | int))
    filled = any(
        field and isinstance(field, dict | list) and name not in _TEXTS for name, field in fields.items()
    )
    return 1 if named or filled or len(fields) >= DATA_FIELDS else None
