"""The real gateway before the scripted engine, both over HTTP, in a thread: for clients that are not asynchronous."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from pydantic import SecretStr

from instar.chat_format import ChatFormat
from instar.config import Settings
from instar.engines.client import HttpEngine
from instar.engines.scripted import Script, ScriptedEngine
from instar.gateway.app import build_app
from instar.gateway.connection import Limits
from instar.gateway.server import Server, make_server
from instar.ports import Store
from instar.records import Manifest
from instar.registry import FolderRegistry
from instar.runtime import SystemClock
from instar.store import open_store
from tests.contract.conftest import write_adapter
from tests.kit.live_gateway import BASE_SHA256, KEY
from tests.kit.tiny_model import TEMPLATE, write_chat_files


@dataclass
class Gateway:
    """What a test holds in its hand. `engine` may be told to fail or to be slow while it runs."""

    url: str
    app: Any
    store: Store
    engine: ScriptedEngine
    settings: Settings
    server: Server
    key: str = KEY
    headers: dict[str, str] = field(default_factory=lambda: {"authorization": f"Bearer {KEY}"})

    @property
    def http(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, headers=self.headers, timeout=60, trust_env=False)

    @property
    def connections(self) -> int:
        return len(self.server.server_state.connections)


class _Running:
    """The event loop's side. `made` is set once `gateway` is there."""

    def __init__(
        self,
        model: Path,
        folder: Path,
        script: Script | None,
        limits: Limits | None,
        settings: dict[str, Any],
    ) -> None:
        self._model, self._folder, self._script = model, folder, script
        self._limits, self._settings = limits, settings
        self.made = threading.Event()
        self.gateway: Gateway | None = None

    async def run(self) -> None:
        chat = ChatFormat(self._model)
        settings = Settings(data_dir=self._folder / "data", api_key=SecretStr(KEY), **self._settings)
        settings.data_dir.mkdir(parents=True, exist_ok=True)
        store = open_store(settings.database_url)
        registry = FolderRegistry(settings.versions_dir)
        for number in (1, 2):
            _publish(registry, self._folder / f"work{number}", number)
        async with ScriptedEngine(self._script, settings=settings.engine, vocab_size=259) as engine:
            client = HttpEngine(engine.base_url, engine.base_name, chat.stop_ids)
            app = build_app(settings, store, registry, client, chat, SystemClock(), KEY, BASE_SHA256, dict)
            server = make_server(app, limits=self._limits, finish_s=2)
            with socket.create_server(("127.0.0.1", 0)) as listener:
                url = f"http://127.0.0.1:{listener.getsockname()[1]}"
                self.gateway = Gateway(url, app, store, engine, settings, server)
                self.made.set()
                await server.serve(sockets=[listener])
        store.close()


def _publish(registry: FolderRegistry, work: Path, number: int) -> None:
    write_adapter(work, number)
    parent = "base" if number == 1 else f"v{number - 1}"
    manifest = Manifest(
        f"v{number}", parent, 1.0, f"update_{number}", "tiny", BASE_SHA256, {}, [], {}, {}, {}, {}
    )
    registry.publish(work, manifest)


@contextmanager
def scripted_gateway(
    folder: Path,
    limits: Limits | None = None,
    *,
    script: Script | None = None,
    template: str = TEMPLATE,
    context_length: int = 512,
    **settings: Any,
) -> Iterator[Gateway]:
    """Two versions, v1 and v2, are there; base serves."""
    model = write_chat_files(folder / "model", context_length, template)
    running = _Running(model, folder, script, limits, settings)
    thread = threading.Thread(target=lambda: asyncio.run(running.run()), daemon=True)
    thread.start()
    assert running.made.wait(30)
    gateway = running.gateway
    assert gateway is not None
    with gateway.http as http:
        while http.get("/ready").status_code != 200:
            pass
    try:
        yield gateway
    finally:
        gateway.server.should_exit = True
        thread.join(30)
