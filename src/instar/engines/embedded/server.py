"""The embedded engine as a process."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
from pathlib import Path

import torch

from instar.config import EngineSettings
from instar.engines import http_server
from instar.engines.embedded.backend import EmbeddedBackend
from instar.errors import EngineError


def serve(
    model_dir: Path, host: str, port: int, settings: EngineSettings, api_key: str | None, dtype: str
) -> None:
    """Serve until SIGTERM or SIGINT. Raises ModelError if the model cannot be served."""
    # The compute thread leaves the interpreter's lock only between two calls of torch; a token must not wait
    # for the default 5 ms to reach the wire.
    sys.setswitchinterval(0.001)
    backend = EmbeddedBackend(model_dir, settings, getattr(torch, dtype))
    asyncio.run(_serve(backend, host, port, api_key))


async def _serve(backend: EmbeddedBackend, host: str, port: int, api_key: str | None) -> None:
    async def work() -> None:
        await backend.start()
        gc.collect()
        gc.freeze()  # the model's thousands of objects need not be looked at again and again
        await backend.ended()
        raise EngineError("The compute thread ended; the engine cannot go on.")

    app = http_server.make_app(backend, api_key)
    try:
        await http_server.serve_until_told(app, host, port, work())
    finally:
        is_quiet = await backend.stop()
        if not is_quiet and sys.exc_info()[0] is None:
            # Still loading, or a pass that does not end: waiting for it would outlast the patience of whoever
            # sent the signal, and ending the interpreter around it crashes.
            os._exit(0)
