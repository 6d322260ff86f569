"""One client's connection, and what it may not do: be slow without end, send a head without end, crowd out others.

uvicorn bounds none of these. Everything is measured at the connection, since a request that never becomes complete
never reaches the application.
"""

from __future__ import annotations

import asyncio
import json
import socket
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from instar.gateway.errors import error_body, shaped


@dataclass(frozen=True, slots=True)
class Limits:
    """What a connection is allowed. A body may take `head_s` plus its bytes at `body_bytes_per_s`."""

    connections: int = 1024
    head_s: float = 10.0
    body_bytes_per_s: float = 16 * 1024
    linger_s: float = 3.0  # an answer that refuses a body is to be read before the connection is closed
    stalled_s: float = 60.0  # a client that takes nothing of its answer
    head_bytes: int = 64 * 1024


def _send_at_once(transport: asyncio.Transport) -> None:
    """asyncio does so itself, but only on sockets that name their protocol; else each answer waits 40 ms for an ACK."""
    connection = transport.get_extra_info("socket")
    if connection is not None and connection.family in {socket.AF_INET, socket.AF_INET6}:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


class Connection(HttpToolsProtocol):  # type: ignore[misc]
    """uvicorn's protocol with limits; `limits` is set by a subclass, since uvicorn makes the instances."""

    limits = Limits()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._receiving = self._has_head = self._refused = False
        self._received_bytes = 0  # of the body
        self._head_bytes = 0  # of the request that is being received
        self._overhead_bytes = 0  # heads, trailers, chunk sizes: all since the last piece of a body
        self._began_at = float(self.loop.time())  # of this request, or of the rest since the last one
        self._deadline: asyncio.TimerHandle | None = None
        self._stalled: asyncio.TimerHandle | None = None
        # `cycle` is the newest request, which may have to wait for this one
        self._under_way: RequestResponseCycle | None = None

    # ── coming and going ────────────────────────────────────────────────────────────────────────────────
    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        _send_at_once(transport)
        if len(self.connections) > self.limits.connections and not self._make_room():
            text = "Too many connections are open. Try again in a moment."
            self._refuse(503, text, "too_many_connections", linger=False)
        else:
            self._expect_by(self.limits.head_s)

    def _make_room(self) -> bool:
        """Close the connection that has been idle or incomplete for longest. False if all have an answer under way."""
        idle = [other for other in self.connections if other is not self and other.may_be_closed]
        if not idle:
            return False
        oldest = min(idle, key=lambda other: other.idle_since)
        self.connections.discard(oldest)  # at once: more may come before it is really gone
        oldest.close()
        return True

    @property
    def may_be_closed(self) -> bool:
        """No request is being worked on."""
        return self.cycle is None or self.cycle.response_complete

    @property
    def idle_since(self) -> float:
        return self._began_at

    def close(self) -> None:
        """Close now, or soon after if the client does not take what is still to be sent."""
        if not self.transport.is_closing():
            self.transport.close()
            self.loop.call_later(self.limits.linger_s, self.transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        self._expect_by(None)
        self._watch_writing(None)
        super().connection_lost(exc)
        answering = self._under_way
        if answering is not None and answering is not self.cycle and not answering.response_complete:
            answering.disconnected = True
            answering.message_event.set()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGIApp) -> None:
        self._under_way = cycle
        super()._start_asgi_task(cycle, app)

    # ── reading ─────────────────────────────────────────────────────────────────────────────────────────
    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        self._overhead_bytes += len(data)
        super().data_received(data)
        if self._overhead_bytes > self.limits.head_bytes:
            self._refuse_head()
        elif self._deadline is None and self._is_next_to_be_answered:
            # at any byte uvicorn forgets its own limit for idle connections
            self._expect_by(self.limits.head_s)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._receiving, self._has_head = True, False
        self._received_bytes = self._head_bytes = 0
        self._began_at = float(self.loop.time())

    def on_url(self, url: bytes) -> None:
        self._head_bytes += len(url)
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_bytes += len(name) + len(value) + len(": \r\n")
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self._head_bytes > self.limits.head_bytes:  # a whole one that came at once
            self._refuse_head()
            raise ValueError("the head is too large")  # ends the parsing
        super().on_headers_complete()
        self._has_head = True

    def on_body(self, body: bytes) -> None:
        self._received_bytes += len(body)
        self._overhead_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._receiving, self._overhead_bytes = False, 0
        self._expect_by(None)
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._began_at = float(self.loop.time())
        # the rest of a body that was refused, or a request that has begun and whose turn it is now
        if self._receiving and (self._is_answered or self._is_next_to_be_answered):
            self._expect_by(self.limits.linger_s)

    @property
    def _is_answered(self) -> bool:
        """The answer to the request that is being received has begun, as when a body is refused."""
        return self._has_head and self.cycle is not None and bool(self.cycle.response_started)

    @property
    def _is_next_to_be_answered(self) -> bool:
        """What is sent now would be read as the answer to what is being received, and not in the middle of another."""
        if self._receiving and self._has_head:
            return not (self.cycle.response_started or self.pipeline)
        return self.may_be_closed

    # ── what takes too long ─────────────────────────────────────────────────────────────────────────────
    def _expect_by(self, seconds: float | None) -> None:
        """The request, or the next part of it, is due in so many seconds; None: nothing is due."""
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = None if seconds is None else self.loop.call_later(seconds, self._overdue)

    def _overdue(self) -> None:
        allowed_s = self.limits.head_s + self._received_bytes / self.limits.body_bytes_per_s
        left_s = self._began_at + allowed_s - self.loop.time()
        if self._is_answered or not self._receiving:
            self.close()
        elif left_s > 0:
            self._expect_by(left_s)
        else:
            self._refuse(408, "The request did not arrive in time.", "request_timeout")

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_writing(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        self._watch_writing(None)
        super().resume_writing()

    def _watch_writing(self, unsent_bytes: int | None) -> None:
        """Look again later whether the client has taken anything; None: it takes what it gets."""
        if self._stalled is not None:
            self._stalled.cancel()
        self._stalled = (
            None
            if unsent_bytes is None
            else self.loop.call_later(self.limits.stalled_s, self._look_at_writing, unsent_bytes)
        )

    def _look_at_writing(self, unsent_bytes: int) -> None:
        now_bytes = self.transport.get_write_buffer_size()
        if now_bytes >= unsent_bytes:
            self.transport.abort()
        else:
            self._watch_writing(now_bytes)

    # ── refusing before there is a request ──────────────────────────────────────────────────────────────
    def send_400_response(self, msg: str) -> None:
        """uvicorn calls it for what is no HTTP."""
        self._refuse(400, "This is not a valid HTTP request.", "invalid_http")

    def _refuse_head(self) -> None:
        text = f"The headers have more than {self.limits.head_bytes} bytes."
        self._refuse(431, text, "headers_too_large")

    def _refuse(self, status: int, message: str, code: str, *, linger: bool = True) -> None:
        """Answer in the place of the application, and close.

        With `linger` a moment later: closed while more is coming, a connection loses what was sent last.
        """
        if self._refused:
            return
        self._refused = True
        kind = "invalid_request_error" if status < 500 else "server_error"
        path = str(self.scope.get("path", "")) if self._has_head else ""
        body = json.dumps(shaped(path, status, error_body(message, kind, code))).encode()
        head = [
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}",
            "content-type: application/json",
            f"content-length: {len(body)}",
            "connection: close",
            *(["retry-after: 1"] if status == 503 else []),
        ]
        if self._is_next_to_be_answered:
            self.transport.write("\r\n".join([*head, "", ""]).encode() + body)
        if linger:
            self._expect_by(None)
            self.loop.call_later(self.limits.linger_s, self.close)
        else:
            self.close()
