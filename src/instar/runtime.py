"""Clock and ids, the two things a test wants to hold in its hand; pauses after failures; what a process may open."""

from __future__ import annotations

import resource
import secrets
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol


class Clock(Protocol):
    """Wall time for what people read, monotonic time for what decides."""

    def now(self) -> float:
        """Seconds since the epoch, for what is shown. May jump: where it decides (quiet, hours), no jump may matter for
        longer than what is waited for."""
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


@dataclass(slots=True)
class Backoff:
    """Doubling pauses between `first_s` and `longest_s`."""

    first_s: float
    longest_s: float
    _next_s: float = field(default=0.0, init=False)

    def fail(self) -> float:
        """Seconds to wait after one more failure."""
        self._next_s = min(self._next_s * 2 or self.first_s, self.longest_s)
        return self._next_s

    def reset(self) -> None:
        self._next_s = 0.0


def new_id(prefix: str) -> str:
    """An unguessable id such as `turn_3f…` (96 random bits)."""
    return f"{prefix}_{secrets.token_hex(12)}"


MOST_FILES = 65_536


def raise_file_limit() -> None:
    """Let this process open as many files as the system grants without asking anybody; each client is one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):  # macOS names limits that it does not grant
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def error_places(error: BaseException) -> list[str]:
    """The places that an error came through, innermost last, for a log: its message may quote a conversation."""
    frames = traceback.extract_tb(error.__traceback__)
    return [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames[-12:]]
