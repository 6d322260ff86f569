"""What every surface does with the events of a turn: begin, collect, and stop when nobody waits any more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, TypeVar

from fastapi import Request

from instar.errors import RequestError
from instar.flow.exchange import Ended, Piece, Serving
from instar.gateway.sse import client_left

T = TypeVar("T")
Events = AsyncGenerator[Serving | Piece | Ended, None]

PATIENCE_S = 5.0
"""How long a stream waits with its first byte, so that an error which comes soon gets a status of its own. Nobody who
waits for the first piece loses anything by it, and no client gives up so early."""


class Begun:
    """A stream of events that began: iterate for its pieces and endings. `aclose` ends it at any moment."""

    def __init__(self, serving: Serving, events: Events) -> None:
        self.serving = serving
        self._first = asyncio.create_task(_next(events))
        self._rest = events

    async def wait(self, patience_s: float) -> None:
        """Until the first piece or that long; raises what went wrong by then."""
        await asyncio.wait({self._first}, timeout=patience_s)
        if self._first.done():
            self._first.result()

    async def __aiter__(self) -> AsyncIterator[Piece | Ended]:
        yield _no_opening(await self._first)
        async for event in self._rest:
            yield _no_opening(event)

    async def aclose(self) -> None:
        self._first.cancel()
        await asyncio.gather(self._first, return_exceptions=True)
        await self._rest.aclose()


def _no_opening(event: Serving | Piece | Ended) -> Piece | Ended:
    assert not isinstance(event, Serving)
    return event


async def begin(events: Events) -> Begun:
    """Waits for the first piece, but not longer than PATIENCE_S. Raises what goes wrong until then."""
    serving = await anext(events)
    assert isinstance(serving, Serving)
    begun = Begun(serving, events)
    try:
        await begun.wait(PATIENCE_S)
    except BaseException:
        await begun.aclose()
        raise
    return begun


async def _next(events: Events) -> Serving | Piece | Ended:
    return await anext(events)


@dataclass(frozen=True, slots=True)
class Collected:
    """Everything that a request gave, by choice."""

    serving: Serving
    pieces: dict[int, list[Piece]]
    ended: dict[int, Ended]

    @property
    def response_tokens(self) -> int:
        return sum(e.response_tokens for e in self.ended.values())


async def collect(events: Events) -> Collected:
    """The whole answer, for those who do not stream."""
    async with aclosing(events):
        serving = await anext(events)
        assert isinstance(serving, Serving)
        found = Collected(serving, {t.choice: [] for t in serving.turns}, {})
        async for event in events:
            if isinstance(event, Piece):
                found.pieces[event.choice].append(event)
            elif isinstance(event, Ended):
                found.ended[event.choice] = event
    return found


async def unless_client_leaves(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Cancels the work, and with it the sampling, when nobody waits for the answer any more."""
    task = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(client_left(request.receive))
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise RequestError("The client left.", status=499)
        return task.result()
    finally:
        watch.cancel()
        task.cancel()
        await asyncio.gather(task, watch, return_exceptions=True)


def turn_headers(serving: Serving) -> dict[str, str]:
    return {
        "x-instar-turn": ",".join(t.id for t in serving.turns),
        "x-instar-version": serving.version,
    }
