"""A small share of a core for a process that otherwise takes only the time that nobody else wants.

In the idle scheduling class a process is never felt and, beside a server that keeps every core busy, hardly ever runs
(weight 3 against 1024). So its parent, at normal priority, counts the processor time that it got. When that falls
behind the guarantee, the process is lifted out of the idle class until it has caught up: some milliseconds at a time.

Leaving the idle class takes a privilege (`RLIMIT_NICE` or `CAP_SYS_NICE`), from inside and from outside. Where it is
missing, the process is made so nice from the beginning that its weight beside one busy process is the guarantee.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

WINDOW_S = 3.0
"""What it got more than this long ago does not count."""
MOST_OWED_S = 0.05
"""Processor time that may be caught up in one go: no answer is held up for longer."""
TICK_S = 0.01
LONGEST_PAUSE_S = 1.0


def nice_for(share: float) -> int:
    """The nice value with this share of a core beside one busy process at 0: a step is a factor of 1.25 (sched(7))."""
    return 19 if share <= 0 else max(0, min(19, round(math.log((1 - share) / share, 1.25))))


def can_leave_idle() -> bool:
    """Whether this user's processes may leave the idle class, tried out in a thread that ends at once."""
    if not hasattr(os, "SCHED_IDLE"):
        return False
    found: list[bool] = []

    def there_and_back() -> None:
        try:
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))  # on Linux, of the calling thread
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
            found.append(True)
        except OSError:
            found.append(False)

    thread = threading.Thread(target=there_and_back)
    thread.start()
    thread.join()
    return found == [True]


@dataclass(slots=True)
class Account:
    """Processor time that is owed, in seconds: `share` of the time that passes, less what was used."""

    share: float
    owed_s: float = 0.0

    def count(self, passed_s: float, used_s: float) -> None:
        balance = self.owed_s + self.share * passed_s - used_s
        self.owed_s = max(-self.share * WINDOW_S, min(MOST_OWED_S, balance))

    @property
    def next_look_s(self) -> float:
        """Seconds until something can be owed, if nothing is used meanwhile."""
        return min(LONGEST_PAUSE_S, max(TICK_S, -self.owed_s / self.share))


class Guarantee:
    """Sees to it that a process gets its share, while `held`."""

    def __init__(
        self,
        pid: int,
        share: float,
        *,
        used_s: Callable[[int], float] | None = None,
        lift: Callable[[int, bool], None] | None = None,
    ) -> None:
        self._pid, self._account = pid, Account(share)
        self._used_s, self._lift = used_s or processor_s, lift or set_class
        self._over = threading.Event()
        self._lifted = False

    @contextmanager
    def held(self) -> Iterator[None]:
        thread = threading.Thread(target=self._run, name="guaranteed-share", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()

    def _run(self) -> None:
        with contextlib.suppress(psutil.NoSuchProcess):  # it died; whoever waits for its answer will notice
            self._look()
        self._set(False)

    def _look(self) -> None:
        before, used_before = time.monotonic(), self._used_s(self._pid)
        while not self._over.wait(TICK_S if self._lifted else self._account.next_look_s):
            now, used = time.monotonic(), self._used_s(self._pid)
            self._account.count(now - before, used - used_before)
            before, used_before = now, used
            self._set(self._account.owed_s > 0)

    def _set(self, lifted: bool) -> None:
        if lifted != self._lifted:
            self._lifted = lifted
            self._lift(self._pid, lifted)


def processor_s(pid: int) -> float:
    """Processor time of a process so far. Raises psutil.NoSuchProcess."""
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def set_class(pid: int, lifted: bool) -> None:
    """Put all threads of a process into the normal or the idle class. Linux only."""
    policy = os.SCHED_OTHER if lifted else os.SCHED_IDLE
    with contextlib.suppress(FileNotFoundError):
        for thread in list(Path(f"/proc/{pid}/task").iterdir()):
            with contextlib.suppress(ProcessLookupError):  # a thread that has ended since
                os.sched_setscheduler(int(thread.name), policy, os.sched_param(0))
