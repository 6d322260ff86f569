"""From records to rows and back."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import Connection

from instar.content import last_user_index, said_text
from instar.records import Kind, Message, NextKind, NextState, Turn, TurnStatus
from instar.store.columns import AnyRow, pack_floats, pack_ids, unpack_floats, unpack_ids
from instar.store.pieces import HASH_BYTES, Assembler, Pieces, cut_ids, cut_messages, fetch
from instar.store.schema import turns

_AS_THEY_ARE = (
    "id", "session_id", "episode_id", "parent_id", "key_id", "learner", "version", "pinned", "learn", "choice",
    "params", "request_hash", "context_hash", "finish_reason", "created_at", "closed_at", "answer",
)  # fmt: skip


def turn_row(turn: Turn) -> tuple[dict[str, Any], Pieces]:
    """A turn's row, and the pieces it refers to."""
    messages, said = cut_messages(turn.messages)
    tools, offered = cut_messages(turn.tools)
    sampled, blocks = sampled_row(turn.prompt_ids, turn.response_ids, turn.logprobs, turn.forced)
    row = {name: getattr(turn, name) for name in _AS_THEY_ARE} | sampled
    row |= {
        "kind": turn.kind.value,
        "status": turn.status.value,
        "reason": turn.reason or _why_never(turn),
        "message_hashes": messages,
        "tool_hashes": tools or None,
        "question_at": last_user_index(turn.messages),
        "to_judge": False,
        "to_train": False,
    }
    return row, said | offered | blocks


def sampled_row(
    prompt_ids: Sequence[int],
    response_ids: Sequence[int],
    logprobs: Sequence[float],
    forced: Sequence[bool],
) -> tuple[dict[str, Any], Pieces]:
    """The columns that hold tokens, and the blocks they refer to."""
    prompt, blocks = cut_ids(prompt_ids)
    columns = {
        "prompt_hashes": prompt,
        "prompt_len": len(prompt_ids),
        "response_ids": pack_ids(response_ids),
        "response_len": len(response_ids),
        "logprobs": pack_floats(logprobs),
        "forced": bytes(forced) or None,
    }
    return columns, blocks


def _why_never(turn: Turn) -> str | None:
    if turn.learn:
        return None
    return "side" if turn.kind is Kind.SIDE else "opted_out"


_SHARED = ("message_hashes", "prompt_hashes", "tool_hashes")
light_columns = [column for column in turns.c if column.name not in _SHARED]
"""All but the messages, the tools and the prompt, which take most of the time to read."""


def read_light_turns(rows: Iterable[AnyRow]) -> list[Turn]:
    """Turns without messages and prompt ids, from rows with `light_columns`."""
    return [_turn(row, [], [], []) for row in rows]


def read_turns(conn: Connection, rows: Iterable[AnyRow]) -> list[Turn]:
    """Whole turns from rows with all columns."""
    found = list(rows)
    whole = Assembler(fetch(conn, [getattr(row, name) or b"" for row in found for name in _SHARED]))
    return [
        _turn(
            row,
            whole.messages(row.message_hashes),
            whole.messages(row.tool_hashes or b""),
            whole.ids(row.prompt_hashes),
        )
        for row in found
    ]


def read_ids(conn: Connection, rows: Iterable[AnyRow]) -> list[list[int]]:
    """Prompt and response ids of each row, one behind the other."""
    found = list(rows)
    whole = Assembler(fetch(conn, [row.prompt_hashes or b"" for row in found]))
    return [whole.ids(row.prompt_hashes) + unpack_ids(row.response_ids) for row in found]


def _turn(row: AnyRow, messages: list[Message], tools: list[Any], prompt_ids: list[int]) -> Turn:
    return Turn(
        **{name: getattr(row, name) for name in _AS_THEY_ARE},
        kind=Kind(row.kind),
        status=TurnStatus(row.status),
        reason=row.reason,
        messages=messages,
        tools=tools,
        prompt_ids=prompt_ids,
        response_ids=unpack_ids(row.response_ids),
        logprobs=unpack_floats(row.logprobs),
        forced=list(map(bool, row.forced or b"")),
    )


def next_state(row: AnyRow) -> NextState:
    return NextState(
        turn_id=row.turn_id,
        kind=NextKind(row.kind),
        text=row.text,
        created_at=row.created_at,
        by_turn_id=row.by_turn_id,
        score=row.score,
        correction=row.correction,
    )


def questions(conn: Connection, rows: Sequence[AnyRow]) -> list[str]:
    """What the user said last before each turn; of a long history only that message is read."""
    at = [_hash_of_question(row) for row in rows]
    bodies = fetch(conn, [key for key in at if key is not None])
    return ["" if key is None else said_text(json.loads(bodies[key]).get("content")) for key in at]


def _hash_of_question(row: AnyRow) -> bytes | None:
    if row.question_at is None:
        return None
    hashes: bytes = row.message_hashes
    return hashes[row.question_at * HASH_BYTES : (row.question_at + 1) * HASH_BYTES]
