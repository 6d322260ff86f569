"""Store, registry and engine at once: all that a version keeper sees, as plain attributes."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from pathlib import Path
from typing import Any

from instar.errors import ArtifactError, EngineError, EngineUnavailable, StoreError
from instar.gateway.prewarm import Prewarm
from instar.gateway.versions import VersionKeeper
from instar.ports import TokenChunk
from instar.records import Activation, Decision, Manifest, Sampling
from instar.runtime import FakeClock

SHA256 = "0" * 64


class House:
    def __init__(self) -> None:
        self.active = "base"
        self.history: list[str] = []
        self.damaged: set[str] = set()
        self.read: Counter[str] = Counter()
        self.held: set[str] = set()
        self.is_up = True
        self.store_error: StoreError | None = None
        self.load_error: EngineError | None = None
        self.in_use: list[list[int]] = []
        self.since: float | None = None
        self.asked: list[tuple[str, list[int], int, int]] = []  # version, ids, longest answer, priority
        self.aborted = 0
        self.gate = asyncio.Event()  # answers wait for it
        self.gate.set()
        self.sample_error: EngineError | None = None
        self.knows_priority = True
        self.context_length: int | None = None

    # ── store
    def active_version(self) -> str:
        if self.store_error:
            raise self.store_error
        return self.active

    def decisions(self) -> list[Decision]:
        return []

    def activations(self, limit: int = 100) -> list[Activation]:
        return [Activation(version, "test", 1.0) for version in self.history]

    def activate(self, version: str) -> None:
        self.active = version
        self.history.insert(0, version)

    def decide(self, version: str, fate: object, reason: str, *, activate: str) -> None:
        self.activate(activate)

    def ids_in_use(self, since: float, limit: int) -> list[list[int]]:
        self.since = since
        return self.in_use[:limit]

    # ── registry
    def manifest(self, version: str) -> Manifest:
        return Manifest(version, "base", 1.0, f"update_{version}", "tiny", SHA256, {}, [], {}, {}, {}, {})

    def verify(self, version: str) -> Path:
        self.read[version] += 1
        if version in self.damaged:
            raise ArtifactError(f"{version} is damaged.")
        return Path("/versions") / version

    # ── engine
    async def load(self, version: str, adapter_dir: Path) -> None:
        self._answer()
        if self.load_error:
            raise self.load_error
        self.held.add(version)

    async def unload(self, version: str) -> None:
        self.held.discard(version)

    async def loaded(self) -> set[str]:
        self._answer()
        return {*self.held, "base"}

    async def healthy(self) -> bool:
        return self.is_up

    async def sample(
        self, version: str, prompt_ids: Sequence[int], sampling: Sampling, *, priority: int = 0
    ) -> AsyncGenerator[TokenChunk, None]:
        self._answer()
        if priority and not self.knows_priority:
            raise EngineError("Got priority 100 but Priority scheduling is not enabled.", status=400)
        if self.sample_error:
            raise self.sample_error
        self.asked.append((version, list(prompt_ids), sampling.max_tokens, priority))
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.aborted += 1
            raise
        yield TokenChunk([1], [-1.0], "length")

    def _answer(self) -> None:
        if not self.is_up:
            raise EngineUnavailable("nobody listens")

    def restart_engine(self) -> None:
        self.held.clear()


def keeper_of(house: House, *, limit_s: float = 60.0, max_tokens: int = 1_000) -> VersionKeeper:
    anything: Any = house

    async def at_once(call: Callable[..., Any], *given: Any) -> Any:
        return call(*given)

    clock = FakeClock()
    prewarm = Prewarm(anything, anything, clock, limit_s=limit_s, max_tokens=max_tokens, in_thread=at_once)
    return VersionKeeper(
        anything, anything, anything, prewarm, base_sha256=SHA256, max_loaded=4, in_thread=at_once
    )
