"""Clock and ids, the two things a test wants to hold in its hand."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass, field
from typing import Protocol


class Clock(Protocol):
    """Wall time for what people read, monotonic time for what decides."""

    def now(self) -> float:
        """Seconds since the epoch. May jump; never decides anything but what is shown."""
        ...

    def monotonic(self) -> float:
        """Seconds from an arbitrary start, never going back within one process."""
        ...


@dataclass(frozen=True, slots=True)
class SystemClock:
    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()


@dataclass(slots=True)
class FakeClock:
    """A clock that a test moves by hand."""

    wall: float = 1_800_000_000.0
    steady: float = field(default=1_000.0)

    def now(self) -> float:
        return self.wall

    def monotonic(self) -> float:
        return self.steady

    def advance(self, seconds: float) -> None:
        self.wall += seconds
        self.steady += seconds


def new_id(prefix: str) -> str:
    """An unguessable id such as `turn_3f…` (96 random bits)."""
    return f"{prefix}_{secrets.token_hex(12)}"
