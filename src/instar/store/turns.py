"""The gateway's side of the store: turns, what followed them, and how they are found again."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, func, insert, select, update

from instar.errors import StoreError
from instar.records import Kind, NextKind, NextState, Turn, TurnOutcome, TurnStatus
from instar.store.base import Base
from instar.store.columns import AnyRow, dumps
from instar.store.engine import insert_new
from instar.store.facts import refresh
from instar.store.pieces import keep
from instar.store.rows import light_columns, read_ids, read_light_turns, read_turns, sampled_row, turn_row
from instar.store.schema import next_states, reservations, turns, uses

_HASHES_PER_QUERY = 1000
_NEWEST_OF_ALL = 256
"""Turns that are looked through for those of sessions in use."""
_SCANNED = [turns.c[name] for name in (
    "session_id", "status", "kind", "pinned", "closed_at", "prompt_hashes", "response_ids",
)]  # fmt: skip
_NEWEST = 64
"""Turns of a session that are looked through for those of one key."""


class Turns(Base):
    def open_turns(self, new: Sequence[Turn], said: Sequence[NextState]) -> None:
        rows = [turn_row(turn) for turn in new]
        with self._db.writing() as conn:
            keep(conn, {key: body for _, pieces in rows for key, body in pieces.items()})
            if rows:
                conn.execute(insert(turns), [row for row, _ in rows])
            # Two calls may have given the same result: the second of them is no repetition of the first.
            alike: Counter[tuple[str, str, str]] = Counter()
            changed = set()
            for state in said:
                same = (state.turn_id, state.kind.value, state.text)
                if _add(conn, state, alike[same]):
                    changed.add(state.turn_id)
                alike[same] += state.kind is NextKind.TOOL_RESULT
            refresh(conn, changed)

    def close_turn(self, turn_id: str, outcome: TurnOutcome) -> None:
        sampled, blocks = sampled_row(
            outcome.prompt_ids, outcome.response_ids, outcome.logprobs, outcome.forced
        )
        values: dict[str, Any] = sampled | {
            "status": outcome.status.value,
            "answer": outcome.answer,
            "context_hash": outcome.context_hash,
            "finish_reason": outcome.finish_reason,
            "closed_at": outcome.closed_at,
        }
        why = outcome.reason or _why_never(outcome.status)
        if why is not None:
            values["reason"] = func.coalesce(turns.c.reason, why)
        with self._db.writing() as conn:
            keep(conn, blocks)
            still_open = (turns.c.id == turn_id) & (turns.c.status == TurnStatus.OPEN.value)
            if conn.execute(update(turns).where(still_open).values(values)).rowcount != 1:
                raise StoreError(f"Turn {turn_id} is not open: it was ended before, or was never begun.")
            refresh(conn, [turn_id])

    def find_by_context(
        self, key_id: str, context_hashes: Sequence[str], session_id: str | None = None
    ) -> list[Turn]:
        wanted = list(dict.fromkeys(context_hashes))
        parts = [wanted[i : i + _HASHES_PER_QUERY] for i in range(0, len(wanted), _HASHES_PER_QUERY)]
        query = select(*light_columns).where(turns.c.key_id == key_id)
        with self._db.reading() as conn:
            same = [
                row for some in parts for row in conn.execute(query.where(turns.c.context_hash.in_(some)))
            ]
        # Status and session are looked at here: asked for them, the database walks all turns of a status or of a
        # session, which grows for months, instead of the few with these hashes.
        found = [
            row for row in same if row.status == TurnStatus.DONE and session_id in (None, row.session_id)
        ]
        return read_light_turns(sorted(found, key=lambda row: row.seq, reverse=True))

    def find_by_request(self, key_id: str, session_id: str, request_hash: str) -> list[Turn]:
        same = (
            (turns.c.session_id == session_id)
            & (turns.c.request_hash == request_hash)
            & (turns.c.key_id == key_id)
        )
        return self._light(same)[::-1]

    def newest_of(self, key_id: str, session_ids: Sequence[str], limit: int) -> list[Turn]:
        # The index on sessions tells the numbers of their turns without a look at any of them.
        inner = select(turns.c.seq).where(turns.c.session_id.in_(session_ids))
        newest = inner.order_by(turns.c.seq.desc()).limit(_NEWEST)
        return self._light(turns.c.seq.in_(newest) & (turns.c.key_id == key_id))[::-1][:limit]

    def ids_in_use(self, since: float, limit: int) -> list[list[int]]:
        newest = select(*_SCANNED).order_by(turns.c.seq.desc()).limit(_NEWEST_OF_ALL)
        with self._db.reading() as conn:
            last: dict[str, AnyRow] = {}
            for row in conn.execute(newest):
                is_plain = row.status == TurnStatus.DONE and row.kind != Kind.SIDE and not row.pinned
                if is_plain and (row.closed_at or 0) >= since and len(last) < limit:
                    last.setdefault(row.session_id, row)
            return read_ids(conn, last.values())

    def children(self, turn_id: str) -> list[Turn]:
        return self._light(turns.c.parent_id == turn_id)[::-1]

    def episode(self, episode_id: str) -> list[Turn]:
        return self._light(turns.c.episode_id == episode_id)

    def _light(self, where: ColumnElement[bool]) -> list[Turn]:
        """Oldest first."""
        with self._db.reading() as conn:
            return read_light_turns(conn.execute(select(*light_columns).where(where).order_by(turns.c.seq)))

    def turn(self, turn_id: str) -> Turn | None:
        with self._db.reading() as conn:
            found = read_turns(conn, conn.execute(select(turns).where(turns.c.id == turn_id)))
            return found[0] if found else None

    def add_feedback(self, state: NextState) -> str | None:
        with self._db.writing() as conn:
            if conn.execute(select(turns.c.seq).where(turns.c.id == state.turn_id)).first() is None:
                raise StoreError(f"There is no turn {state.turn_id}.")
            if _add(conn, state):
                refresh(conn, [state.turn_id])
            return _why_not_learned(conn, state.turn_id)

    def sweep_open(self, reason: str) -> int:
        with self._db.writing() as conn:
            values = {
                "status": TurnStatus.FAILED.value,
                "reason": func.coalesce(turns.c.reason, reason),
                "closed_at": self._clock.now(),
            }
            left_open = turns.c.status == TurnStatus.OPEN.value
            return conn.execute(update(turns).where(left_open).values(values)).rowcount


def _why_never(status: TurnStatus) -> str | None:
    """An answer that nobody saw to its end is not learned from."""
    return None if status in (TurnStatus.DONE, TurnStatus.OPEN) else status.value


def _why_not_learned(conn: Connection, turn_id: str) -> str | None:
    for table, why in ((uses, "learned"), (reservations, "in_update")):
        if conn.execute(select(table.c.turn_id).where(table.c.turn_id == turn_id).limit(1)).first():
            return why
    reason: str | None = conn.execute(select(turns.c.reason).where(turns.c.id == turn_id)).scalar()
    return reason


def _add(conn: Connection, state: NextState, nth: int = 0) -> bool:
    """Write a next state, the `nth` of its like within one request. False if it was known already."""
    row = {
        "turn_id": state.turn_id,
        "kind": state.kind.value,
        "text": state.text,
        "created_at": state.created_at,
        "by_turn_id": state.by_turn_id,
        "score": state.score,
        "correction": state.correction,
    }
    if state.kind is NextKind.FEEDBACK:
        earlier = _feedback(conn, state.turn_id)
        if earlier and earlier[-1] == (state.text, state.score, state.correction):
            return False
        nth = len(earlier)  # who says good, bad and good again means good
    said = dumps([state.text, state.score, state.correction, nth])
    row["text_hash"] = hashlib.sha256(said.encode("utf-8")).hexdigest()
    return insert_new(conn, next_states, [row]) == 1


def _feedback(conn: Connection, turn_id: str) -> list[tuple[str, int | None, str | None]]:
    columns = (next_states.c.text, next_states.c.score, next_states.c.correction)
    of_turn = (next_states.c.turn_id == turn_id) & (next_states.c.kind == NextKind.FEEDBACK.value)
    return [tuple(row) for row in conn.execute(select(*columns).where(of_turn).order_by(next_states.c.seq))]
