"""`POST /v1/chat/completions`: OpenAI's chat API over the turn pipeline."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from instar.answers import CallPart
from instar.chat_format import ChatFormat
from instar.config import Settings
from instar.flow.exchange import ChatRequest, Ended, Piece, Serving
from instar.flow.serve_turn import ServeTurn
from instar.gateway.asking import as_sent, sampling_of
from instar.gateway.bodies import read
from instar.gateway.chat_tools import choice_of, tools_of
from instar.gateway.keys import KeyRing
from instar.gateway.logprobs import TokenLogprobs
from instar.gateway.openai_shape import ChoicesBuilder
from instar.gateway.openapi import add_answering, events_of
from instar.gateway.response_models import ChatChunk, ChatCompletion
from instar.gateway.schemas import ChatBody
from instar.gateway.session_hints import speaker
from instar.gateway.turns import Event, answer
from instar.records import Sampling


@dataclass(slots=True)
class ChatApi:
    """Translates between OpenAI's shapes and the flow."""

    serve_turn: ServeTurn
    keys: KeyRing
    settings: Settings
    chat: ChatFormat
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
        return await answer(
            request,
            self.serve_turn.serve(self._to_request(body, request), speaker(caller, body.user)),
            lambda serving: ChatBuilder(serving, self.settings.served_name, body, self.chat),
            stream=body.stream,
            ping_s=self.settings.ping_s,
        )

    def _to_request(self, body: ChatBody, request: Request) -> ChatRequest:
        asked = ChatRequest(
            messages=body.chat_messages(),
            sampling=self._sampling(body),
            n=body.n or 1,
            tools=tools_of(body.tools),
            tool_choice=choice_of(body.tool_choice),
            parallel_tool_calls=body.parallel_tool_calls is not False,
            response_schema=body.response_format.schema_of_answer() if body.response_format else None,
        )
        return as_sent(
            asked,
            request,
            self.settings,
            api="chat",
            model=body.model,
            fields=body.session_fields(),
            top_p=body.top_p,
        )

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


class ChatBuilder(ChoicesBuilder):
    """Implements `turns.Builder`."""

    def __init__(self, serving: Serving, served_name: str, body: ChatBody, chat: ChatFormat) -> None:
        super().__init__(serving, served_name, body, "chat.completion", "chat.completion.chunk")
        self._logprobs = TokenLogprobs(chat) if body.logprobs else None
        self._tokens: dict[int, list[Any]] = {turn.choice: [] for turn in serving.turns}

    def begin(self) -> list[Event]:
        return [_choice(choice, {"role": "assistant", "content": ""}) for choice in self._tokens]

    def add(self, piece: Piece) -> list[Event]:
        deltas = _deltas(piece)
        if self._logprobs is None:
            return [_choice(piece.choice, delta) for delta in deltas]
        tokens = self._logprobs.of(piece)
        self._tokens[piece.choice] += tokens
        first, *others = deltas or [{"content": ""}]
        told = _choice(piece.choice, first, logprobs={"content": tokens, "refusal": None})
        return [told, *(_choice(piece.choice, delta) for delta in others)]

    def end(self, ended: Ended) -> list[Event]:
        self._ended[ended.choice] = ended
        return [_choice(ended.choice, {}, finish=ended.finish_reason)]

    def ping(self) -> bytes:
        """An empty piece of an answer that is still to come: some clients take no notice of comments."""
        still = [choice for choice in self._tokens if choice not in self._ended]
        return self.encode(_choice(still[0], {"content": ""})) if still else b": ping\n\n"

    def _in_whole(self, ended: Ended) -> dict[str, Any]:
        return {
            "index": ended.choice,
            "message": {**ended.message, "refusal": None},
            "logprobs": None if self._logprobs is None else self._all_logprobs(ended.choice),
            "finish_reason": ended.finish_reason,
        }

    def _all_logprobs(self, choice: int) -> dict[str, Any]:
        return {"content": self._tokens[choice], "refusal": None}


def _choice(
    index: int, delta: dict[str, Any], *, finish: str | None = None, logprobs: dict[str, Any] | None = None
) -> Event:
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}


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
