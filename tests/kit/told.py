"""What the store should say of a conversation, written down beside what it does say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

ANY = None
"""For a question that a client wrote for itself: what it says is its own business."""


@dataclass(frozen=True)
class Told:
    """One turn. `said` are the user's replies to it, `tools` the results of its calls; nothing else may follow it.

    `hint` is compared where there is one. `after` names other kinds of next states, such as `regenerate`.
    """

    kind: str
    question: str | None
    answer: str
    said: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()
    score: int | None = None
    hint: str | None = None
    status: str = "done"
    reason: str | None = None
    version: str = "base"
    after: tuple[str, ...] = ()


def told(row: dict[str, Any], wanted: Told) -> Told:
    """A row of `GET /v1/turns` in the same form, where the wanted one says what is compared."""
    states = row["next_states"]
    return Told(
        kind=row["kind"],
        question=ANY if wanted.question is ANY else row["question"],
        answer=row["answer"],
        said=tuple(s["text"] for s in states if s["kind"] == "user_reply"),
        tools=tuple(s["text"].strip() for s in states if s["kind"] == "tool_result"),
        score=row["score"],
        hint=None if wanted.hint is None else row["hint"],
        status=row["status"],
        reason=row["reason"],
        version=row["version"],
        after=tuple(s["kind"] for s in states if s["kind"] not in {"user_reply", "tool_result"}),
    )


def check(rows: Sequence[dict[str, Any]], wanted: Sequence[Told], sessions: str | None = None) -> None:
    """Compare turn by turn. `sessions` has a letter for each: those of one letter, and no others, share a session."""
    blank = Told("", "", "")
    found = [told(row, wanted[i] if i < len(wanted) else blank) for i, row in enumerate(rows)]
    assert found == list(wanted)
    letters: dict[str, str] = {}
    for row in rows:
        letters.setdefault(row["session_id"], chr(ord("A") + len(letters)))
    if sessions is not None:
        assert "".join(letters[row["session_id"]] for row in rows) == sessions


def talk(question: str, correction: str, praise: str, *between: Told, kind: str = "main") -> list[Told]:
    """A question, a correction, a praise: two judged turns, with what happened `between` the first two answers.

    `kind` is that of the second turn.
    """
    return [
        Told("main", question, "Answer 1 of base.", said=(correction,), score=-1, hint=correction),
        *between,
        Told(kind, correction, "Answer 2 of base.", said=(praise,), score=1),
        Told("main", praise, "Answer 3 of base."),
    ]
