"""An event loop in a thread of its own: what is asynchronous, for tests that are not."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class LoopThread:
    """Runs from `__enter__` to `__exit__`."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> LoopThread:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def run(self, work: Coroutine[Any, Any, T], timeout_s: float = 30.0) -> T:
        """The result of `work`, which runs in the loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout_s)
