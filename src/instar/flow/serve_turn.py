"""One request, from messages to a recorded answer.

    place it ─► encode ─► open the turn(s) ─► sample ─► commit ─► acknowledge

A turn is durable before its last event is handed out, so whatever a client has seen to the end is in the store.
The request is served wholly by the version that was current when it began.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from instar.answers import Shown
from instar.chat_format import ChatFormat
from instar.content import is_raw
from instar.errors import EngineError, RequestError
from instar.flow.answer import Answer, Seen
from instar.flow.constraint import constraint
from instar.flow.conversation import context_hash
from instar.flow.exchange import ChatRequest, Ended, Piece, Serving
from instar.flow.next_states import SESSION_DONE
from instar.flow.sessions import Place, place
from instar.ports import Engine, Store, TokenChunk
from instar.records import Caller, Message, Sampling, Turn, TurnOutcome, TurnStatus
from instar.runtime import Clock, new_id

T = TypeVar("T")

OPTED_OUT = "opted_out"


class Versions(Protocol):
    """Keeps what the engine serves in step with what is active."""

    def lease(self, wanted: str | None) -> AbstractAsyncContextManager[str]:
        """Holds a version (None: the current one) loaded until the request ends. Yields its name."""
        ...

    async def reload(self, version: str) -> None:
        """The engine says it does not know this version: load it again."""
        ...


class ServeTurn:
    """Serves requests over the ports it is given. `in_thread` runs blocking calls off the event loop."""

    def __init__(
        self,
        store: Store,
        engine: Engine,
        chat: ChatFormat,
        versions: Versions,
        clock: Clock,
        in_thread: Callable[..., Awaitable[Any]] = asyncio.to_thread,
    ) -> None:
        self._store = store
        self._engine = engine
        self._chat = chat
        self._versions = versions
        self._clock = clock
        self._in_thread = in_thread

    async def serve(
        self, request: ChatRequest, caller: Caller
    ) -> AsyncGenerator[Serving | Piece | Ended, None]:
        """Yields Serving first, then Pieces, and one Ended per choice. Closing it cancels the turns.

        Raises RequestError before anything was recorded, EngineError when sampling failed.
        """
        async with self._versions.lease(request.version) as version:
            serving = await self._begin(request, caller, version)
            try:
                yield serving
                choices = [self._choice(serving, turn) for turn in serving.turns]
                async with aclosing(_merge(choices)) as events:
                    async for event in events:
                        yield event
            finally:
                await self._cancel_unended(serving)

    async def count_tokens(self, request: ChatRequest, caller: Caller) -> int:
        """Length of the prompt that this request would be answered from. Nothing is recorded."""
        return len(await self._in_thread(self._prompt_of, request, caller))

    def _prompt_of(self, request: ChatRequest, caller: Caller) -> list[int]:
        where = self._place(request, caller, new_id("turn"), self._clock.now())
        return self._encode(request, where)

    def _place(self, request: ChatRequest, caller: Caller, turn_id: str, now: float) -> Place:
        return place(
            self._store,
            caller,
            request.messages,
            turn_id=turn_id,
            now=now,
            explicit_session=request.session_id,
            side=request.side,
            tools=request.offered or [],
            hints=request.hints,
        )

    async def _begin(self, request: ChatRequest, caller: Caller, version: str) -> Serving:
        opening = asyncio.ensure_future(self._in_thread(self._open, request, caller, version))
        try:
            serving: Serving = await asyncio.shield(opening)
        except asyncio.CancelledError:
            await self._cancel_unended(await opening)
            raise
        return serving

    async def _cancel_unended(self, serving: Serving) -> None:
        """A client may leave before a choice began to be sampled: its turn must not stay open."""
        for turn in serving.turns:
            if turn.id not in serving.ended:
                await self._close(serving, turn, Seen(), _NOTHING, TurnStatus.CANCELLED)

    def _open(self, request: ChatRequest, caller: Caller, version: str) -> Serving:
        """Runs in a thread: everything here grows with the prompt or waits for the disk."""
        now = self._clock.now()
        turn_ids = [new_id("turn") for _ in range(request.n)]
        where = self._place(request, caller, turn_ids[0], now)
        prompt_ids = self._encode(request, where)
        grammar = constraint(
            self._chat,
            prompt_ids,
            tools=request.offered,
            choice=request.tool_choice,
            many=request.parallel_tool_calls,
            schema=request.response_schema,
        )
        room = self._chat.context_length - len(prompt_ids)
        if room < 1:
            raise RequestError(
                f"The messages take {len(prompt_ids)} tokens; this model's context is "
                f"{self._chat.context_length}, and the answer needs room too. Shorten the conversation.",
                code="context_length_exceeded",
                param="messages",
            )
        most = min(request.sampling.max_tokens, room)
        sampling = replace(request.sampling, max_tokens=most, grammar=grammar)
        turns = [
            _new_turn(turn_id, i, replace(request, sampling=sampling), caller, version, where, now)
            for i, turn_id in enumerate(turn_ids)
        ]
        self._store.open_turns(turns, where.says if request.learn else [])
        return Serving(replace(request, sampling=sampling), turns, prompt_ids, version)

    def _encode(self, request: ChatRequest, where: Place) -> list[int]:
        if request.prompt_ids is not None:
            return request.prompt_ids
        messages = list(request.messages)
        served: dict[int, list[int]] = {}
        for i, turn in where.served.items():
            answer = turn.answer or {}
            if self._chat.covers(turn.response_ids, answer.get("content")):
                served[i] = turn.response_ids
            # clients may leave out what was thought; whether it comes back is the template's to say
            if answer.get("reasoning_content") and not messages[i].get("reasoning_content"):
                messages[i] = {**messages[i], "reasoning_content": answer["reasoning_content"]}
        return self._chat.encode_prompt(messages, served=served, tools=request.offered)

    async def _choice(self, serving: Serving, turn: Turn) -> AsyncGenerator[Piece | Ended, None]:
        sampling = serving.request.sampling
        seed = None if sampling.seed is None else sampling.seed + turn.choice
        answer = self._reading(serving)
        seen = Seen()
        try:
            async for chunk in self._sample(serving, replace(sampling, seed=seed)):
                seen.add(chunk, sampling)
                shown = answer.push(chunk.ids)
                if answer.is_over:
                    seen.finish_reason = "stop"
                yield _piece(turn.choice, shown, chunk)
                if answer.is_over:
                    break
            if seen.finish_reason is None:
                raise EngineError("The engine ended its answer without saying why.")
            rest = answer.finish()
            if rest:
                yield _piece(turn.choice, rest)
        except EngineError:
            await self._close(serving, turn, seen, answer.message(), TurnStatus.FAILED)
            raise
        except (asyncio.CancelledError, GeneratorExit):
            await self._close(serving, turn, seen, answer.message(), TurnStatus.CANCELLED)
            raise
        message = answer.message()
        if message.get("tool_calls") and seen.finish_reason == "stop":
            seen.finish_reason = "tool_calls"
        await self._close(serving, turn, seen, message, TurnStatus.DONE)
        yield Ended(turn.choice, seen.finish_reason, len(seen.ids), message, answer.stop_string)

    def _reading(self, serving: Serving) -> Answer:
        asked = serving.request
        most_calls = None if asked.parallel_tool_calls else 1
        raw = is_raw(asked.messages)
        return Answer(self._chat, serving.prompt_ids, asked.sampling, asked.offered, most_calls, raw=raw)

    async def _sample(self, serving: Serving, sampling: Sampling) -> AsyncGenerator[TokenChunk, None]:
        """Samples; if a restarted engine lost the version, loads it and begins anew, once, before any token."""
        for last_try in (False, True):
            began = False
            try:
                async with aclosing(_stream(self._engine, serving, sampling)) as chunks:
                    async for chunk in chunks:
                        began = True
                        yield chunk
                return
            except EngineError as error:
                if began or last_try or error.status != 404:
                    raise
            await self._versions.reload(serving.version)

    async def _close(
        self, serving: Serving, turn: Turn, seen: Seen, answer: Message, status: TurnStatus
    ) -> None:
        done = status is TurnStatus.DONE
        outcome = TurnOutcome(
            status=status,
            prompt_ids=serving.prompt_ids,
            response_ids=seen.ids,
            logprobs=seen.logprobs,
            forced=seen.forced,
            answer=answer,
            context_hash=context_hash(turn.messages, answer) if done else None,
            finish_reason=seen.finish_reason if done else None,
            closed_at=self._clock.now(),
            reason=None if done else status.value,
        )
        serving.ended.add(turn.id)
        # A client that leaves must not interrupt the record of its leaving.
        await asyncio.shield(asyncio.ensure_future(self._in_thread(self._store.close_turn, turn.id, outcome)))


_NOTHING: Message = {"role": "assistant", "content": ""}


def _piece(choice: int, shown: Shown, chunk: TokenChunk | None = None) -> Piece:
    ids, logprobs, top = (chunk.ids, chunk.logprobs, chunk.top) if chunk else ([], [], None)
    return Piece(choice, shown, ids, logprobs, top)


def _stream(engine: Engine, serving: Serving, sampling: Sampling) -> Any:
    return engine.sample(serving.version, serving.prompt_ids, sampling)


def _new_turn(
    turn_id: str,
    choice: int,
    request: ChatRequest,
    caller: Caller,
    version: str,
    where: Place,
    now: float,
) -> Turn:
    reason = where.what.reason or (where.reason if request.learn else OPTED_OUT)
    done = {SESSION_DONE: True} if request.hints.done else {}
    return Turn(
        id=turn_id,
        session_id=where.session_id,
        episode_id=where.episode_id or turn_id,
        parent_id=where.parent.id if where.parent else None,
        key_id=caller.key_id,
        learner=caller.learner,
        kind=where.kind,
        version=version,
        pinned=request.version is not None,
        messages=request.messages,
        tools=request.offered or [],
        request_hash=where.request_hash,
        created_at=now,
        learn=reason is None,
        reason=reason,
        choice=choice,
        params={**request.params, "max_tokens": request.sampling.max_tokens, **where.notes, **done},
    )


async def _merge(sources: Sequence[AsyncGenerator[T, None]]) -> AsyncGenerator[T, None]:
    """Events of several choices as they come. One source, the usual case, costs nothing."""
    if len(sources) == 1:
        async with aclosing(sources[0]) as only:
            async for event in only:
                yield event
        return
    queue: asyncio.Queue[T | EngineError | None] = asyncio.Queue()

    async def drain(source: AsyncIterator[T]) -> None:
        try:
            async for event in source:
                await queue.put(event)
            await queue.put(None)
        except EngineError as error:
            await queue.put(error)

    tasks = [asyncio.create_task(drain(source)) for source in sources]
    try:
        for _ in sources:
            while (item := await queue.get()) is not None:
                if isinstance(item, EngineError):
                    raise item
                yield item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
