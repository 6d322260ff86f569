"""A clock for leases: shared by all processes of a machine, deaf to changes of the date."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class Instant:
    """A moment: which start of the machine, and how many seconds after it."""

    boot: str
    seconds: float


Steady = Callable[[], Instant]


def steady_now() -> Instant:
    """Seconds since the machine started, suspension included, and the id of that start.

    Wall time would free every lease when the date jumps ahead, and hold them for a day when it jumps back.
    """
    boot_clock = getattr(time, "CLOCK_BOOTTIME", None)
    seconds = time.clock_gettime(boot_clock) if boot_clock is not None else time.monotonic()
    return Instant(_boot_id(), seconds)


def _boot_id() -> str:
    """ "" where the system has none; a clock that went back still tells that the machine was restarted."""
    try:
        return _BOOT_ID.read_text("ascii").strip()
    except OSError:
        return ""
