"""The judge's side of the store: what waits to be judged, who has it in hand, and the judgements."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, and_, delete, func, insert, or_, select, true, update

from instar.errors import LeaseLost
from instar.records import JudgeItem, Judgement
from instar.store.base import Base
from instar.store.columns import AnyRow, AnySelect
from instar.store.engine import put_row
from instar.store.facts import POISON, refresh
from instar.store.rows import next_state, read_turns
from instar.store.schema import judgements, leases, next_states, turns
from instar.store.steady import Instant

MAX_TRIES = 3


class Judging(Base):
    def lease_unjudged(self, worker: str, limit: int, ttl_s: float) -> list[JudgeItem]:
        with self._db.reading() as conn:
            if conn.execute(_free(self._steady(), 1)).first() is None:
                return []  # the usual case by far, and it takes no lock
        with self._db.writing() as conn:
            # Read under the lock: with an older reading, a lease that was taken while this process waited for
            # the lock would seem to come from the time before a restart.
            now = self._steady()
            free = conn.execute(_free(now, limit)).all()
            worn_out = [row.id for row in free if (row.tries or 0) >= MAX_TRIES]
            _set_aside(conn, worn_out)
            taken = [row for row in free if row.id not in worn_out]
            return _lease(conn, taken, worker, now, ttl_s)

    def record_judgement(self, judgement: Judgement, lease: str) -> None:
        held = (leases.c.turn_id == judgement.turn_id) & (leases.c.token == lease)
        with self._db.writing() as conn:
            found = conn.execute(select(leases.c.basis).where(held)).first()
            if found is None:
                raise LeaseLost(f"Turn {judgement.turn_id} is in other hands now; this judgement is dropped.")
            for each in (*judgement.others, judgement):  # the last one counts
                conn.execute(insert(judgements).values(_judgement_row(each, found.basis)))
            conn.execute(delete(leases).where(held))
            refresh(conn, [judgement.turn_id])

    def renew_leases(self, held: Sequence[str], ttl_s: float) -> None:
        with self._db.writing() as conn:
            until = self._steady().seconds + ttl_s
            conn.execute(update(leases).where(leases.c.token.in_(held)).values(expires_s=until))

    def return_leases(self, held: Sequence[str]) -> None:
        with self._db.writing() as conn:
            conn.execute(delete(leases).where(leases.c.token.in_(held)))


def _free(now: Instant, limit: int) -> AnySelect:
    """Turns to be judged that nobody holds, oldest first.

    A lease is over when its time is up or the machine was started again since. Where the system does not tell its
    starts apart, a clock that stands before the lease's beginning does.
    """
    over = or_(
        leases.c.token.is_(None),
        leases.c.boot != now.boot,
        leases.c.expires_s <= now.seconds,
        leases.c.taken_s > now.seconds,
    )
    return (
        select(turns, leases.c.tries)
        .select_from(turns.outerjoin(leases, leases.c.turn_id == turns.c.id))
        .where(and_(turns.c.to_judge == true(), over))
        .order_by(turns.c.seq)
        .limit(limit)
    )


def _set_aside(conn: Connection, turn_ids: Sequence[str]) -> None:
    """Whoever took these turns died of them, again and again: the others must go on."""
    if turn_ids:
        conn.execute(update(turns).where(turns.c.id.in_(turn_ids)).values(reason=POISON))
        conn.execute(delete(leases).where(leases.c.turn_id.in_(turn_ids)))
        refresh(conn, turn_ids)


def _lease(
    conn: Connection, rows: Sequence[AnyRow], worker: str, now: Instant, ttl_s: float
) -> list[JudgeItem]:
    said = _next_states(conn, [row.id for row in rows])
    items = []
    for row, turn in zip(rows, read_turns(conn, rows), strict=True):
        token = secrets.token_hex(12)
        lease = {
            "turn_id": row.id,
            "token": token,
            "worker": worker,
            "basis": max(state.seq for state in said[row.id]),
            "boot": now.boot,
            "taken_s": now.seconds,
            "expires_s": now.seconds + ttl_s,
            "tries": (row.tries or 0) + 1,
        }
        put_row(conn, leases, lease)
        items.append(JudgeItem(turn, [next_state(state) for state in said[row.id]], token))
    return items


def _next_states(conn: Connection, turn_ids: Sequence[str]) -> dict[str, list[AnyRow]]:
    found: dict[str, list[AnyRow]] = {turn_id: [] for turn_id in turn_ids}
    rows = select(next_states).where(next_states.c.turn_id.in_(turn_ids)).order_by(next_states.c.seq)
    for row in conn.execute(rows):
        found[row.turn_id].append(row)
    return found


def _judgement_row(judgement: Judgement, basis: int) -> dict[str, Any]:
    return {
        "turn_id": judgement.turn_id,
        "basis": basis,
        "score": judgement.score,
        "source": judgement.source.value,
        "link": judgement.link,
        "created_at": judgement.created_at,
        "votes": list(judgement.votes),
        "hint": judgement.hint,
        "correction": judgement.correction,
        "why": judgement.why,
    }


def count_unjudged(conn: Connection) -> int:
    return conn.execute(
        select(func.count()).select_from(turns).where(turns.c.to_judge == true())
    ).scalar_one()
