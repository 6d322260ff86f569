"""One more line in the history of what was decided about versions."""

from __future__ import annotations

from sqlalchemy import Connection, insert

from instar.records import Fate
from instar.store.schema import decisions


def add_decision(conn: Connection, version: str, fate: Fate, reason: str, now: float) -> None:
    row = {"version": version, "fate": fate.value, "reason": reason, "created_at": now}
    conn.execute(insert(decisions).values(row))
