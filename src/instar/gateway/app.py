"""The whole HTTP application on one screen."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

from instar import __version__
from instar.chat_format import ChatFormat
from instar.config import Settings
from instar.flow.serve_turn import ServeTurn
from instar.gateway import errors
from instar.gateway.boundary import Boundary
from instar.gateway.chat import ChatApi
from instar.gateway.completions import CompletionsApi
from instar.gateway.inspect import InspectApi
from instar.gateway.keys import KeyRing
from instar.gateway.messages.api import MessagesApi
from instar.gateway.openapi import document
from instar.gateway.prewarm import Prewarm
from instar.gateway.responses.api import ResponsesApi
from instar.gateway.versions import VersionKeeper
from instar.gateway.versions_api import VersionsApi
from instar.gateway.waiting_room import WaitingRoom
from instar.ports import Engine, Registry, Store
from instar.runtime import Clock


def allow_origins(app: FastAPI, origins: Sequence[str]) -> None:
    """Let web pages of these origins call from a browser. They still need the key; cookies play no part."""
    if origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=origins,
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            allow_private_network=True,
            expose_headers=["x-instar-turn", "x-instar-version", "retry-after"],
        )


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
    proxy_key = settings.proxy_key
    keys = KeyRing.of(api_key, proxy_key.get_secret_value() if proxy_key else None)
    prewarm = Prewarm(
        store,
        engine,
        clock,
        limit_s=settings.engine.prewarm_s,
        max_tokens=settings.engine.max_cached_tokens // 2,
    )
    versions = VersionKeeper(
        store, registry, engine, prewarm, base_sha256=base_sha256, max_loaded=settings.engine.max_loras
    )
    serve_turn = ServeTurn(store, engine, chat, versions, clock)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        following = asyncio.create_task(versions.run())
        try:
            yield
            following.cancel()
            with suppress(asyncio.CancelledError):
                await following
        finally:
            await engine.close()

    app = FastAPI(
        title="Instar",
        version=__version__,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
    )
    errors.install(app)
    app.add_middleware(Boundary)
    allow_origins(app, settings.cors_origins)  # around it, so that web pages can read of a fault, too
    app.state.waiting_room = WaitingRoom(settings.engine.max_streams + settings.engine.max_waiting)
    app.include_router(ChatApi(serve_turn, keys, settings, chat).router)
    app.include_router(CompletionsApi(serve_turn, keys, settings, chat).router)
    app.include_router(ResponsesApi(serve_turn, store, chat, keys, settings).router)
    app.include_router(MessagesApi(serve_turn, versions, keys, settings).router)
    inspect = InspectApi(
        store, registry, engine, versions, keys, settings, clock, serve_turn.context_length, processes
    )
    app.include_router(inspect.router)
    app.include_router(VersionsApi(store, registry, versions, keys, settings).router)
    document(app, keys)
    return app
