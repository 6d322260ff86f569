"""`POST /v1/chat/completions`: OpenAI's chat API over the turn pipeline."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from instar.answers import CallPart
from instar.config import Settings
from instar.errors import InstarError
from instar.flow.exchange import ChatRequest, Ended, Piece, Serving
from instar.flow.serve_turn import ServeTurn
from instar.gateway.asking import as_sent, sampling_of
from instar.gateway.bodies import read
from instar.gateway.chat_tools import choice_of, tools_of
from instar.gateway.errors import describe
from instar.gateway.keys import KeyRing
from instar.gateway.openai_shape import head, usage
from instar.gateway.openapi import add_answering, events_of
from instar.gateway.response_models import ChatChunk, ChatCompletion
from instar.gateway.schemas import ChatBody
from instar.gateway.session_hints import speaker
from instar.gateway.sse import DONE, EventStream, data_event
from instar.gateway.turns import Begun, Events, begin, collect, turn_headers, unless_client_leaves
from instar.records import Sampling


@dataclass(slots=True)
class ChatApi:
    """Translates between OpenAI's shapes and the flow."""

    serve_turn: ServeTurn
    keys: KeyRing
    settings: Settings
    token_text: Callable[[int], str]
    router: APIRouter = field(default_factory=APIRouter)

    def __post_init__(self) -> None:
        add_answering(
            self.router,
            "/v1/chat/completions",
            self.complete,
            "Answer a conversation, streaming or not",
            body=ChatBody,
            answer=ChatCompletion,
            events=events_of(ChatChunk, "[DONE]"),
        )

    async def complete(self, request: Request) -> Response:
        caller = self.keys.caller(request)
        body = await read(request, ChatBody, self.settings.max_body_bytes)
        wanted = self._to_request(body, request)
        events = self.serve_turn.serve(wanted, speaker(caller, body.user))
        if body.stream:
            return await self._stream(request, events, body)
        return await unless_client_leaves(request, self._collect(events, body))

    def _to_request(self, body: ChatBody, request: Request) -> ChatRequest:
        sampling = self._sampling(body)
        asked = ChatRequest(
            messages=body.chat_messages(),
            sampling=sampling,
            n=body.n or 1,
            tools=tools_of(body.tools),
            tool_choice=choice_of(body.tool_choice),
            parallel_tool_calls=body.parallel_tool_calls is not False,
            response_schema=body.response_format.schema_of_answer() if body.response_format else None,
            params={"temperature": sampling.temperature, "top_p": body.top_p, "seed": body.seed},
        )
        return as_sent(asked, request, self.settings, model=body.model, fields=body.session_fields())

    def _sampling(self, body: ChatBody) -> Sampling:
        return sampling_of(
            self.settings,
            max_tokens=body.max_completion_tokens or body.max_tokens,
            temperature=body.temperature,
            top_p=body.top_p,
            seed=body.seed,
            stop=body.stops(),
            top_logprobs=(body.top_logprobs or 0) if body.logprobs else 0,
        )

    async def _stream(self, request: Request, events: Events, body: ChatBody) -> Response:
        begun = await unless_client_leaves(request, begin(events))
        with_usage = bool(body.stream_options and body.stream_options.include_usage)
        frame = _Frame(begun.serving, self.settings.served_name, with_usage)
        chunks = self._chunks(begun, frame, body)
        return EventStream(chunks, turn_headers(begun.serving), frame.ping, self.settings.ping_s)

    async def _chunks(self, begun: Begun, frame: _Frame, body: ChatBody) -> AsyncGenerator[bytes, None]:
        tokens = 0
        async with aclosing(begun):
            for turn in begun.serving.turns:
                yield frame.chunk(turn.choice, {"role": "assistant", "content": ""})
            try:
                async for event in begun:
                    if isinstance(event, Piece):
                        logprobs = self._logprobs(event) if body.logprobs else None
                        for delta in _deltas(event) or ([{"content": ""}] if logprobs else []):
                            yield frame.chunk(event.choice, delta, logprobs=logprobs)
                            logprobs = None
                    elif isinstance(event, Ended):
                        tokens += event.response_tokens
                        yield frame.chunk(event.choice, {}, finish=event.finish_reason)
            except InstarError as error:
                yield data_event(describe(error)[1])
                return
        if frame.with_usage:
            yield frame.usage(tokens)
        yield DONE

    async def _collect(self, events: Events, body: ChatBody) -> Response:
        found = await collect(events)
        serving, ended = found.serving, found.ended
        choices = [
            {
                "index": i,
                "message": {**ended[i].message, "refusal": None},
                "logprobs": self._all_logprobs(found.pieces[i]) if body.logprobs else None,
                "finish_reason": ended[i].finish_reason,
            }
            for i in sorted(ended)
        ]
        answer = {
            **head(serving, self.settings.served_name, "chat.completion"),
            "choices": choices,
            "usage": usage(serving, found.response_tokens),
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


def _deltas(piece: Piece) -> list[dict[str, Any]]:
    """What a piece adds to a message, in OpenAI's order."""
    found: list[dict[str, Any]] = [{"reasoning_content": piece.reasoning}] if piece.reasoning else []
    found += [{"content": piece.text}] if piece.text else []
    return found + [{"tool_calls": [_call_delta(part)]} for part in piece.calls]


def _call_delta(part: CallPart) -> dict[str, Any]:
    """A piece of a call: id, type and name with the first one, arguments with all."""
    delta: dict[str, Any] = {"index": part.index, "function": {"arguments": part.arguments}}
    if part.name is not None:
        delta |= {"id": part.id, "type": "function"}
        delta["function"] = {"name": part.name, "arguments": part.arguments}
    return delta


class _Frame:
    """Builds the chunks of one response. What never changes in it is encoded once."""

    def __init__(self, serving: Serving, served_name: str, with_usage: bool) -> None:
        self.with_usage = with_usage
        self._serving = serving
        self._open = [turn.choice for turn in serving.turns]
        self._head = head(serving, served_name, "chat.completion.chunk")
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
        if finish is not None:
            self._open.remove(choice)
        body = {"index": choice, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
        return self._start + b', "choices": [' + json.dumps(body).encode() + b"]" + self._end

    def ping(self) -> bytes:
        """An empty piece of an answer that is still to come: some clients take no notice of comments."""
        return self.chunk(self._open[0], {"content": ""}) if self._open else b": ping\n\n"

    def usage(self, response_tokens: int) -> bytes:
        body = {**self._head, "choices": [], "usage": usage(self._serving, response_tokens)}
        return data_event(body)
