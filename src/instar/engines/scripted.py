"""A deterministic engine without a model: FOR TESTS ONLY. It speaks the whole contract over real HTTP.

    async with ScriptedEngine(script=lambda request: [5, 6, 7]) as engine:
        client = HttpEngine(engine.base_url, engine.base_name, [2])

Answers come from a script, log-probs from `scripted_logprob`, failures from `fail`.
"""

from __future__ import annotations

import asyncio
import hashlib
import heapq
import itertools
import json
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any

from aiohttp import web

from instar.config import EngineSettings
from instar.engines import http_server, wire
from instar.engines.adapter_folder import read_adapter
from instar.engines.grammar import check_grammar
from instar.engines.wire import Completion
from instar.errors import ConfigError, RequestError
from instar.ports import TokenChunk
from instar.records import BASE

Script = Callable[[Completion], Sequence[int]]
"""The ids of an answer. A stop id ends it early; where none is given, the engine adds one at the end."""


class Failure(StrEnum):
    ERROR = "error"  # status 500 instead of an answer
    FULL = "full"  # status 429
    CUT = "cut"  # the connection breaks after `after` chunks
    BROKEN = "broken"  # an error event after `after` chunks
    HANG = "hang"  # nothing comes after `after` chunks


def _number(*parts: object) -> int:
    """A 32-bit number that depends on nothing but the parts, in any process."""
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=4).digest(), "big")


def scripted_logprob(model: str, position: int, token_id: int) -> float:
    """The log-prob of a scripted token, between −4 and −0.001; differs from version to version."""
    return -(1 + _number("logprob", model, position, token_id) % 4000) / 1000


def scripted_forced(position: int, token_id: int) -> bool:
    """Whether a scripted token counts as decided by a grammar, where a request has one. The script is not held to it:
    an engine without a model has no second choice."""
    return _number("forced", position, token_id) % 2 == 0


def hashed_script(vocab_size: int, length: int = 8) -> Script:
    """Ids that depend on the version, the prompt and, where sampled, the seed; seldom a stop id."""

    def script(request: Completion) -> list[int]:
        seed = request.seed if request.temperature > 0 else None
        return [_number(request.model, request.prompt_ids, seed, i) % vocab_size for i in range(length)]

    return script


class _Gate:
    """Lets `width` in at a time, the lowest priority number first, then in order of arrival."""

    def __init__(self, width: int) -> None:
        self._free = width
        self._order = itertools.count()
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []

    @property
    def waiting(self) -> int:
        return sum(not future.done() for _, _, future in self._waiting)

    @property
    def is_open(self) -> bool:
        return self._free > 0

    async def enter(self, priority: int) -> None:
        if self._free > 0:
            self._free -= 1
            return
        turn = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (priority, next(self._order), turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.leave()
            raise

    def leave(self) -> None:
        while self._waiting:
            _, _, turn = heapq.heappop(self._waiting)
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1


class _Answer:
    """One scripted answer. Its slot in the gate is freed when its iteration ends, however it ends."""

    def __init__(self, engine: ScriptedEngine, request: Completion, failure: tuple[Failure, int] | None):
        self._engine, self._request, self._failure = engine, request, failure
        self._ended = False
        self.prompt_logprobs: list[dict[int, float] | None] | None = None
        if request.prompt_alternatives is not None:
            scored = [
                {token_id: scripted_logprob(request.model, position, token_id)}
                for position, token_id in enumerate(request.prompt_ids)
            ]
            self.prompt_logprobs = [None, *scored[1:]]

    async def __aiter__(self) -> AsyncIterator[TokenChunk]:
        engine, request = self._engine, self._request
        await engine.gate.enter(request.priority)
        engine.running += 1
        try:
            await asyncio.sleep(engine.first_token_s)
            for number, chunk in enumerate(engine.chunks(request)):
                await self._perhaps_fail(number)
                yield chunk
                await asyncio.sleep(engine.token_s * len(chunk.ids))
            self._ended = True
        finally:
            engine.running -= 1
            engine.gate.leave()

    async def _perhaps_fail(self, number: int) -> None:
        if self._failure is None or number < self._failure[1]:
            return
        match self._failure[0]:
            case Failure.CUT:
                raise http_server.CutConnection
            case Failure.BROKEN:
                raise RequestError("scripted failure", status=500, kind="internal_error")
            case Failure.HANG:
                await asyncio.Event().wait()

    def cancel(self) -> None:
        if not self._ended:
            self._ended = True
            self._engine.aborted += 1


class ScriptedEngine:
    """See the module. Delays may be changed while it runs; `requests` keeps what was asked, in order.

    `running` and `aborted` count answers being given and answers that did not reach their end.
    """

    def __init__(
        self,
        script: Script | None = None,
        *,
        base_name: str = BASE,
        vocab_size: int = 300,
        max_model_len: int = 8192,
        settings: EngineSettings | None = None,
        api_key: str | None = None,
        first_token_s: float = 0.0,
        token_s: float = 0.0,
        tokens_per_chunk: int = 1,
    ) -> None:
        self.base_name, self.vocab_size, self.max_model_len = base_name, vocab_size, max_model_len
        self.script = script or hashed_script(vocab_size)
        self.first_token_s, self.token_s, self.tokens_per_chunk = first_token_s, token_s, tokens_per_chunk
        self.requests: list[Completion] = []
        self.running = self.aborted = 0
        self.is_ready = True
        self.base_url = ""
        self._settings = settings or EngineSettings.model_validate({})
        self.gate = _Gate(self._settings.max_streams)
        self._key = api_key
        self._adapters: dict[str, Path] = {}
        self._failures: deque[tuple[Failure, int]] = deque()
        self._served: web.AppRunner | None = None

    async def __aenter__(self) -> ScriptedEngine:
        self._served = http_server.runner(http_server.make_app(self, self._key))
        await self._served.setup()
        site = web.TCPSite(self._served, "127.0.0.1", 0)
        await site.start()
        host, port = self._served.addresses[0][:2]
        self.base_url = f"http://{host}:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._served is not None:
            await self._served.cleanup()
            self._served = None

    def fail(self, failure: Failure, *, times: int = 1, after: int = 1) -> None:
        """Make the next `times` completions fail; CUT, BROKEN and HANG do so after `after` chunks.

        A CUT before the first chunk is tried once more by the client: nothing was answered yet.
        """
        self._failures.extend([(failure, after)] * times)

    def chunks(self, request: Completion) -> list[TokenChunk]:
        """The whole answer to a request, as it will be sent."""
        ids = list(self.script(request))
        ends = [place for place, token_id in enumerate(ids) if token_id in request.stop_ids]
        if ends:
            ids = ids[: ends[0] + 1]
        elif request.stop_ids:
            ids.append(min(request.stop_ids))
        finish = "stop" if len(ids) <= request.max_tokens else "length"
        ids = ids[: request.max_tokens]
        size = self.tokens_per_chunk
        starts = list(range(0, len(ids), size)) or [0]
        return [
            self._chunk(request, ids[start : start + size], start, finish if start == starts[-1] else None)
            for start in starts
        ]

    def _chunk(self, request: Completion, ids: list[int], start: int, finish: str | None) -> TokenChunk:
        values = [scripted_logprob(request.model, start + i, token_id) for i, token_id in enumerate(ids)]
        top = None
        if request.alternatives:
            count = request.alternatives
            top = [
                [((token_id + i) % self.vocab_size, value - i) for i in range(count)]
                for token_id, value in zip(ids, values, strict=True)
            ]
        forced = None
        if request.grammar is not None:
            forced = [scripted_forced(start + i, token_id) for i, token_id in enumerate(ids)]
        return TokenChunk(ids, values, finish, top, forced)

    # ── wire.Backend ────────────────────────────────────────────────────────────────────────────────────

    def ready(self) -> bool:
        return self.is_ready

    def adapters(self) -> dict[str, Path]:
        return dict(self._adapters)

    async def load(self, name: str, folder: Path) -> None:
        if len(self._adapters) >= self._settings.max_loras:
            raise wire.too_many_adapters(self._settings.max_loras)
        head = await asyncio.to_thread(read_adapter, folder, self._settings.max_lora_rank)
        self._adapters[name] = head.folder

    async def unload(self, name: str) -> None:
        self._adapters.pop(name, None)

    async def submit(self, request: Completion) -> wire.Answer:
        if request.model != self.base_name and request.model not in self._adapters:
            raise wire.unknown_model(request.model)
        if request.grammar is not None:
            check_grammar(request.grammar)
        self.requests.append(request)
        failure = self._failures.popleft() if self._failures else None
        if failure is not None and failure[0] is Failure.ERROR:
            raise RequestError("scripted failure", status=500, kind="internal_error")
        is_full = not self.gate.is_open and self.gate.waiting >= self._settings.max_waiting
        if is_full or (failure is not None and failure[0] is Failure.FULL):
            raise wire.queue_full()
        return _Answer(self, request, failure)


def _from_folder(model_dir: Path, settings: EngineSettings, api_key: str | None) -> ScriptedEngine:
    """Vocabulary and context from config.json, and the answers from scripted.json, where these are there.

    scripted.json: {"answers": [[ids], …], "first_token_s": 0, "token_s": 0}; a prompt always gets the same one.
    """
    try:
        config, plan = (
            json.loads(path.read_text("utf-8")) if path.is_file() else {}
            for path in (model_dir / "config.json", model_dir / "scripted.json")
        )
    except (OSError, ValueError) as error:
        raise ConfigError(f"The script in {model_dir} cannot be read: {error}") from error
    options: dict[str, Any] = {
        "vocab_size": config.get("vocab_size", 300),
        "max_model_len": config.get("max_position_embeddings", 8192),
        "first_token_s": plan.get("first_token_s", 0.0),
        "token_s": plan.get("token_s", 0.0),
    }
    answers = plan.get("answers")
    if answers:
        options["script"] = lambda request: answers[_number(request.prompt_ids) % len(answers)]
    return ScriptedEngine(settings=settings, api_key=api_key, **options)


def run(model_dir: Path, host: str, port: int, settings: EngineSettings, api_key: str | None) -> None:
    """Serve until SIGTERM, as a process of its own. Same signature as the embedded engine's."""
    engine = _from_folder(model_dir, settings, api_key)
    app = http_server.make_app(engine, api_key)
    asyncio.run(http_server.serve_until_told(app, host, port, asyncio.Event().wait()))
