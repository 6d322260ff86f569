"""The durable truth: turns, next states, judgements, updates, and which version is in force.

    store = open_store("sqlite:////home/me/.instar/instar.db")

Several processes open the same database. Read `schema.py` first, then `facts.py`.
"""

from __future__ import annotations

from instar.runtime import Clock, SystemClock
from instar.store.documents import Documents
from instar.store.engine import Database
from instar.store.judging import Judging
from instar.store.migrate import migrate
from instar.store.ratings import Rated
from instar.store.status import Status
from instar.store.steady import Steady, steady_now
from instar.store.training import Training
from instar.store.turns import Turns
from instar.store.versions import Versions


class SqlStore(Turns, Judging, Rated, Training, Versions, Status, Documents):
    """`ports.Store` on any database that SQLAlchemy speaks to; SQLite by default."""


def open_store(url: str, *, clock: Clock | None = None, steady: Steady = steady_now) -> SqlStore:
    """Open a database, creating or migrating it first. Raises StoreError."""
    database = Database(url)
    try:
        migrate(database)
    except BaseException:
        database.close()
        raise
    return SqlStore(database, clock or SystemClock(), steady)


__all__ = ["SqlStore", "open_store"]
