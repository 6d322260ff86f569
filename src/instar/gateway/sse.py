"""Server-sent events to a client that may leave at any moment, and must not think that we have."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Any, Protocol

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

DONE = b"data: [DONE]\n\n"


async def client_left(receive: Receive) -> None:
    """Returns when the client has gone. The request's body must have been read."""
    while (await receive())["type"] != "http.disconnect":
        pass


def data_event(body: Mapping[str, Any]) -> bytes:
    return b"data: " + json.dumps(body).encode() + b"\n\n"


def named_event(body: Mapping[str, Any]) -> bytes:
    """An event whose name is its `type`, as the Responses API and Anthropic's want it."""
    return f"event: {body['type']}\ndata: {json.dumps(body)}\n\n".encode()


class Source(Protocol):
    """What events are made from."""

    def aclose(self) -> Awaitable[object]: ...


class EventStream(Response):
    """Sends events as they come. When the client leaves, and at any other end, `source` is closed, which cancels what
    they are made from; closing `events` would not do, since they may not have begun.

    Whenever nothing was sent for `ping_s` seconds, `ping` is asked for bytes: while a long prompt is read, clients
    that hear nothing give up. The first event must come at once; no ping goes out before it.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        source: Source,
        events: AsyncGenerator[bytes, None],
        headers: Mapping[str, str],
        *,
        ping: Callable[[], bytes],
        ping_s: float,
    ) -> None:
        super().__init__(headers={**headers, "cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._source = source
        self._events = events
        self._ping = ping
        self._ping_s = ping_s
        self._sending = asyncio.Lock()
        self._sent_at: float | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        pump = asyncio.create_task(self._pump(send))
        beat = asyncio.create_task(self._beat(send))
        watch = asyncio.create_task(client_left(receive))
        try:
            await asyncio.wait({pump, watch}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (beat, watch, pump):
                task.cancel()
            await asyncio.gather(beat, watch, pump, return_exceptions=True)
            await self._source.aclose()
        if not pump.cancelled() and (error := pump.exception()):
            raise error

    async def _pump(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async with aclosing(self._events) as events:
            async for event in events:
                await self._send(send, event)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _beat(self, send: Send) -> None:
        """While the lock is held a slow client has still to read what there is: it needs no ping."""
        clock = asyncio.get_running_loop().time
        while True:
            quiet_s = 0.0 if self._sent_at is None or self._sending.locked() else clock() - self._sent_at
            if quiet_s >= self._ping_s:
                await self._send(send, self._ping())
            else:
                await asyncio.sleep(self._ping_s - quiet_s)

    async def _send(self, send: Send, event: bytes) -> None:
        """One event after the other, in the order in which they were made: they may be numbered."""
        async with self._sending:
            await send({"type": "http.response.body", "body": event, "more_body": True})
            self._sent_at = asyncio.get_running_loop().time()
