"""Bring a database to this Instar's schema, in one transaction: an interruption leaves the old schema whole."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Connection, inspect, text

from instar.errors import StoreError
from instar.store.engine import Database
from instar.store.schema import REVISION

if TYPE_CHECKING:
    from alembic.config import Config

MIGRATIONS = Path(__file__).with_name("migrations")

_one_at_a_time = threading.Lock()  # Alembic keeps its context in module globals


def migrate(database: Database) -> None:
    """Raises StoreError, for one if a newer Instar has written this database."""
    with database.reading() as conn:
        if _revision(conn) == REVISION:
            return
    # The write lock makes other processes that open the same database wait; then they find the work done.
    with _one_at_a_time, database.writing() as conn:
        found = _revision(conn)
        if found != REVISION:
            _upgrade(conn, found)


def _revision(conn: Connection) -> str | None:
    if not inspect(conn).has_table("alembic_version"):
        return None
    found = conn.execute(text("SELECT version_num FROM alembic_version")).scalar()
    return str(found) if found is not None else None


def _upgrade(conn: Connection, found: str | None) -> None:
    from alembic import command
    from alembic.script import ScriptDirectory

    config = alembic_config()
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    if found is not None and found not in known:
        raise StoreError(
            f"The database was written by a newer Instar (schema {found}; this one knows up to {REVISION}). "
            "Update Instar, or use another data folder."
        )
    config.attributes["connection"] = conn
    command.upgrade(config, "head")


def alembic_config() -> Config:
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config
