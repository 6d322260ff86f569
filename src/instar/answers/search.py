"""Looking for marks in text that is still growing."""

from __future__ import annotations

from collections.abc import Sequence


def find_first(text: str, marks: Sequence[str]) -> tuple[int, str] | None:
    """The earliest of the marks and where it begins; of two at one place the longer one."""
    found = [(at, -len(mark), mark) for mark in marks if (at := text.find(mark)) >= 0]
    if not found:
        return None
    at, _, mark = min(found)
    return at, mark


def overlap(text: str, marks: Sequence[str]) -> int:
    """Length of the longest ending of `text` that begins a mark."""
    sizes = (
        size
        for mark in marks
        for size in range(1, min(len(mark) - 1, len(text)) + 1)
        if mark.startswith(text[-size:])
    )
    return max(sizes, default=0)


def held_from(text: str, marks: Sequence[str]) -> int:
    """Where the ending begins that cannot be shown yet: the beginning of a mark, and white space before it."""
    return len(text[: len(text) - overlap(text, marks)].rstrip())
