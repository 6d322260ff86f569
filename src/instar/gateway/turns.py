"""What every surface does with the events of a turn: begin, hand on or gather, and stop when nobody waits any more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Sequence
from contextlib import aclosing
from typing import Any, Protocol, TypeVar

from fastapi import Request
from starlette.responses import JSONResponse, Response

from instar.errors import InstarError, RequestError
from instar.flow.exchange import Ended, Piece, Serving
from instar.gateway.sse import EventStream, client_left

T = TypeVar("T")
Events = AsyncGenerator[Serving | Piece | Ended, None]
Event = dict[str, Any]

PATIENCE_S = 5.0
"""How long a stream waits with its first byte, so that an error which comes soon gets a status of its own. Nobody who
waits for the first piece loses anything by it, and no client gives up so early."""


class Builder(Protocol):
    """Makes of a turn what the clients of one API expect: event by event, or as a whole."""

    def begin(self) -> Sequence[Event]:
        """What is told before the first piece."""
        ...

    def add(self, piece: Piece) -> Sequence[Event]: ...

    def end(self, ended: Ended) -> Sequence[Event]: ...

    def encode(self, event: Event) -> bytes: ...

    def ping(self) -> bytes:
        """Says that it goes on, and changes nothing."""
        ...

    def fail(self, error: InstarError) -> bytes:
        """Takes the place of all that was still to come."""
        ...

    def close(self) -> bytes:
        """What stands behind the last event."""
        ...

    def whole(self) -> dict[str, Any]:
        """The answer for those who do not stream, once all was added."""
        ...


async def answer(
    request: Request,
    events: Events,
    build: Callable[[Serving], Builder],
    *,
    stream: bool | None,
    ping_s: float,
) -> Response:
    """What a client gets for a turn. Raises what went wrong before there was anything to send."""
    if not stream:
        return await unless_client_leaves(request, _whole(events, build))
    begun = await unless_client_leaves(request, begin(events))
    builder = build(begun.serving)
    return EventStream(
        begun, _encoded(begun, builder), turn_headers(begun.serving), ping=builder.ping, ping_s=ping_s
    )


async def _whole(events: Events, build: Callable[[Serving], Builder]) -> Response:
    async with aclosing(events):
        serving = await anext(events)
        assert isinstance(serving, Serving)
        builder = build(serving)
        async for event in events:
            _tell(builder, _no_opening(event))
    return JSONResponse(builder.whole(), headers=turn_headers(serving))


async def _encoded(begun: Begun, builder: Builder) -> AsyncGenerator[bytes, None]:
    for opening in builder.begin():
        yield builder.encode(opening)
    try:
        async for event in begun:
            for told in _tell(builder, event):
                yield builder.encode(told)
    except InstarError as error:
        yield builder.fail(error)
        return
    if last := builder.close():
        yield last


def _tell(builder: Builder, event: Piece | Ended) -> Sequence[Event]:
    return builder.add(event) if isinstance(event, Piece) else builder.end(event)


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
