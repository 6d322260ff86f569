"""`POST /v1/completions`: a text is continued as it is, without the chat template.

The turn is recorded as one user message that carries the mark `RAW`, so that a hint is put before the raw text, too,
when it is learned from. Nothing that follows judges it but explicit feedback, since there is no history to tell.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Self

from fastapi import APIRouter, Request
from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator
from starlette.responses import Response

from instar.chat_format import ChatFormat
from instar.config import Settings
from instar.content import RAW
from instar.errors import RequestError
from instar.flow.exchange import ChatRequest, Ended, Piece, Serving
from instar.flow.serve_turn import ServeTurn
from instar.gateway.asking import as_sent, sampling_of
from instar.gateway.bodies import read
from instar.gateway.keys import KeyRing
from instar.gateway.openai_shape import ChoicesBuilder
from instar.gateway.openapi import add_answering, events_of
from instar.gateway.response_models import TextChunk, TextCompletion
from instar.gateway.schemas import CompletionFields
from instar.gateway.session_hints import speaker
from instar.gateway.turns import Event, answer

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
        return await answer(
            request,
            self.serve_turn.serve(self._to_request(body, request), speaker(caller, body.user)),
            lambda serving: CompletionBuilder(serving, self.settings.served_name, body, self.chat),
            stream=body.stream,
            ping_s=self.settings.ping_s,
        )

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
        )
        return as_sent(
            asked,
            request,
            self.settings,
            api="completions",
            model=body.model,
            fields=body.session_fields(),
            top_p=body.top_p,
        )

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


class CompletionBuilder(ChoicesBuilder):
    """Implements `turns.Builder`."""

    def __init__(self, serving: Serving, served_name: str, body: CompletionBody, chat: ChatFormat) -> None:
        super().__init__(serving, served_name, body, "text_completion", "text_completion")
        self._lists = {turn.choice: _TokenLists(chat, body.logprobs) for turn in serving.turns}
        self._texts = {turn.choice: "" for turn in serving.turns}

    def begin(self) -> list[Event]:
        return [_choice(0, "")]

    def add(self, piece: Piece) -> list[Event]:
        self._texts[piece.choice] += piece.text
        logprobs = self._lists[piece.choice].add(piece)
        return [_choice(piece.choice, piece.text, logprobs)] if piece.text or logprobs else []

    def end(self, ended: Ended) -> list[Event]:
        self._ended[ended.choice] = ended
        return [_choice(ended.choice, "", finish=_finish(ended))]

    def ping(self) -> bytes:
        return self.encode(_choice(0, ""))

    def _in_whole(self, ended: Ended) -> dict[str, Any]:
        at = ended.choice
        return _choice(at, self._texts[at], self._lists[at].all, _finish(ended))


def _finish(ended: Ended) -> str:
    return "length" if ended.finish_reason == "length" else "stop"


class _TokenLists:
    """Log-probs in the older shape: parallel lists. `wanted` alternatives a token; None: no log-probs at all.

    `all` holds those of the whole answer, None where there are none.
    """

    def __init__(self, chat: ChatFormat, wanted: int | None) -> None:
        self._chat = chat
        self._wanted = wanted
        self._text = chat.decoder()
        self._offset = 0
        self.all: dict[str, list[Any]] | None = None

    def add(self, piece: Piece) -> dict[str, list[Any]] | None:
        if self._wanted is None or not piece.ids:
            return None
        names = [self._chat.token_text(token_id) for token_id in piece.ids]
        others = piece.top or [[] for _ in piece.ids]
        top = [
            {**{self._chat.token_text(other): value for other, value in likeliest}, name: logprob}
            for name, logprob, likeliest in zip(names, piece.logprobs, others, strict=True)
        ]
        lists: dict[str, list[Any]] = {
            "tokens": names,
            "token_logprobs": list(piece.logprobs),
            "top_logprobs": top,
            "text_offset": [self._offset_of(token_id) for token_id in piece.ids],
        }
        known = self.all or {name: [] for name in lists}
        self.all = {name: known[name] + values for name, values in lists.items()}
        return lists

    def _offset_of(self, token_id: int) -> int:
        """Where the token's text begins; of a character that takes several, each says where the character does."""
        begins = self._offset
        self._offset += len(self._text.push([token_id]))
        return begins


def _choice(
    index: int, text: str, logprobs: dict[str, list[Any]] | None = None, finish: str | None = None
) -> Event:
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish}
