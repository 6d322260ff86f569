"""Continuous batching: one thread that admits, prefills in chunks, decodes, and delivers.

Each round of the loop runs at most one chunk of one prompt and then one decode step for all streams, so a long
prompt costs the others one chunk a token and never the whole. Streams of all versions share the decode batch.
Only those with the lowest priority number move: while a chat is answered, a judge's request stands still.

The thread talks to the rest only through a lock-protected inbox and through `deliver`.
"""

from __future__ import annotations

import heapq
import itertools
import random
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import structlog
import torch

from instar.config import EngineSettings
from instar.engines import wire
from instar.engines.embedded.adapters import Adapter
from instar.engines.embedded.kv import StreamCache
from instar.engines.embedded.model import Model, Stream
from instar.engines.embedded.prefixes import Prefixes
from instar.engines.embedded.sampler import Choosing, Sampled, is_usable, sample
from instar.engines.grammar import Matcher
from instar.errors import RequestError
from instar.ports import TokenChunk

log = structlog.get_logger("instar.engine")

Event = TokenChunk | RequestError

_IDLE_CHUNKS = 2  # larger pieces are computed faster a token; nobody waits for a decode step then


@dataclass(slots=True, eq=False)
class Job:
    """One request on its way through the scheduler. Only `cancelled` is set from outside its thread."""

    request: wire.Completion
    adapter: Adapter | None
    choosing: Choosing
    cancelled: bool = False
    stream: Stream | None = None
    prefilled: int = 0
    sampled: list[int] = field(default_factory=list)
    prompt_logprobs: list[dict[int, float] | None] | None = None

    @property
    def reserved(self) -> int:
        """Tokens of memory this answer may come to need."""
        return len(self.request.prompt_ids) + self.request.max_tokens


Deliver = Callable[[list[tuple[Job, Event]]], None]


def new_job(request: wire.Completion, adapter: Adapter | None, matcher: Matcher | None = None) -> Job:
    source = random.Random(request.seed)
    choosing = Choosing(request.temperature, request.top_p, source, request.alternatives or 0, matcher)
    return Job(request, adapter, choosing)


class Scheduler(threading.Thread):
    """See the module. `deliver` is called from this thread with what a round brought forth."""

    def __init__(self, model: Model, settings: EngineSettings, deliver: Deliver) -> None:
        super().__init__(name="instar-engine", daemon=True)
        self._model, self._settings, self._deliver = model, settings, deliver
        self._changed = threading.Condition()
        self._waiting: list[tuple[int, int, Job]] = []
        self._order = itertools.count()
        self._stopping = False
        self._prefilling: deque[Job] = deque()
        self._decoding: list[Job] = []
        self._prefixes = Prefixes(model.layout, settings.max_cached_tokens // 2)

    # ── called from other threads ───────────────────────────────────────────────────────────────────────

    def submit(self, job: Job) -> None:
        """Queue a request. Raises RequestError (429) when too many wait already."""
        with self._changed:
            if self._stopping:
                raise RequestError("The engine is stopping.", status=503, code="not_ready")
            # counted with those that run: one that could start at once does not "wait", even if the thread
            # has not come round to it yet
            alive = sum(not waiting.cancelled for _, _, waiting in self._waiting)
            alive += len(self._prefilling) + len(self._decoding)
            if alive >= self._settings.max_waiting + self._settings.max_streams:
                raise wire.queue_full()
            heapq.heappush(self._waiting, (job.request.priority, next(self._order), job))
            self._changed.notify()

    def cancel(self, job: Job) -> None:
        job.cancelled = True
        with self._changed:
            self._changed.notify()

    def is_idle(self) -> bool:
        with self._changed:
            waiting = any(not job.cancelled for _, _, job in self._waiting)
            return not (waiting or self._prefilling or self._decoding)

    def stop(self) -> None:
        """Ask the thread to end after its round; answers under way get no more."""
        with self._changed:
            self._stopping = True
            self._changed.notify()

    def forget(self, adapter: Adapter) -> None:
        """An adapter was unloaded: drop what is remembered under it."""
        self._prefixes.forget(adapter)

    # ── the loop ────────────────────────────────────────────────────────────────────────────────────────

    def run(self) -> None:
        torch.set_grad_enabled(False)
        torch.set_num_threads(torch.get_num_threads())  # OpenMP counts by thread: this one's is not yet set
        while self._admit():
            events: list[tuple[Job, Event]] = []
            self._drop_cancelled()
            if prefilling := self._urgent(self._prefilling):
                self._guarded(prefilling[:1], self._prefill_chunk, events)
            if decoding := self._urgent(self._decoding):
                self._guarded(decoding, self._decode_step, events)
            if events:
                self._deliver(events)

    def _urgent(self, jobs: Iterable[Job]) -> list[Job]:
        """Those that may move now: all with the lowest priority number of all that were admitted."""
        first = min((job.request.priority for job in (*self._prefilling, *self._decoding)), default=0)
        return [job for job in jobs if job.request.priority == first]

    def _admit(self) -> bool:
        """Take waiting requests in, as far as streams and memory reach. Sleeps when there is nothing to do."""
        with self._changed:
            while not self._stopping:
                while self._waiting:
                    _, _, first = self._waiting[0]
                    if not (self._fits(first) or self._make_way(first)):
                        break
                    self._begin(heapq.heappop(self._waiting)[2])
                if self._prefilling or self._decoding:
                    return True
                self._changed.wait()
        return False

    def _fits(self, job: Job) -> bool:
        return self._fits_beside(job, [*self._prefilling, *self._decoding])

    def _fits_beside(self, job: Job, running: list[Job]) -> bool:
        if job.cancelled:
            return True
        rivals = [other for other in running if other.request.priority <= job.request.priority]
        if len(rivals) >= self._settings.max_streams:
            return False
        used = sum(other.reserved for other in running)
        return used + job.reserved <= self._settings.max_cached_tokens

    def _make_way(self, job: Job) -> bool:
        """Prompts behind this one in priority give their memory back and wait anew, if it fits then."""
        behind = [other for other in self._prefilling if other.request.priority > job.request.priority]
        staying = [other for other in (*self._prefilling, *self._decoding) if other not in behind]
        if not behind or not self._fits_beside(job, staying):
            return False
        for other in behind:
            self._end(other)  # what was computed of it may be found again
            other.prompt_logprobs = None
            heapq.heappush(self._waiting, (other.request.priority, next(self._order), other))
        return True

    def _begin(self, job: Job) -> None:
        if job.cancelled:
            return
        request = job.request
        others = sum(other.reserved for other in [*self._prefilling, *self._decoding])
        self._prefixes.make_room(self._settings.max_cached_tokens - others - job.reserved)
        try:
            cache = StreamCache(self._model.layout, job.reserved)
        except (RuntimeError, MemoryError) as error:  # the machine's memory, not our bound: others go on
            self._deliver([(job, _failed(error))])
            return
        if request.prompt_alternatives is None:  # log-probs of a prompt need every position computed
            self._prefixes.fill(cache, job.adapter, request.prompt_ids)
        job.stream, job.prefilled = Stream(cache, job.adapter), cache.length
        self._prefilling.append(job)

    def _drop_cancelled(self) -> None:
        for job in [job for job in (*self._prefilling, *self._decoding) if job.cancelled]:
            self._end(job)

    def _end(self, job: Job) -> None:
        """The answer is over: free its slot; its keys and values may serve the conversation's next request."""
        if job in self._decoding:
            self._decoding.remove(job)
        else:
            self._prefilling.remove(job)
        stream, job.stream = job.stream, None
        if stream is not None and stream.cache.length:
            known = (job.request.prompt_ids + job.sampled)[: stream.cache.length]
            self._prefixes.keep(stream.cache, job.adapter, known)

    def _guarded(
        self,
        jobs: list[Job],
        step: Callable[[list[Job], list[tuple[Job, Event]]], None],
        events: list[tuple[Job, Event]],
    ) -> None:
        """The boundary of a request: what fails in a pass fails its requests, and the loop goes on."""
        try:
            step(jobs, events)
        except Exception as error:  # noqa: BLE001 - see above
            # as text: a renderer that shows local variables would print the whole model, for minutes
            log.error("a pass failed", requests=len(jobs), traceback=traceback.format_exc())
            for job in jobs:
                if job.stream is not None:  # else it ended, and its last event is told, before the fault
                    job.stream.cache.length = 0  # nobody knows how much of it was written
                    self._end(job)
                    events.append((job, _failed(error)))

    def _prefill_chunk(self, jobs: list[Job], events: list[tuple[Job, Event]]) -> None:
        job = jobs[0]
        assert job.stream is not None
        request = job.request
        chunk = self._settings.prefill_chunk * (1 if self._urgent(self._decoding) else _IDLE_CHUNKS)
        stop = min(job.prefilled + chunk, len(request.prompt_ids))
        ids = request.prompt_ids[job.prefilled : stop]
        scored = request.prompt_alternatives is not None
        logits = self._model.prefill(job.stream, ids, all_logits=scored)
        if scored:
            _score_prompt(job, logits, stop)
        job.prefilled = stop
        if stop == len(request.prompt_ids):
            self._prefilling.remove(job)
            self._decoding.append(job)
            self._take([job], logits[-1:], events)
        elif len(self._prefilling) > 1:
            self._prefilling.remove(job)
            self._prefilling.append(job)  # prompts take turns: a short one does not wait for a long one

    def _decode_step(self, jobs: list[Job], events: list[tuple[Job, Event]]) -> None:
        jobs.sort(key=lambda job: id(job.adapter))  # rows of one version side by side
        streams = [job.stream for job in jobs if job.stream is not None]
        logits = self._model.decode(streams, [job.sampled[-1] for job in jobs])
        self._take(jobs, logits, events)

    def _take(self, jobs: list[Job], logits: torch.Tensor, events: list[tuple[Job, Event]]) -> None:
        """Sample a token for each job from its row of logits."""
        for job, sampled in zip(jobs, sample(logits, [job.choosing for job in jobs]), strict=True):
            if not is_usable(sampled):
                assert job.stream is not None
                job.stream.cache.length = 0
                self._end(job)
                events.append((job, _not_finite(job)))
                continue
            if sampled.error is not None:
                self._end(job)
                events.append((job, sampled.error))
                continue
            job.sampled.append(sampled.token_id)
            finish = _finish(job, sampled)
            top = [sampled.top] if job.request.alternatives else None
            forced = [sampled.forced] if job.choosing.matcher else None
            events.append((job, TokenChunk([sampled.token_id], [sampled.logprob], finish, top, forced)))
            if finish is not None:
                self._end(job)


def _finish(job: Job, sampled: Sampled) -> str | None:
    matcher = job.choosing.matcher
    if sampled.token_id in job.request.stop_ids or (
        matcher and not job.request.stop_ids and matcher.is_complete
    ):
        return "stop"
    return "length" if len(job.sampled) >= job.request.max_tokens else None


def _failed(error: BaseException) -> RequestError:
    return RequestError(f"The engine failed: {error}", status=500, kind="internal_error", code="internal")


def _not_finite(job: Job) -> RequestError:
    return RequestError(
        f"'{job.request.model}' gives values that are not finite; it cannot be served.",
        status=500,
        kind="internal_error",
        code="not_finite",
    )


def _score_prompt(job: Job, logits_TV: torch.Tensor, stop: int) -> None:
    """Log-probs of the prompt's own tokens: the row after token i predicts token i + 1."""
    prompt, count = job.request.prompt_ids, job.request.prompt_alternatives or 0
    if job.prompt_logprobs is None:
        job.prompt_logprobs = [None]
    following = prompt[job.prefilled + 1 : stop + 1]
    logprobs = torch.log_softmax(logits_TV[: len(following)].float(), dim=-1)
    wanted = torch.tensor(following, dtype=torch.long, device=logits_TV.device)[:, None]
    own = logprobs.gather(1, wanted)[:, 0].tolist()
    values, places = (found.tolist() for found in logprobs.topk(max(count, 1), dim=-1))
    for token_id, value, top, at in zip(following, own, values, places, strict=True):
        job.prompt_logprobs.append({token_id: value, **dict(zip(at[:count], top[:count], strict=True))})
