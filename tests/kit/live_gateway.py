"""A real gateway on a real socket over a real store; only the engine is a fake."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import openai
from pydantic import SecretStr

from instar.chat_format import ChatFormat
from instar.config import Settings
from instar.gateway.app import build_app
from instar.gateway.connection import Limits
from instar.gateway.server import Server, make_server
from instar.ports import Store
from instar.records import JudgeItem, Manifest
from instar.registry import FolderRegistry
from instar.runtime import SystemClock
from instar.store import open_store
from tests.kit.fake_engine import FakeEngine
from tests.kit.tiny_model import TEMPLATE, write_chat_files

KEY = "sk-test"
BASE_SHA256 = "0" * 64


@dataclass
class Live:
    """What a test holds in its hand."""

    url: str
    store: Store
    registry: FolderRegistry
    engine: FakeEngine
    http: httpx.AsyncClient
    openai: openai.AsyncOpenAI
    settings: Settings
    app: Any
    server: Server

    async def ask(self, *said: str, headers: dict[str, str] | None = None, **more: Any) -> httpx.Response:
        """One request; `said` alternates user, assistant, user, …"""
        roles = ["user", "assistant"]
        messages = [{"role": roles[i % 2], "content": text} for i, text in enumerate(said)]
        body = {"model": "instar", "messages": messages, **more}
        return await self.http.post("/v1/chat/completions", json=body, headers=headers or {})

    async def turns(self, **query: Any) -> list[dict[str, Any]]:
        answer = await self.http.get("/v1/turns", params=query)
        answer.raise_for_status()
        rows: list[dict[str, Any]] = answer.json()["data"]
        return rows

    def judge_items(self) -> list[JudgeItem]:
        return self.store.lease_unjudged("test", 100, 60.0)

    def publish(
        self, name: str, content: bytes = b"{}", base_sha256: str = BASE_SHA256, **changes: Any
    ) -> Path:
        """A version with an adapter of no weight, for engines that do not look."""
        work = self.settings.data_dir / f"work-{name}"
        work.mkdir(parents=True)
        (work / "adapter_config.json").write_bytes(content)
        manifest = Manifest(
            name=name,
            parent="base",
            created_at=1.0,
            update_id=f"update_{name}",
            base_model="tiny",
            base_sha256=base_sha256,
            files={},
            turn_ids=[],
            settings={},
            metrics={},
            gate={},
            runtime={},
        )
        return self.registry.publish(work, replace(manifest, **changes))


@asynccontextmanager
async def listening(app: Any, limits: Limits | None = None) -> AsyncIterator[tuple[str, Server]]:
    """Serves an application on a free port; gives its address."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = make_server(app, limits=limits, finish_s=2)
    running = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", server
    finally:
        server.should_exit = True
        await running
        listener.close()


@asynccontextmanager
async def live_gateway(
    folder: Path,
    script: Callable[[str, str], str] | None = None,
    context_length: int = 512,
    limits: Limits | None = None,
    template: str = TEMPLATE,
    more_special: Sequence[str] = (),
    **settings: Any,
) -> AsyncIterator[Live]:
    model_dir = write_chat_files(folder / "model", context_length, template, more_special)
    form = settings.get("tool_format", "auto")
    chat = ChatFormat(model_dir, None if form == "auto" else form)
    made = Settings(data_dir=folder / "data", api_key=SecretStr(KEY), **settings)
    made.data_dir.mkdir(parents=True, exist_ok=True)
    store = open_store(made.database_url)
    registry = FolderRegistry(made.versions_dir)
    engine = FakeEngine(chat, script)
    app = build_app(made, store, registry, engine, chat, SystemClock(), KEY, BASE_SHA256, dict)
    headers = {"authorization": f"Bearer {KEY}"}
    async with (
        listening(app, limits) as (url, server),
        httpx.AsyncClient(base_url=url, headers=headers, timeout=60, trust_env=False) as http,
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0) as sdk,
    ):
        while (await http.get("/ready")).status_code != 200:
            await asyncio.sleep(0.02)
        yield Live(url, store, registry, engine, http, sdk, made, app, server)
    store.close()
