"""`POST /v1/chat/completions`: OpenAI's chat API over the turn pipeline."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, TypeVar

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from instar.config import Settings
from instar.errors import InstarError, RequestError
from instar.flow.serve_turn import ChatRequest, Ended, Piece, ServeTurn, Serving
from instar.gateway.errors import error_event
from instar.gateway.guard import KeyRing, parse, read_body
from instar.gateway.schemas import ChatBody
from instar.gateway.sse import DONE, EventStream, client_left
from instar.gateway.tool_shapes import choice_of, deltas, tools_of
from instar.records import BASE, Sampling

SESSION_HEADERS = ("x-session-id", "x-session-affinity", "session_id")
PARSE_IN_THREAD_ABOVE = 64 * 1024  # bytes; below, a thread costs more than the parsing

T = TypeVar("T")
Events = AsyncGenerator[Serving | Piece | Ended, None]


@dataclass(slots=True)
class ChatApi:
    """Translates between OpenAI's shapes and the flow."""

    serve_turn: ServeTurn
    keys: KeyRing
    settings: Settings
    token_text: Callable[[int], str]
    router: APIRouter = field(default_factory=APIRouter)

    def __post_init__(self) -> None:
        schema = {"content": {"application/json": {"schema": ChatBody.model_json_schema()}}, "required": True}
        self.router.add_api_route(
            "/v1/chat/completions",
            self.complete,
            methods=["POST"],
            summary="Answer a conversation, streaming or not",
            openapi_extra={"requestBody": schema},
        )

    async def complete(self, request: Request) -> Response:
        caller = self.keys.caller(request)
        raw = await read_body(request, self.settings.max_body_bytes)
        body = await _parse_body(raw)
        wanted = self._to_request(body, request)
        events = self.serve_turn.serve(wanted, caller)
        if body.stream:
            return await self._stream(request, events, body)
        return await _unless_client_leaves(request, self._collect(events, body))

    def _to_request(self, body: ChatBody, request: Request) -> ChatRequest:
        metadata = body.metadata or {}
        sampling = self._sampling(body)
        off = request.headers.get("x-instar-learn", metadata.get("instar_learn", "on"))
        return ChatRequest(
            messages=body.chat_messages(),
            sampling=sampling,
            n=body.n or 1,
            version=version_of(body.model, self.settings.served_name),
            learn=str(off).lower() not in {"off", "false", "0", "no"},
            side=request.headers.get("x-turn-type", "").lower() == "side",
            session_id=_session(body, request, metadata),
            tools=tools_of(body.tools),
            tool_choice=choice_of(body.tool_choice),
            parallel_tool_calls=body.parallel_tool_calls is not False,
            response_schema=body.response_format.schema_of_answer() if body.response_format else None,
            params={"temperature": sampling.temperature, "top_p": body.top_p, "seed": body.seed},
        )

    def _sampling(self, body: ChatBody) -> Sampling:
        most = body.max_completion_tokens or body.max_tokens or self.settings.max_tokens
        return Sampling(
            max_tokens=most,
            temperature=self.settings.temperature if body.temperature is None else body.temperature,
            top_p=1.0 if body.top_p is None else body.top_p,
            seed=body.seed,
            stop=body.stops(),
            top_logprobs=(body.top_logprobs or 0) if body.logprobs else 0,
        )

    async def _stream(self, request: Request, events: Events, body: ChatBody) -> Response:
        """Waits for the first piece, so that an error before it still gets its own status."""
        serving, first = await _unless_client_leaves(request, _begin(events))
        chunks = self._chunks(serving, first, events, body)
        return EventStream(chunks, headers=turn_headers(serving))

    async def _chunks(
        self, serving: Serving, first: Piece | Ended, events: Events, body: ChatBody
    ) -> AsyncGenerator[bytes, None]:
        frame = _Frame(
            serving,
            self.settings.served_name,
            bool(body.stream_options and body.stream_options.include_usage),
        )
        tokens = 0
        async with aclosing(events):
            for turn in serving.turns:
                yield frame.chunk(turn.choice, {"role": "assistant", "content": ""})
            try:
                event: Serving | Piece | Ended | None = first
                while event is not None:
                    if isinstance(event, Piece):
                        logprobs = self._logprobs(event) if body.logprobs else None
                        for delta in deltas(event) or ([{"content": ""}] if logprobs else []):
                            yield frame.chunk(event.choice, delta, logprobs=logprobs)
                            logprobs = None
                    elif isinstance(event, Ended):
                        tokens += event.response_tokens
                        yield frame.chunk(event.choice, {}, finish=event.finish_reason)
                    event = await anext(events, None)
            except InstarError as error:
                yield error_event(error)
                return
        if frame.with_usage:
            yield frame.usage(tokens)
        yield DONE

    async def _collect(self, events: Events, body: ChatBody) -> Response:
        async with aclosing(events):
            serving, first = await _begin(events)
            pieces: dict[int, list[Piece]] = {t.choice: [] for t in serving.turns}
            ended: dict[int, Ended] = {}
            event: Serving | Piece | Ended | None = first
            while event is not None:
                if isinstance(event, Piece):
                    pieces[event.choice].append(event)
                elif isinstance(event, Ended):
                    ended[event.choice] = event
                event = await anext(events, None)
        choices = [
            {
                "index": i,
                "message": {**ended[i].message, "refusal": None},
                "logprobs": self._all_logprobs(pieces[i]) if body.logprobs else None,
                "finish_reason": ended[i].finish_reason,
            }
            for i in sorted(ended)
        ]
        answer = {
            **_head(serving, self.settings.served_name, "chat.completion"),
            "choices": choices,
            "usage": _usage(serving, sum(e.response_tokens for e in ended.values())),
        }
        return JSONResponse(answer, headers=turn_headers(serving))

    def _all_logprobs(self, pieces: list[Piece]) -> dict[str, Any]:
        content = [entry for piece in pieces for entry in self._logprobs(piece)["content"]]
        return {"content": content, "refusal": None}

    def _logprobs(self, piece: Piece) -> dict[str, Any]:
        top = piece.top or [[] for _ in piece.ids]
        content = [
            {
                **self._token(token_id, logprob),
                "top_logprobs": [self._token(other, value) for other, value in alternatives],
            }
            for token_id, logprob, alternatives in zip(piece.ids, piece.logprobs, top, strict=True)
        ]
        return {"content": content, "refusal": None}

    def _token(self, token_id: int, logprob: float) -> dict[str, Any]:
        text = self.token_text(token_id)
        return {"token": text, "logprob": logprob, "bytes": list(text.encode())}


async def _parse_body(raw: bytes) -> ChatBody:
    if len(raw) > PARSE_IN_THREAD_ABOVE:
        return await asyncio.to_thread(parse, raw, ChatBody)
    return parse(raw, ChatBody)


async def _begin(events: Events) -> tuple[Serving, Piece | Ended]:
    serving = await anext(events)
    assert isinstance(serving, Serving)
    first = await anext(events)
    assert not isinstance(first, Serving)
    return serving, first


def version_of(model: str, served_name: str) -> str | None:
    """`instar` → None (the current version), `instar@v7` → v7, `instar@base` → base. RequestError 404."""
    name, at, version = model.partition("@")
    known = version == BASE or (version[:1] == "v" and version[1:].isascii() and version[1:].isdigit())
    if name != served_name or (at and not known):
        raise RequestError(
            f"There is no model {model[:80]!r} here. Use {served_name!r} for the version in service, "
            f"{served_name + '@v7'!r} for a certain one, or {served_name + '@base'!r} for the untouched model.",
            status=404,
            code="model_not_found",
            param="model",
        )
    return version if at else None


def _session(body: ChatBody, request: Request, metadata: dict[str, Any]) -> str | None:
    for header in SESSION_HEADERS:
        if value := request.headers.get(header):
            return value
    for value in (body.prompt_cache_key, body.session_id, metadata.get("session_id")):
        if isinstance(value, str) and value:
            return value
    return None


def turn_headers(serving: Serving) -> dict[str, str]:
    return {
        "x-instar-turn": ",".join(t.id for t in serving.turns),
        "x-instar-version": serving.version,
    }


def _head(serving: Serving, served_name: str, kind: str) -> dict[str, Any]:
    return {
        "id": serving.turns[0].id,
        "object": kind,
        "created": int(serving.turns[0].created_at),
        "model": served_name,
        "system_fingerprint": serving.version,
    }


def _usage(serving: Serving, response_tokens: int) -> dict[str, int]:
    prompt = len(serving.prompt_ids)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": response_tokens,
        "total_tokens": prompt + response_tokens,
    }


class _Frame:
    """Builds the chunks of one response. What never changes in it is encoded once."""

    def __init__(self, serving: Serving, served_name: str, with_usage: bool) -> None:
        self.with_usage = with_usage
        self._serving = serving
        self._head = _head(serving, served_name, "chat.completion.chunk")
        self._start = b"data: " + json.dumps(self._head).encode()[:-1]
        self._end = b', "usage": null}\n\n' if with_usage else b"}\n\n"

    def chunk(
        self,
        choice: int,
        delta: dict[str, Any],
        *,
        finish: str | None = None,
        logprobs: dict[str, Any] | None = None,
    ) -> bytes:
        body = {"index": choice, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
        return self._start + b', "choices": [' + json.dumps(body).encode() + b"]" + self._end

    def usage(self, response_tokens: int) -> bytes:
        body = {**self._head, "choices": [], "usage": _usage(self._serving, response_tokens)}
        return b"data: " + json.dumps(body).encode() + b"\n\n"


async def _unless_client_leaves(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Cancels the work, and with it the sampling, when nobody waits for the answer any more."""
    task = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(client_left(request.receive))
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise RequestError("The client left.", status=499)
        return task.result()
    finally:
        watch.cancel()
        task.cancel()
        await asyncio.gather(task, watch, return_exceptions=True)
