"""The history of what was decided about versions, and which one is in force."""

from __future__ import annotations

from sqlalchemy import Connection, insert, select

from instar.records import BASE, Fate
from instar.store.schema import activations, decisions


def add_decision(conn: Connection, version: str, fate: Fate, reason: str, now: float) -> None:
    row = {"version": version, "fate": fate.value, "reason": reason, "created_at": now}
    conn.execute(insert(decisions).values(row))


def add_activation(conn: Connection, version: str, reason: str, now: float) -> None:
    row = {"version": version, "reason": reason, "created_at": now}
    conn.execute(insert(activations).values(row))


def active_version(conn: Connection) -> str:
    newest = select(activations.c.version).order_by(activations.c.seq.desc()).limit(1)
    return conn.execute(newest).scalar() or BASE
