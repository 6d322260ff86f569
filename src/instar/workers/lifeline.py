"""A child must not outlive its supervisor, not even one that was killed with -9.

The supervisor holds the writing end of each child's stdin and never writes. When it dies, however it dies,
the kernel closes that end and the child reads end-of-file.
"""

from __future__ import annotations

import os
import signal
import threading
import time

HARD_EXIT_AFTER_S = 5.0
"""Time for a clean stop before the process ends anyway; a new server may be waiting for the port."""


def _wait_for_end(descriptor: int) -> None:
    while True:
        try:
            if not os.read(descriptor, 1024):
                return
        except OSError:
            return


def _watch(descriptor: int, grace_s: float) -> None:
    _wait_for_end(descriptor)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(grace_s)
    os._exit(70)


def hold(descriptor: int = 0, grace_s: float = HARD_EXIT_AFTER_S) -> threading.Thread:
    """Begin to watch the lifeline in a daemon thread. At its end: SIGTERM to oneself, then a hard exit."""
    thread = threading.Thread(target=_watch, args=(descriptor, grace_s), name="lifeline", daemon=True)
    thread.start()
    return thread
