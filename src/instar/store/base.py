"""What every part of the store holds: the database, and the two clocks."""

from __future__ import annotations

from instar.runtime import Clock
from instar.store.engine import Database
from instar.store.steady import Steady


class Base:
    """`clock` dates what people read; `steady` decides about leases."""

    def __init__(self, database: Database, clock: Clock, steady: Steady) -> None:
        self._db = database
        self._clock = clock
        self._steady = steady

    def close(self) -> None:
        self._db.close()
