"""Several streams of events as one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from typing import TypeVar

T = TypeVar("T")


async def merge(sources: Sequence[AsyncGenerator[T, None]]) -> AsyncGenerator[T, None]:
    """Events of all sources as they come. One source, the usual case, costs nothing.

    Whatever one of them raises ends them all and is raised; closing this closes them.
    """
    if len(sources) == 1:
        async with aclosing(sources[0]) as only:
            async for event in only:
                yield event
        return
    queue: asyncio.Queue[T | Exception | None] = asyncio.Queue()
    tasks = [asyncio.create_task(_drain(source, queue)) for source in sources]
    try:
        for _ in sources:
            while (item := await queue.get()) is not None:
                if isinstance(item, Exception):
                    raise item
                yield item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _drain(source: AsyncIterator[T], queue: asyncio.Queue[T | Exception | None]) -> None:
    """None says that the source is at its end."""
    try:
        async for event in source:
            queue.put_nowait(event)
    except Exception as error:  # noqa: BLE001  raised by who reads the queue, who would wait for ever otherwise
        queue.put_nowait(error)
    else:
        queue.put_nowait(None)
