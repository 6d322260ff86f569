"""The embedded engine as the HTTP server sees it: loading, names of versions, answers."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import torch

from instar.config import EngineSettings
from instar.engines import wire
from instar.engines.embedded.adapters import Adapter
from instar.engines.embedded.model import Model, load_model
from instar.engines.embedded.native.attach import attach
from instar.engines.embedded.scheduler import Event, Job, Scheduler, new_job
from instar.engines.grammar import Grammars, Matcher
from instar.engines.model_folder import check_model_folder, model_facts
from instar.errors import RequestError
from instar.ports import TokenChunk
from instar.records import BASE

_WARM_UP_TOKENS = 3
_PATIENCE_S = 5.0


class _Answer:
    def __init__(self, backend: EmbeddedBackend, job: Job) -> None:
        self._backend, self._job = backend, job
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self._ended = False

    @property
    def prompt_logprobs(self) -> list[dict[int, float] | None] | None:
        return self._job.prompt_logprobs

    def put(self, event: Event) -> None:
        self._events.put_nowait(event)

    async def __aiter__(self) -> AsyncIterator[TokenChunk]:
        while not self._ended:
            event = await self._events.get()
            if isinstance(event, RequestError):
                self._ended = True
                raise event
            self._ended = event.finish_reason is not None
            yield event

    def cancel(self) -> None:
        self._backend.forget_answer(self._job, cancel=not self._ended)


class EmbeddedBackend:
    """Implements wire.Backend. Belongs to the event loop that `start` runs in."""

    base_name = BASE

    def __init__(
        self, model_dir: Path, settings: EngineSettings, dtype: torch.dtype = torch.bfloat16
    ) -> None:
        self._folder, self._settings, self._dtype = model_dir, settings, dtype
        self._adapters: dict[str, Adapter] = {}
        self._loading = asyncio.Lock()
        self._answers: dict[int, _Answer] = {}
        self._model: Model | None = None
        self._grammars: Grammars | None = None
        self._scheduler: Scheduler | None = None
        self._is_ready = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self.max_model_len = 0
        self.vocab_size = 0

    async def start(self) -> None:
        """Load the model, warm it up, and be ready. Raises ModelError."""
        self._loop = asyncio.get_running_loop()
        self._model = await asyncio.to_thread(self._load)
        self._scheduler = Scheduler(self._model, self._settings, self._deliver_from_thread)
        self._scheduler.start()
        await self._warm_up()
        self._is_ready = True

    def _load(self) -> Model:
        check_model_folder(self._folder)
        facts = model_facts(self._folder)
        self.max_model_len = min(facts.context_length, self._settings.max_cached_tokens)
        torch.set_num_threads(self._settings.threads or max(1, _cores() - 1))
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        model = load_model(self._folder, self._dtype, device, self.max_model_len)
        attach(model, self._settings.native)
        self.vocab_size = model.vocab_size
        self._grammars = Grammars(self._folder / "tokenizer.json", model.vocab_size)
        return model

    async def _warm_up(self) -> None:
        """The first passes choose kernels and touch memory: let no user wait for that."""
        length = min(self._settings.prefill_chunk + 1, self.max_model_len - _WARM_UP_TOKENS)
        prompt = [i % self.vocab_size for i in range(max(1, length))]
        request = wire.Completion(self.base_name, prompt, max_tokens=_WARM_UP_TOKENS, temperature=0.7)
        answers = [await self.submit(request) for _ in range(2)]
        for answer in answers:
            async for _ in answer:
                pass
            answer.cancel()

    async def ended(self) -> None:
        """Returns when the compute thread has ended, by `stop` or by a fault that nobody foresaw."""
        assert self._scheduler is not None
        await asyncio.to_thread(self._scheduler.join)

    async def stop(self) -> bool:
        """End the scheduler's thread after its round. True if nothing of this engine runs any more."""
        self._is_ready = False
        if self._scheduler is None:
            return self._model is not None
        self._scheduler.stop()
        await asyncio.to_thread(self._scheduler.join, _PATIENCE_S)
        return not self._scheduler.is_alive()

    # ── wire.Backend ────────────────────────────────────────────────────────────────────────────────────

    def ready(self) -> bool:
        return self._is_ready and self._scheduler is not None and self._scheduler.is_alive()

    def adapters(self) -> dict[str, Path]:
        return {name: adapter.folder for name, adapter in self._adapters.items()}

    async def load(self, name: str, folder: Path) -> None:
        assert self._model is not None
        async with self._loading:  # two loads of one name, or beyond the limit, must not pass each other
            if name in self._adapters:
                return
            if len(self._adapters) >= self._settings.max_loras:
                raise wire.too_many_adapters(self._settings.max_loras)
            self._adapters[name] = await asyncio.to_thread(
                self._model.load_adapter, name, folder, self._settings.max_lora_rank
            )

    async def unload(self, name: str) -> None:
        """Only the name goes at once; the matrices go with the last request that holds them."""
        adapter = self._adapters.pop(name, None)
        if adapter is not None and self._scheduler is not None:
            self._scheduler.forget(adapter)

    def is_idle(self) -> bool:
        """No request waits or runs."""
        return self._scheduler is not None and self._scheduler.is_idle()

    async def submit(self, request: wire.Completion) -> wire.Answer:
        assert self._scheduler is not None
        adapter = None
        if request.model != self.base_name:
            adapter = self._adapters.get(request.model)
            if adapter is None:
                raise wire.unknown_model(request.model)
        job = new_job(request, adapter, await self._matcher(request))
        answer = _Answer(self, job)
        self._answers[id(job)] = answer
        try:
            self._scheduler.submit(job)
        except RequestError:
            del self._answers[id(job)]
            raise
        return answer

    async def _matcher(self, request: wire.Completion) -> Matcher | None:
        """Compiled in a thread: a large schema takes a while, and other answers must not stand still for it."""
        if request.grammar is None:
            return None
        assert self._grammars is not None
        return await asyncio.to_thread(self._grammars.matcher, request.grammar, sorted(request.stop_ids))

    def forget_answer(self, job: Job, *, cancel: bool) -> None:
        self._answers.pop(id(job), None)
        if cancel and self._scheduler is not None:
            self._scheduler.cancel(job)

    # ── from the scheduler's thread to the loop ─────────────────────────────────────────────────────────

    def _deliver_from_thread(self, events: list[tuple[Job, Event]]) -> None:
        """One wake-up of the loop a round, not one a token."""
        assert self._loop is not None
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._deliver, events)

    def _deliver(self, events: list[tuple[Job, Event]]) -> None:
        for job, event in events:
            answer = self._answers.get(id(job))
            if answer is not None:
                answer.put(event)


def _cores() -> int:
    """Cores this process may use, which a container limits."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
