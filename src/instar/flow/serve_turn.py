"""One request, from messages to a recorded answer.

    place it ─► encode ─► open the turn(s) ─► sample ─► commit ─► acknowledge

A turn is durable before its last event is handed out, so whatever a client has seen to the end is in the store.
The request is served wholly by the version that was current when it began.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import replace
from typing import Any, Protocol

from instar.answers import Shown
from instar.chat_format import ChatFormat
from instar.content import is_raw
from instar.errors import EngineError
from instar.flow.answer import Answer, Seen
from instar.flow.conversation import context_hash
from instar.flow.exchange import ChatRequest, Ended, Piece, Serving
from instar.flow.merge import merge
from instar.flow.open_turn import TurnOpener
from instar.ports import Engine, Store, TokenChunk
from instar.records import Caller, Message, Sampling, Turn, TurnOutcome, TurnStatus
from instar.runtime import Clock


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
        self._opener = TurnOpener(store, chat, clock)
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
                async with aclosing(merge(choices)) as events:
                    async for event in events:
                        yield event
            finally:
                await self._cancel_unended(serving)

    async def count_tokens(self, request: ChatRequest, caller: Caller) -> int:
        """Length of the prompt that this request would be answered from. Nothing is recorded."""
        return len(await self._in_thread(self._opener.prompt_ids, request, caller))

    def context_length(self) -> int:
        """Tokens of prompt and answer together: what the model was made for, or less where the engine takes less."""
        told = self._engine.context_length
        return min(self._chat.context_length, told or self._chat.context_length)

    async def _begin(self, request: ChatRequest, caller: Caller, version: str) -> Serving:
        opening = asyncio.ensure_future(
            self._in_thread(self._opener.open, request, caller, version, self.context_length())
        )
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

    async def _choice(self, serving: Serving, turn: Turn) -> AsyncGenerator[Piece | Ended, None]:
        answer, seen = self._reading(serving), Seen()
        try:
            async with aclosing(self._pieces(serving, turn, answer, seen)) as pieces:
                async for piece in pieces:
                    yield piece
        except EngineError:
            await self._close(serving, turn, seen, answer.message(), TurnStatus.FAILED)
            raise
        except (asyncio.CancelledError, GeneratorExit):
            await self._close(serving, turn, seen, answer.message(), TurnStatus.CANCELLED)
            raise
        message = answer.message()
        finish_reason = seen.finish_reason
        if message.get("tool_calls") and finish_reason == "stop":
            finish_reason = seen.finish_reason = "tool_calls"
        await self._close(serving, turn, seen, message, TurnStatus.DONE)
        yield Ended(turn.choice, finish_reason or "stop", len(seen.ids), message, answer.stop_string)

    async def _pieces(
        self, serving: Serving, turn: Turn, answer: Answer, seen: Seen
    ) -> AsyncGenerator[Piece, None]:
        """What is sampled, as it is shown; `answer` and `seen` are filled with it. Raises EngineError."""
        sampling = serving.request.sampling
        seed = None if sampling.seed is None else sampling.seed + turn.choice
        async with aclosing(self._sample(serving, replace(sampling, seed=seed))) as chunks:
            async for chunk in chunks:
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
