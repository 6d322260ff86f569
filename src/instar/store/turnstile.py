"""Writers take turns, and none is passed over.

SQLite lets a writer that finds the database locked sleep and look again, at growing intervals. Beside two busy
processes that come back at once, a third (the gateway, with a person waiting) was seen to wait for seconds. So
writers queue here first:

    queue   held by the one who is next
    turn    held by the one who writes

Who has just written must get `queue` again, and the next in line holds it. Both are locks of the operating system
on files beside the database: a process that dies lets go of them.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from instar.errors import StoreError

_LOOK_AGAIN_S = 0.0005


class Turnstile:
    """One per open database; its threads take turns among themselves first."""

    def __init__(self, database: Path) -> None:
        self._threads = threading.Lock()
        self._queue = _open(database.with_name(f"{database.name}-queue"))
        self._turn = _open(database.with_name(f"{database.name}-turn"))

    @contextmanager
    def passed(self, timeout_s: float) -> Iterator[None]:
        """Raises StoreError when the turn does not come in time."""
        deadline = time.monotonic() + timeout_s
        if not self._threads.acquire(timeout=timeout_s):
            raise _too_long(timeout_s)
        try:
            with _held(self._queue, deadline, timeout_s):
                _take(self._turn, deadline, timeout_s)
            try:
                yield
            finally:
                fcntl.flock(self._turn, fcntl.LOCK_UN)
        finally:
            self._threads.release()

    def close(self) -> None:
        for fd in (self._queue, self._turn):
            os.close(fd)


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
    except OSError as error:
        raise StoreError(f"{path} cannot be opened: {error.strerror}. Check its folder.") from error


@contextmanager
def _held(fd: int, deadline: float, timeout_s: float) -> Iterator[None]:
    _take(fd, deadline, timeout_s)
    try:
        yield
    finally:
        fcntl.flock(fd, fcntl.LOCK_UN)


def _take(fd: int, deadline: float, timeout_s: float) -> None:
    """Looks again and again rather than waiting in the kernel, which knows no timeout: a stopped process would
    stop all others."""
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise _too_long(timeout_s) from None
            time.sleep(_LOOK_AGAIN_S)


def _too_long(timeout_s: float) -> StoreError:
    return StoreError(
        f"The database stayed locked for {timeout_s:.0f} s: another Instar process holds it and does not go on. "
        "Look for a stopped one, end it, and try again."
    )
