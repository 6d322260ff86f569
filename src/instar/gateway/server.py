"""The web server around the application: its limits, and its end."""

from __future__ import annotations

import asyncio
import resource
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp

from instar.gateway.connection import Connection, Limits

FINISH_S = 25.0
"""How long answers under way may go on at the end. The supervisor kills after 30 s."""
LAST_WORDS_S = 2.0
MOST_CONNECTIONS = 4096
KEEP_ALIVE_S = 75.0
RESERVED_FILES = 64
"""Descriptors for the database, the engine's health, versions being loaded, and so on."""


def open_files_allowed() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 2**20 if soft == resource.RLIM_INFINITY else soft


def connections_for(files: int, most: int = MOST_CONNECTIONS) -> int:
    """How many clients these descriptors are enough for: each one's answer needs a connection to the engine too."""
    return max(8, min(most, (files - RESERVED_FILES) // 2))


class Server(uvicorn.Server):  # type: ignore[misc]
    """Ends what is still under way a little before its time is over, so that clients are told."""

    finish_s = FINISH_S

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        late = asyncio.get_running_loop().call_later(self.finish_s, self._end_answers)
        try:
            await super().shutdown(sockets)
        finally:
            late.cancel()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """As uvicorn's, but the signals are not raised anew at the end: they would end the process before the database
        is closed, with the wrong status."""
        with super().capture_signals():
            yield
            self._captured_signals.clear()

    def _end_answers(self) -> None:
        for task in list(self.server_state.tasks):
            task.cancel()


def make_server(
    app: ASGIApp,
    *,
    limits: Limits | None = None,
    finish_s: float = FINISH_S,
    tls_cert: Path | None = None,
    tls_key: Path | None = None,
) -> Server:
    """A server for `app`, not started. Without limits, those that fit the descriptors of this process.

    With a certificate and its key (PEM files) it speaks HTTPS.
    """
    found = limits or Limits(connections=connections_for(open_files_allowed()))
    config = uvicorn.Config(
        app,
        http=type("LimitedConnection", (Connection,), {"limits": found}),
        ws="none",
        log_config=None,
        log_level="error",  # what clients send wrong is not our log's business
        access_log=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=finish_s + LAST_WORDS_S,
        ssl_certfile=tls_cert,
        ssl_keyfile=tls_key,
    )
    server = Server(config)
    server.finish_s = finish_s
    return server
