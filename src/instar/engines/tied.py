"""Runs a program that ends with its parent: `python -m instar.engines.tied PROGRAM ARGUMENT…`.

A worker that was killed outright can end nobody, and a program that is not ours watches no lifeline; so on Linux the
kernel is asked to send it SIGTERM. Elsewhere it may be left behind.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(words: list[str]) -> None:
    """Becomes the program; does not return."""
    parent = os.getppid()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != parent:
            sys.exit(1)  # it died before the kernel knew
    os.execv(words[0], words)  # noqa: S606  no shell is meant


if __name__ == "__main__":
    main(sys.argv[1:])
