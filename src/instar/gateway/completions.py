"""`POST /v1/completions`: a text is continued as it is, without the chat template.

The turn is recorded as one user message that carries the mark `RAW`, so that a hint is put before the raw text, too,
when it is learned from. Nothing that follows judges it but explicit feedback, since there is no history to tell.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Annotated, Any, Self

from fastapi import APIRouter, Request
from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator
from starlette.responses import JSONResponse, Response

from instar.chat_format import ChatFormat
from instar.config import Settings
from instar.content import RAW
from instar.errors import InstarError, RequestError
from instar.flow.exchange import ChatRequest, Ended, Piece
from instar.flow.serve_turn import ServeTurn
from instar.gateway.asking import as_sent, sampling_of
from instar.gateway.bodies import read
from instar.gateway.errors import describe
from instar.gateway.keys import KeyRing
from instar.gateway.openai_shape import head, usage
from instar.gateway.openapi import add_answering, events_of
from instar.gateway.response_models import TextChunk, TextCompletion
from instar.gateway.schemas import CompletionFields
from instar.gateway.session_hints import speaker
from instar.gateway.sse import DONE, EventStream, data_event
from instar.gateway.turns import Begun, Events, begin, collect, turn_headers, unless_client_leaves

PROMPT_SCHEMA = {
    "description": "a text or token ids; a list may hold one of them",
    "anyOf": [
        {"type": "string"},
        {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1},
        {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 1},
        {
            "type": "array",
            "items": {"type": "array", "items": {"type": "integer", "minimum": 0}},
            "maxItems": 1,
        },
    ],
}


def _one_prompt(given: Any) -> str | list[int]:
    if isinstance(given, list) and len(given) == 1 and not isinstance(given[0], int):
        given = given[0]
    if isinstance(given, str) or (given and _are_ids(given)):
        return given
    raise ValueError("send one prompt a request: a text, or a list of token ids")


def _are_ids(given: Any) -> bool:
    return isinstance(given, list) and all(type(i) is int and i >= 0 for i in given)


class CompletionBody(CompletionFields):
    """`POST /v1/completions`."""

    prompt: Annotated[Any, BeforeValidator(_one_prompt), WithJsonSchema(PROMPT_SCHEMA)]
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    echo: bool | None = False
    suffix: str | None = None
    best_of: int | None = None

    @model_validator(mode="after")
    def _only_continues(self) -> Self:
        """Refuse what would silently not be done."""
        if self.echo:
            raise ValueError("echo is not supported; put the prompt before the answer yourself")
        if self.suffix:
            raise ValueError("suffix is not supported: text is continued, not filled in")
        if self.best_of is not None and self.best_of != (self.n or 1):
            raise ValueError("best_of is not supported; ask for n answers and choose among them")
        return self


@dataclass(slots=True)
class CompletionsApi:
    """Translates between OpenAI's older shapes and the flow."""

    serve_turn: ServeTurn
    keys: KeyRing
    settings: Settings
    chat: ChatFormat
    router: APIRouter = field(default_factory=APIRouter)

    def __post_init__(self) -> None:
        add_answering(
            self.router,
            "/v1/completions",
            self.complete,
            "Continue a text, streaming or not",
            body=CompletionBody,
            answer=TextCompletion,
            events=events_of(TextChunk, "[DONE]"),
        )

    async def complete(self, request: Request) -> Response:
        caller = self.keys.caller(request)
        body = await read(request, CompletionBody, self.settings.max_body_bytes)
        events = self.serve_turn.serve(self._to_request(body, request), speaker(caller, body.user))
        if body.stream:
            return await self._stream(request, events, body)
        return await unless_client_leaves(request, self._collect(events, body))

    def _to_request(self, body: CompletionBody, request: Request) -> ChatRequest:
        text, ids = self._prompt(body.prompt)
        sampling = sampling_of(
            self.settings,
            max_tokens=body.max_tokens,
            temperature=body.temperature,
            top_p=body.top_p,
            seed=body.seed,
            stop=body.stops(),
            top_logprobs=body.logprobs or 0,
        )
        asked = ChatRequest(
            messages=[{"role": "user", "content": text, RAW: True}],
            prompt_ids=ids,
            sampling=sampling,
            n=body.n or 1,
            params={
                "api": "completions",
                "temperature": sampling.temperature,
                "top_p": body.top_p,
                "seed": body.seed,
            },
        )
        return as_sent(asked, request, self.settings, model=body.model, fields=body.session_fields())

    def _prompt(self, prompt: str | list[int]) -> tuple[str, list[int] | None]:
        """The prompt in words, and its ids where the client gave them. Raises RequestError."""
        if isinstance(prompt, str):
            if not prompt:
                raise RequestError("The prompt is empty.", param="prompt", code="invalid_value")
            return prompt, None
        most = self.serve_turn.context_length()
        if len(prompt) > most:
            raise RequestError(
                f"prompt: {len(prompt)} tokens are more than this model's context, {most}.",
                param="prompt",
                code="context_length_exceeded",
            )
        if max(prompt) >= self.chat.vocab_size:
            raise RequestError(
                f"prompt: token ids of this model are below {self.chat.vocab_size}.",
                param="prompt",
                code="invalid_value",
            )
        return self.chat.written_out(prompt), prompt

    async def _stream(self, request: Request, events: Events, body: CompletionBody) -> Response:
        begun = await unless_client_leaves(request, begin(events))
        with_usage = bool(body.stream_options and body.stream_options.include_usage)
        shape = head(begun.serving, self.settings.served_name, "text_completion")
        silence = _chunk(shape, [_choice(0, "")], with_usage)
        chunks = self._chunks(begun, body, shape, with_usage)
        return EventStream(chunks, turn_headers(begun.serving), lambda: silence, self.settings.ping_s)

    async def _chunks(
        self, begun: Begun, body: CompletionBody, shape: dict[str, Any], with_usage: bool
    ) -> AsyncGenerator[bytes, None]:
        lists = {turn.choice: _TokenLists(self.chat, body.logprobs) for turn in begun.serving.turns}
        tokens = 0
        async with aclosing(begun):
            yield _chunk(shape, [_choice(0, "")], with_usage)
            try:
                async for event in begun:
                    if isinstance(event, Piece):
                        logprobs = lists[event.choice].add(event)
                        if event.text or logprobs:
                            yield _chunk(shape, [_choice(event.choice, event.text, logprobs)], with_usage)
                    else:
                        tokens += event.response_tokens
                        yield _chunk(shape, [_choice(event.choice, "", finish=_finish(event))], with_usage)
            except InstarError as error:
                yield data_event(describe(error)[1])
                return
        if with_usage:
            yield data_event({**shape, "choices": [], "usage": usage(begun.serving, tokens)})
        yield DONE

    async def _collect(self, events: Events, body: CompletionBody) -> Response:
        found = await collect(events)
        choices = []
        for index in sorted(found.ended):
            pieces = found.pieces[index]
            tokens = _TokenLists(self.chat, body.logprobs)
            logprobs = _joined([part for piece in pieces if (part := tokens.add(piece))])
            text = "".join(piece.text for piece in pieces)
            choices.append(_choice(index, text, logprobs, _finish(found.ended[index])))
        answer = {
            **head(found.serving, self.settings.served_name, "text_completion"),
            "choices": choices,
            "usage": usage(found.serving, found.response_tokens),
        }
        return JSONResponse(answer, headers=turn_headers(found.serving))


def _finish(ended: Ended) -> str:
    return "length" if ended.finish_reason == "length" else "stop"


class _TokenLists:
    """Log-probs in the older shape: parallel lists. `wanted` alternatives a token; None: no log-probs at all."""

    def __init__(self, chat: ChatFormat, wanted: int | None) -> None:
        self._chat = chat
        self._wanted = wanted
        self._offset = 0

    def add(self, piece: Piece) -> dict[str, list[Any]] | None:
        if self._wanted is None or not piece.ids:
            return None
        names = [self._chat.token_text(token_id) for token_id in piece.ids]
        offsets = []
        for name in names:
            offsets.append(self._offset)
            self._offset += len(name)
        others = piece.top or [[] for _ in piece.ids]
        top = [
            {**{self._chat.token_text(other): value for other, value in likeliest}, name: logprob}
            for name, logprob, likeliest in zip(names, piece.logprobs, others, strict=True)
        ]
        return {
            "tokens": names,
            "token_logprobs": piece.logprobs,
            "top_logprobs": top,
            "text_offset": offsets,
        }


def _joined(parts: list[dict[str, list[Any]]]) -> dict[str, list[Any]] | None:
    if not parts:
        return None
    return {name: [value for part in parts for value in part[name]] for name in parts[0]}


def _choice(
    index: int, text: str, logprobs: dict[str, list[Any]] | None = None, finish: str | None = None
) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish}


def _chunk(shape: dict[str, Any], choices: list[dict[str, Any]], with_usage: bool) -> bytes:
    return data_event({**shape, "choices": choices, **({"usage": None} if with_usage else {})})
