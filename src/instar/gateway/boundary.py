"""The boundary of a request: what nobody else has caught ends here, and the server goes on.

Two things come so far: a fault of ours, and the end of the server while an answer is still under way. Either way the
client is told in the shape that it expects, in the middle of a stream as well; and the log never holds what a client
sent.
"""

from __future__ import annotations

import asyncio
from typing import Any

import structlog
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from instar.gateway.errors import error_body, error_event, shaped
from instar.runtime import error_places

log = structlog.get_logger()


class Boundary:
    """ASGI middleware around the whole application."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        answer = _Answer(send, scope["path"])
        try:
            await self._app(scope, receive, answer.send)
        except asyncio.CancelledError:
            # Only the server cancels a request, at its end: `server.py` gives answers under way some time before.
            text = "The server is stopping. Send the request again in a moment."
            await answer.end(503, error_body(text, "server_error", "stopping"), {"retry-after": "5"})
        except Exception as error:  # noqa: BLE001  the boundary
            kind, where = type(error).__name__, error_places(error)
            log.error("request_failed", route=_route(scope), error=kind, where=where)
            text = "Something went wrong inside Instar; its log says what."
            await answer.end(500, error_body(text, "server_error", "internal"), {})


class _Answer:
    """Watches an answer being sent, so that it can be brought to an end from any state."""

    def __init__(self, send: Send, path: str) -> None:
        self._send = send
        self._path = path
        self._started = self._ended = self._is_stream = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._started = True
            kinds = [value for name, value in message["headers"] if name.lower() == b"content-type"]
            self._is_stream = any(kind.startswith(b"text/event-stream") for kind in kinds)
        self._ended = message["type"] == "http.response.body" and not message.get("more_body", False)
        await self._send(message)

    async def end(self, status: int, body: dict[str, Any], headers: dict[str, str]) -> None:
        """With a status where none was sent yet, with an event in a stream; else the connection breaks off."""
        if not self._started:
            told = shaped(self._path, status, body)
            await JSONResponse(told, status, headers)({"type": "http"}, _nothing, self._send)
        elif self._is_stream and not self._ended:
            event = error_event(self._path, status, body)
            await self._send({"type": "http.response.body", "body": event, "more_body": False})


async def _nothing() -> Message:
    return {"type": "http.disconnect"}


def _route(scope: Scope) -> str:
    """The route's own pattern: a path would hold what the client wrote."""
    return str(getattr(scope.get("route"), "path", ""))
