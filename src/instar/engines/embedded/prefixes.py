"""Keys and values of finished answers, kept for the next request of the same conversation.

Chats send their whole history again. What is kept is keyed by version and by the tokens themselves; a hit is
copied (23 KB a token for the starter model: milliseconds, where computing it takes a second per thousand).
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

from instar.engines.embedded.adapters import Adapter
from instar.engines.embedded.kv import Layout, StreamCache

_WORTH_KEEPING = 32
_MAX_KEPT = 32


@dataclass(slots=True, eq=False)
class _Kept:
    cache: StreamCache
    adapter: Adapter | None
    ids: list[int]


class Prefixes:
    """At most `max_tokens` tokens of memory, the least recently used go first."""

    def __init__(self, layout: Layout, max_tokens: int) -> None:
        self._layout, self._max_tokens = layout, max_tokens
        self._kept: list[_Kept] = []  # oldest use first
        self._lock = threading.Lock()

    def fill(self, cache: StreamCache, adapter: Adapter | None, prompt: Sequence[int]) -> None:
        """Copy the longest known prefix into an empty cache. One token is always left to compute."""
        with self._lock:
            best, length = None, 0
            for kept in self._kept:
                if kept.adapter is adapter:
                    common = _common(kept.ids, prompt, len(prompt) - 1)
                    if common > length:
                        best, length = kept, common
            if best is None or length < _WORTH_KEEPING:
                return
            self._kept.remove(best)
            self._kept.append(best)
        cache.copy_from(best.cache, length)

    def keep(self, cache: StreamCache, adapter: Adapter | None, ids: list[int]) -> None:
        """Remember a finished stream, in place of what it continues."""
        if cache.length < _WORTH_KEEPING:
            return
        with self._lock:
            self._kept = [
                kept
                for kept in self._kept
                if kept.adapter is not adapter or _common(kept.ids, ids, len(kept.ids)) < len(kept.ids)
            ]
            self._kept.append(_Kept(cache, adapter, ids))
            self._trim(self._max_tokens)

    def make_room(self, max_tokens: int) -> None:
        """Running streams need the memory: keep at most so many tokens."""
        with self._lock:
            self._trim(max_tokens)

    def forget(self, adapter: Adapter) -> None:
        with self._lock:
            self._kept = [kept for kept in self._kept if kept.adapter is not adapter]

    def _trim(self, max_tokens: int) -> None:
        total = sum(kept.cache.length for kept in self._kept)
        while self._kept and (total > max_tokens or len(self._kept) > _MAX_KEPT):
            total -= self._kept.pop(0).cache.length


def _common(a: Sequence[int], b: Sequence[int], limit: int) -> int:
    """Length of the common prefix, at most `limit`."""
    size = min(len(a), len(b), limit)
    if a[:size] == b[:size]:
        return size
    return next(i for i in range(size) if a[i] != b[i])
