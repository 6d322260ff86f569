"""Stopping at SIGTERM: politely between two pieces of work, or at once in the middle of one."""

from __future__ import annotations

import queue
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class StopFlag:
    """A flag that a signal handler may raise while the same thread waits on it.

    `threading.Event` takes a lock that is not re-entrant, so a signal inside `wait` can deadlock.
    `SimpleQueue.put` is documented to be safe there.
    """

    def __init__(self) -> None:
        self._raised: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._is_set = False

    def set(self) -> None:
        self._is_set = True
        self._raised.put(None)

    def is_set(self) -> bool:
        return self._is_set

    def wait(self, timeout_s: float) -> bool:
        """Sleep until the flag is raised or the time is over. True if it is raised."""
        if not self._is_set:
            try:
                self._raised.get(timeout=timeout_s)
            except queue.Empty:
                return self._is_set
        return self._is_set


@contextmanager
def stop_on_signals(flag: StopFlag) -> Iterator[None]:
    """SIGTERM and SIGINT raise the flag while the block runs. Main thread only."""

    def handler(_number: int, _frame: FrameType | None) -> None:
        flag.set()

    before = {number: signal.signal(number, handler) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


class Stopped(BaseException):
    """Unwinds a long piece of work at SIGTERM. Not an Exception, so no boundary swallows it."""


@contextmanager
def unwind_on_signals() -> Iterator[None]:
    """SIGTERM and SIGINT raise `Stopped` in the main thread, at most once: cleaning up is not interrupted."""

    def handler(_number: int, _frame: FrameType | None) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        raise Stopped

    before = {number: signal.signal(number, handler) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    except Stopped:
        pass
    finally:
        for number, old in before.items():
            signal.signal(number, old)
