"""Conversations in use are computed under a new version before it serves, so that no swap costs a slow first token.

An agent sends its whole history with every turn, and what an engine keeps of it counts for one version only. So the
newest turn of each session is put to the engine once more, under the new version and behind every other request: what
it computes of it stays in its memory. That is no turn, and nothing of it is recorded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Any

import structlog

from instar.errors import EngineError, InstarError
from instar.ports import Engine, Store
from instar.records import Sampling
from instar.runtime import Clock

log = structlog.get_logger()

IN_USE_S = 900.0
"""A session is in use if its last turn ended within this time."""
MAX_SESSIONS = 16
PRIORITY = 100
"""Behind chats (0) and the judge (10)."""
_ONE_TOKEN = Sampling(max_tokens=1, temperature=0.0)  # the contract knows no answer of none


class Prewarm:
    """One version at a time, at most `limit_s` seconds and `max_tokens` tokens, as many as an engine keeps.

    Lives on the gateway's event loop. What goes wrong in here is logged and ends it: a version is served all the same.
    """

    def __init__(
        self,
        store: Store,
        engine: Engine,
        clock: Clock,
        *,
        limit_s: float,
        max_tokens: int,
        in_thread: Callable[..., Awaitable[Any]] = asyncio.to_thread,
    ) -> None:
        self._store, self._engine, self._clock = store, engine, clock
        self._limit_s, self._max_tokens = limit_s, max_tokens
        self._in_thread = in_thread
        self._version: str | None = None
        self._task: asyncio.Task[None] | None = None
        self._deadline = 0.0  # by the loop's clock

    def begin(self, version: str) -> None:
        """Start on this version, unless it was begun already. Another one's is broken off, and only what was left of
        its time remains: were versions to come faster than the bound, none would ever serve."""
        if version == self._version or not self._limit_s:
            return
        if self._task is None or self._task.done():
            self._deadline = asyncio.get_running_loop().time() + self._limit_s
        self.stop()
        self._version = version
        self._task = asyncio.create_task(self._run(version))

    async def ended(self, within_s: float) -> bool:
        """Whether what was begun is over, well or badly; waits a moment for it."""
        if self._task is None:
            return True
        await asyncio.wait({self._task}, timeout=within_s)
        return self._task is None or self._task.done()

    def stop(self) -> None:
        """Break off, and forget what was begun."""
        if self._task is not None:
            self._task.cancel()
        self._version = self._task = None

    async def _run(self, version: str) -> None:
        try:
            async with asyncio.timeout_at(self._deadline):
                for ids in await self._in_thread(self._in_use):
                    await self._prefill(version, ids)
        except TimeoutError:
            log.info("prewarm_cut_short", version=version)
        except InstarError as error:
            log.info("prewarm_failed", version=version, problem=str(error))

    def _in_use(self) -> list[list[int]]:
        found = self._store.ids_in_use(self._clock.now() - IN_USE_S, MAX_SESSIONS)
        return fitting(found, self._max_tokens, self._engine.context_length)

    async def _prefill(self, version: str, ids: list[int]) -> None:
        try:
            await self._ask(version, ids, PRIORITY)
        except EngineError as error:
            if error.status != 400 or "priority" not in str(error).lower():
                raise
            await self._ask(version, ids, 0)  # vLLM that schedules by arrival refuses the field

    async def _ask(self, version: str, ids: list[int], priority: int) -> None:
        answer: Any = self._engine.sample(version, ids, _ONE_TOKEN, priority=priority)
        async with aclosing(answer) as chunks:
            async for _ in chunks:
                pass


def fitting(found: Sequence[list[int]], max_tokens: int, context_length: int | None) -> list[list[int]]:
    """What to compute of conversations that are given newest first: the newest that fit, each once, with place for a
    token behind."""
    chosen: list[list[int]] = []
    for ids in found:
        if context_length is not None:
            ids = ids[: context_length - 1]
        is_known = any(other[: len(ids)] == ids for other in chosen)
        if is_known or len(ids) > max_tokens - sum(map(len, chosen)):
            continue
        chosen.append(ids)
    return chosen
