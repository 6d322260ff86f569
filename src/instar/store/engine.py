"""Connections and transactions: what is written is durable, and every database error says what to do.

with database.reading() as conn: …    a snapshot
with database.writing() as conn: …    one transaction; on return it is on the disk, on an error nothing is
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, Table, create_engine, event
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError

from instar.errors import StoreError
from instar.store.turnstile import Turnstile

BUSY_TIMEOUT_S = 10.0
_WRITE = "instar_write"


class Database:
    """One database, open in this process. Threads may share it; processes open their own."""

    def __init__(self, url: str) -> None:
        self.url = _parse(url)
        self.engine = _sqlite_engine(self.url) if _is_sqlite(self.url) else _engine(self.url)
        self._turnstile = Turnstile(Path(self.url.database or "")) if _is_sqlite(self.url) else None
        self._closed = False

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """One snapshot. Raises StoreError."""
        self._check_open()
        with explained(self.url), self.engine.connect() as conn, conn.begin():
            yield conn

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """One transaction that holds the write lock from its start. Keep it short. Raises StoreError."""
        self._check_open()
        with (
            explained(self.url),
            self._turnstile.passed(BUSY_TIMEOUT_S) if self._turnstile else nullcontext(),
            self.engine.connect() as conn,
            conn.execution_options(**{_WRITE: True}).begin(),
        ):
            yield conn

    def close(self) -> None:
        """Closing twice is fine. No other thread may be in the middle of something."""
        if not self._closed:
            self._closed = True
            self.engine.dispose()
            if self._turnstile:
                self._turnstile.close()

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError("The store was closed.")


def insert_new(conn: Connection, table: Table, rows: Sequence[dict[str, Any]]) -> int:
    """Insert rows, leaving out those that break a unique constraint. Returns the number inserted."""
    dialect = postgresql if conn.dialect.name == "postgresql" else sqlite
    statement = dialect.insert(table).on_conflict_do_nothing()
    counted = {"preserve_rowcount": True}
    return sum(conn.execute(statement, row, execution_options=counted).rowcount for row in rows)


def put_row(conn: Connection, table: Table, row: dict[str, Any]) -> None:
    """Insert a row, or replace the one with the same primary key."""
    dialect = postgresql if conn.dialect.name == "postgresql" else sqlite
    keys = [column.name for column in table.primary_key]
    changed = {name: value for name, value in row.items() if name not in keys}
    conn.execute(dialect.insert(table).values(row).on_conflict_do_update(index_elements=keys, set_=changed))


@contextmanager
def explained(url: URL) -> Iterator[None]:
    """Turn what the database driver raises into a StoreError that says what to do."""
    try:
        yield
    except (SQLAlchemyError, sqlite3.Error) as error:
        raise StoreError(_explanation(error, url)) from error


_ADVICE = {
    "locked": f"stayed locked for {BUSY_TIMEOUT_S:.0f} s: another program holds it (a backup, a database browser, a "
    "stopped Instar). Close that program and try again",
    "full": "cannot grow: the disk is full. Free some space; what was recorded so far is safe",
    "malformed": "is damaged. Stop Instar, keep a copy of the file, and restore a backup or move it away to begin anew",
    "not a database": "is not a database. Move that file away, or name another one",
    "readonly": "may not be written to. Give this user write permission on the file and its folder",
    "read-only": "may not be written to. Give this user write permission on the file and its folder",
    "unable to open": "cannot be opened. Check that its folder exists and that this user may write to it",
    "disk i/o": "could not be read or written: the disk reports an error. Check the disk and its free space",
}


def _explanation(error: Exception, url: URL) -> str:
    cause = getattr(error, "orig", None) or error
    text = str(cause)
    for sign, advice in _ADVICE.items():
        if sign in text.lower():
            return f"The database {url.database} {advice}. ({text})"
    return f"The database {url.database} refused: {text}. Nothing of this operation was written."


def _parse(url: str) -> URL:
    try:
        parsed = make_url(url)
        parsed.get_dialect()
    except (ArgumentError, NoSuchModuleError, ImportError) as error:
        raise StoreError(
            f"{url!r} is not a database address that can be used ({error}). Use sqlite:////path/to/instar.db"
        ) from error
    return parsed


def _is_sqlite(url: URL) -> bool:
    return url.get_backend_name() == "sqlite"


def _engine(url: URL) -> Engine:
    with explained(url):
        return create_engine(url, pool_pre_ping=True)


def _sqlite_engine(url: URL) -> Engine:
    if not url.database or url.database == ":memory:":
        raise StoreError(
            "The store needs a file: several processes meet in it. Use sqlite:////path/to/instar.db"
        )
    _create_private(Path(url.database))
    engine = create_engine(url, connect_args={"timeout": BUSY_TIMEOUT_S}, pool_size=4, max_overflow=-1)
    event.listen(engine, "connect", _prepare)
    event.listen(engine, "begin", _begin)
    return engine


def _create_private(path: Path) -> None:
    """Conversations are nobody else's business: the file is its owner's alone from its first byte on."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    except OSError as error:
        raise StoreError(
            f"The database {path} cannot be opened: {error.strerror}. Check its folder."
        ) from error


def _prepare(connection: sqlite3.Connection, _record: object) -> None:
    connection.isolation_level = None  # the driver must not begin transactions on its own; `_begin` does
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout={BUSY_TIMEOUT_S * 1000:.0f}")
    _use_wal(cursor)
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.execute("PRAGMA foreign_keys=ON")
    cursor.close()


def _use_wal(cursor: sqlite3.Cursor) -> None:
    """Readers never wait for the writer. Kept in the file, so that all but the first call change nothing.

    SQLite does not apply its busy timeout to the change itself, so processes that start together try again.
    """
    give_up_at = time.monotonic() + BUSY_TIMEOUT_S
    while True:
        try:
            cursor.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > give_up_at:
                raise
            time.sleep(0.02)


def _begin(conn: Connection) -> None:
    # IMMEDIATE: a transaction that reads first and asks for the lock later could be refused in its middle.
    write = conn.get_execution_options().get(_WRITE, False)
    conn.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")
