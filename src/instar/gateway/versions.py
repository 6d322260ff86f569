"""Keeps what the engine serves in step with what the store says is active.

A swap loads the new adapter beside the old one, then new requests take the new one; the old one is unloaded when its
last request has ended. So no request waits for a swap, fails by it, or is served by two versions. A version that the
store says is active serves once the conversations in use were computed under it (prewarm.py); one that a person asks
for serves at once, and that comes after.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import structlog

from instar.errors import ArtifactError, EngineError, EngineUnavailable, InstarError, RequestError
from instar.flow.story import is_rejected
from instar.gateway.prewarm import Prewarm
from instar.ports import Engine, Registry, Store
from instar.records import BASE, Fate

log = structlog.get_logger()

POLL_S = 0.25
CHECK_ENGINE_EVERY = 8  # polls between two looks at what the engine really holds
RETRY_EVERY = (
    120  # polls between two tries of an active version that could not be served: each reads all of it
)


class VersionKeeper:
    """Implements `flow.serve_turn.Versions`. Lives on the gateway's event loop; holds no lock across requests."""

    def __init__(
        self,
        store: Store,
        registry: Registry,
        engine: Engine,
        prewarm: Prewarm,
        *,
        base_sha256: str,
        max_loaded: int,
        in_thread: Callable[..., Awaitable[Any]] = asyncio.to_thread,
    ) -> None:
        self._store = store
        self._registry = registry
        self._engine = engine
        self._prewarm = prewarm
        self._base_sha256 = base_sha256
        self._max_loaded = max_loaded
        self._in_thread = in_thread
        self._in_use: Counter[str] = Counter()
        self._loaded: dict[str, None] = {}  # in the order of last use
        self._loading = asyncio.Lock()
        self._polls = 0
        self._unservable: str | None = None  # the active version, where another one serves in its place
        self._retry_at = 0  # in polls
        self.current: str | None = None
        self.problem: str | None = None

    @property
    def ready(self) -> bool:
        return self.current is not None

    @asynccontextmanager
    async def lease(self, wanted: str | None) -> AsyncIterator[str]:
        """Raises RequestError: 404 for a version that is not there, 503 if that happened to the current one just
        now; EngineUnavailable before the first one."""
        version = wanted or self.current
        if version is None:
            raise EngineUnavailable("The engine is still starting; try again in a few seconds.")
        self._in_use[version] += 1
        try:
            if wanted is not None:
                await self._in_thread(self._check_wanted, wanted)
            if version != BASE and version not in self._loaded:
                await self._load_for_request(version, is_pinned=wanted is not None)
            elif version in self._loaded:
                self._touch(version)
            yield version
        finally:
            self._release(version)

    def _release(self, version: str) -> None:
        self._in_use[version] -= 1
        if not self._in_use[version]:
            del self._in_use[version]

    async def check(self, wanted: str | None) -> None:
        """Raises RequestError (404) for a version that is not there, or not to be served. Loads nothing."""
        if wanted in (None, BASE):
            return
        try:
            await self._in_thread(self._check_wanted, wanted)
            await self._in_thread(self._servable, wanted)
        except ArtifactError as error:
            raise _not_there(str(wanted), error) from error

    async def _load_for_request(self, version: str, *, is_pinned: bool) -> None:
        try:
            await self._load(version)
        except ArtifactError as error:
            if not is_pinned:
                raise RequestError(
                    f"The version in service is lost ({error}); another one takes its place in a few seconds.",
                    status=503,
                    code="version_lost",
                    kind="server_error",
                ) from error
            raise _not_there(version, error) from error

    async def reload(self, version: str) -> None:
        """The engine restarted and forgot: load the version again."""
        self._loaded.pop(version, None)
        if version != BASE:
            await self._load(version)

    async def activate(
        self, version: str, reason: str, *, fate: Fate = Fate.CHOSEN, about: str | None = None
    ) -> None:
        """Check, load, record, serve – in this order, so that a damaged version is never recorded as active.

        `fate` and `reason` are recorded of this version, or of the one that it is `about`. Raises ArtifactError,
        EngineError or StoreError; the version that served goes on serving.
        """
        if version != BASE:
            await self._load(version)
        await self._in_thread(lambda: self._store.decide(about or version, fate, reason, activate=version))
        self._serve(version)
        self._prewarm.begin(version)  # who takes a version back must not wait for this

    async def run(self) -> None:
        """Follow the store for ever."""
        try:
            while True:
                await self.poll()
                await asyncio.sleep(POLL_S)
        finally:
            self._prewarm.stop()

    async def poll(self) -> None:
        """One look; a failure leaves everything as it was and is shown as `problem` until all is well again."""
        try:
            active = await self._follow()
            if self._polls % CHECK_ENGINE_EVERY == 0:
                await self._recheck()
                if active == self.current:
                    self._note(None)
            self._polls += 1
        except InstarError as error:
            self._note(str(error))

    async def _follow(self) -> str:
        """Serve the active version, or what can be served in its place. Gives its name."""
        active: str = await self._in_thread(self._store.active_version)
        if active == self.current or self._is_put_off(active):
            return active
        if self.current is None and not await self._engine.healthy():
            return active
        try:
            if active != BASE:
                await self._load(active)
        except (ArtifactError, EngineError) as error:
            if _will_pass(error):
                raise
            await self._fall_back(active, error)
            return active
        if await self._is_warm(active) and await self._in_thread(self._store.active_version) == active:
            self._note(None)
            self._serve(active)
            await self._retire()
        return active

    async def _is_warm(self, version: str) -> bool:
        """Whether it may serve. If not yet, the next poll asks again: until then another one may be chosen."""
        if self.current is None:
            return True
        self._prewarm.begin(version)
        return await self._prewarm.ended(within_s=POLL_S)

    def _is_put_off(self, active: str) -> bool:
        return self.current is not None and active == self._unservable and self._polls < self._retry_at

    async def _fall_back(self, active: str, error: Exception) -> None:
        """A version that cannot be served must not take the model away: keep, or find, the last good one."""
        if self.current is None:
            self._serve(await self._last_good(active))
        self._unservable, self._retry_at = active, self._polls + RETRY_EVERY
        self._note(
            f"Version {active} cannot be served ({error}); {self.current} serves instead. "
            f"`instar versions activate {self.current}` makes that the choice."
        )

    async def _last_good(self, bad: str) -> str:
        for past in await self._in_thread(self._store.activations):
            if past.version == BASE:
                break
            if past.version == bad:
                continue
            try:
                await self._load(past.version)
            except (ArtifactError, EngineError) as error:
                if _will_pass(error):
                    raise
                continue
            return str(past.version)
        return BASE

    async def _recheck(self) -> None:
        """An engine that was restarted holds nothing: give it back what is current."""
        held = await self._engine.loaded()
        for version in list(self._loaded):
            if version not in held:
                self._loaded.pop(version, None)
        lost = self.current
        if lost is None or lost == BASE or lost in held:
            return
        try:
            await self.reload(lost)
        except (ArtifactError, EngineError) as error:  # say, its folder was damaged while it served
            if _will_pass(error):
                raise
            self.current = None
            await self._fall_back(lost, error)

    async def _load(self, version: str) -> None:
        async with self._loading:
            if version in self._loaded:
                return
            folder = await self._in_thread(self._verified, version)
            await self._make_place()
            await self._engine.load(version, folder)
            self._touch(version)

    def _verified(self, version: str) -> Path:
        """Runs in a thread: every byte is read. Raises ArtifactError."""
        self._servable(version)
        return self._registry.verify(version)

    def _check_wanted(self, version: str) -> None:
        """What a person rejected answers nobody, until someone activates it by name. One that waits may be tried.
        Raises RequestError (404)."""
        if version != BASE and is_rejected(version, self._store.decisions()):
            why = ArtifactError("A person rejected it; `instar versions activate` lets it serve after all.")
            raise _not_there(version, why)

    def _servable(self, version: str) -> None:
        """What the manifest alone can tell. Raises ArtifactError."""
        manifest = self._registry.manifest(version)
        if manifest.base_sha256 != self._base_sha256:
            raise ArtifactError(f"{version} was trained from another model than the one served now.")
        if manifest.gate.get("passed") is False:
            raise ArtifactError(f"{version} did not pass the gate: {manifest.gate.get('why', '')}")

    async def _make_place(self) -> None:
        """Unload the longest unused version when the engine's places are taken."""
        if len(self._loaded) < self._max_loaded:
            return
        for version in list(self._loaded):
            if version != self.current and not self._in_use[version]:
                await self._unload(version)
                return
        raise EngineError("All places for versions are in use; try again in a moment.", status=429)

    async def _retire(self) -> None:
        """Unload what is neither current nor in use, but keep one behind for a quick return."""
        idle = [v for v in self._loaded if v != self.current and not self._in_use[v]]
        for version in idle[:-1]:
            await self._unload(version)

    async def _unload(self, version: str) -> None:
        self._loaded.pop(version, None)
        await self._engine.unload(version)

    def _touch(self, version: str) -> None:
        self._loaded.pop(version, None)
        self._loaded[version] = None

    def _serve(self, version: str) -> None:
        if version != self.current:
            log.info("version_served", version=version, before=self.current)
        self.current = version
        self._prewarm.stop()

    def _note(self, problem: str | None) -> None:
        if problem and problem != self.problem:
            log.warning("version_problem", problem=problem)
        self.problem = problem


def _not_there(version: str, error: ArtifactError) -> RequestError:
    return RequestError(
        f"Version {version} cannot be served: {error} `instar versions list` shows what is there.",
        status=404,
        code="model_not_found",
        param="model",
    )


def _will_pass(error: Exception) -> bool:
    """The engine is down or full: that says nothing about the version."""
    return isinstance(error, EngineUnavailable) or (isinstance(error, EngineError) and error.status == 429)
