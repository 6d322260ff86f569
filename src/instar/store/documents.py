"""Small things that are replaced, not added to: what each loop does, and named documents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, select

from instar.store.base import Base
from instar.store.engine import put_row
from instar.store.schema import documents, heartbeats


class Documents(Base):
    def heartbeat(self, loop: str, state: dict[str, Any]) -> None:
        with self._db.writing() as conn:
            put_row(conn, heartbeats, {"loop": loop, "at": self._clock.now(), "state": state})

    def heartbeats(self) -> dict[str, dict[str, Any]]:
        with self._db.reading() as conn:
            return {row.loop: {**row.state, "at": row.at} for row in conn.execute(select(heartbeats))}

    def get_state(self, name: str) -> dict[str, Any] | None:
        with self._db.reading() as conn:
            return read_document(conn, name)

    def put_state(self, name: str, value: dict[str, Any]) -> None:
        with self._db.writing() as conn:
            put_document(conn, name, value)


def read_document(conn: Connection, name: str) -> dict[str, Any] | None:
    found: dict[str, Any] | None = conn.execute(
        select(documents.c.value).where(documents.c.name == name)
    ).scalar()
    return found


def put_documents(conn: Connection, values: Mapping[str, dict[str, Any]]) -> None:
    """`values` by name."""
    for name, value in values.items():
        put_document(conn, name, value)


def put_document(conn: Connection, name: str, value: dict[str, Any]) -> None:
    put_row(conn, documents, {"name": name, "value": value})
