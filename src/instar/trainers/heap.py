"""What becomes of memory that is freed: glibc keeps it for the next allocation, or hands it back to the system.

Kept, it need not be faulted in anew: the same gigabyte is needed in every step (30 % of its time). But a freed block
hardly serves an aligned one of the same size again (glibc 2.36), so what is held grows to twice and more of what is in
use. Where memory is what counts, blocks come from the system and go back to it one by one.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
KEEP, HAND_BACK = 2**30, 2**18
"""Bytes from which a block is the system's own."""


def keep_freed() -> None:
    """Keep freed memory, in this process from now on."""
    _set(_MMAP_THRESHOLD, KEEP)
    _set(_TRIM_THRESHOLD, 2**31 - 1)
    _set(_TOP_PAD, 2**26)


@contextmanager
def handing_back(wanted: bool) -> Iterator[None]:
    """Hand freed memory back while the block runs."""
    if wanted:
        _set(_MMAP_THRESHOLD, HAND_BACK)
    try:
        yield
    finally:
        if wanted:
            _set(_MMAP_THRESHOLD, KEEP)


def _set(option: int, value: int) -> None:
    try:
        ctypes.CDLL(None).mallopt(option, value)
    except (OSError, AttributeError):
        return  # another C library
