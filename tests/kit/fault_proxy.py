"""A network that fails between a client and the server, as told; everything else goes through as it is, both ways.

It also remembers what the client really sent.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from aiohttp import web

_OWN = {"host", "content-length", "transfer-encoding", "connection", "keep-alive"}


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens to one answer. Events are those of the server-sent stream, the first one is 1.

    `status` answers in the server's stead. `before_s` waits before anything is passed on. `cut_after` events the
    connection breaks; with `late` the server's whole answer is read first, so that it counts as delivered there.
    """

    status: int | None = None
    retry_after_s: int | None = None
    before_s: float = 0.0
    cut_after: int | None = None
    late: bool = False


LOST_END = Fault(cut_after=-1, late=True)
"""All but the last event, `[DONE]`, arrives: the server thinks that it was heard, the client that it was not."""


@dataclass(slots=True)
class Seen:
    """A request as the client sent it, and what became of it."""

    method: str
    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    at: float
    fault: Fault | None
    status: int = 0
    turn: str = ""

    @property
    def last(self) -> dict[str, Any]:
        message: dict[str, Any] = self.body["messages"][-1]
        return message


@dataclass
class FaultProxy:
    """Lives in the event loop in which `start` is called. Faults meet chat requests only, in order, one each."""

    target: str
    faults: deque[Fault] = field(default_factory=deque)
    seen: list[Seen] = field(default_factory=list)
    url: str = ""

    async def start(self) -> None:
        self._http = aiohttp.ClientSession(auto_decompress=False, timeout=aiohttp.ClientTimeout(total=None))
        app = web.Application(client_max_size=1 << 26)
        app.router.add_route("*", "/{path:.*}", self._pass)
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=1.0)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def stop(self) -> None:
        await self._runner.cleanup()
        await self._http.close()

    def fail(self, *faults: Fault) -> None:
        self.faults.extend(faults)

    def chats(self) -> list[Seen]:
        """The chat requests, oldest first."""
        return [request for request in self.seen if request.path == "/v1/chat/completions"]

    async def _pass(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        is_chat = request.method == "POST" and request.path == "/v1/chat/completions"
        fault = self.faults.popleft() if is_chat and self.faults else None
        body = json.loads(raw) if raw else {}
        seen = Seen(request.method, request.path, dict(request.headers), body, time.monotonic(), fault)
        self.seen.append(seen)
        if fault is not None and fault.status is not None:
            seen.status = fault.status
            return _refusal(fault)
        headers = {k: v for k, v in request.headers.items() if k.lower() not in _OWN}
        async with self._http.request(
            request.method, self.target + request.path_qs, data=raw, headers=headers
        ) as answer:
            seen.status, seen.turn = answer.status, answer.headers.get("x-instar-turn", "")
            return await self._answer(request, answer, fault or Fault())

    async def _answer(
        self, request: web.Request, answer: aiohttp.ClientResponse, fault: Fault
    ) -> web.StreamResponse:
        headers = {k: v for k, v in answer.headers.items() if k.lower() not in _OWN}
        response = web.StreamResponse(status=answer.status, headers=headers)
        whole = await answer.read() if fault.late else b""
        await asyncio.sleep(fault.before_s)
        await response.prepare(request)
        if fault.cut_after is None:
            async for part in answer.content.iter_any():
                await response.write(part)
            await response.write_eof()
            return response
        await self._some_events(response, answer, whole, fault.cut_after)
        await asyncio.sleep(0.05)  # let what was written leave before the connection breaks
        answer.close()
        assert request.transport is not None
        request.transport.abort()
        raise asyncio.CancelledError

    async def _some_events(
        self, response: web.StreamResponse, answer: aiohttp.ClientResponse, whole: bytes, count: int
    ) -> None:
        if whole:
            events = whole.split(b"\n\n")[:-1]
            await response.write(b"\n\n".join(events[:count]) + b"\n\n")
            return
        for _ in range(count):
            await response.write(await answer.content.readuntil(b"\n\n"))


def _refusal(fault: Fault) -> web.Response:
    headers = {} if fault.retry_after_s is None else {"Retry-After": str(fault.retry_after_s)}
    body = {"error": {"message": "scripted failure", "type": "server_error", "param": None, "code": None}}
    return web.json_response(body, status=fault.status or 500, headers=headers)
