"""The whole HTTP application on one screen."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

from fastapi import FastAPI

from instar import __version__
from instar.chat_format import ChatFormat
from instar.config import Settings
from instar.flow.serve_turn import ServeTurn
from instar.gateway import errors
from instar.gateway.chat import ChatApi
from instar.gateway.guard import KeyRing
from instar.gateway.inspect import InspectApi
from instar.gateway.versions import VersionKeeper
from instar.ports import Engine, Registry, Store
from instar.runtime import Clock


def build_app(
    settings: Settings,
    store: Store,
    registry: Registry,
    engine: Engine,
    chat: ChatFormat,
    clock: Clock,
    api_key: str,
    base_sha256: str,
    processes: Callable[[], dict[str, dict[str, Any]]],
) -> FastAPI:
    """Everything is handed in; nothing is found. The engine is closed when the application ends."""
    keys = KeyRing.of(api_key)
    versions = VersionKeeper(
        store, registry, engine, base_sha256=base_sha256, max_loaded=settings.engine.max_loras
    )
    serve_turn = ServeTurn(store, engine, chat, versions, clock)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        following = asyncio.create_task(versions.run())
        yield
        following.cancel()
        with suppress(asyncio.CancelledError):
            await following
        await engine.close()

    app = FastAPI(
        title="Instar",
        version=__version__,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
    )
    errors.install(app)
    app.include_router(ChatApi(serve_turn, keys, settings, chat.token_text).router)
    inspect = InspectApi(
        store, registry, engine, versions, keys, settings, clock, chat.context_length, processes
    )
    app.include_router(inspect.router)
    return app
