"""`POST /v1/messages` and `/v1/messages/count_tokens`: Anthropic's API over the turn pipeline.

Messages become chat messages one to one, so what a client sends back is known again as in chat completions.
Anthropic's `metadata.user_id` names no session: clients put what they like into it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field, replace

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from instar.config import Settings
from instar.errors import InstarError
from instar.flow.exchange import ChatRequest, Piece, Serving
from instar.flow.serve_turn import ServeTurn
from instar.gateway.asking import as_sent, sampling_of
from instar.gateway.bodies import read
from instar.gateway.keys import KeyRing
from instar.gateway.messages.body import CountBody, MessagesBody
from instar.gateway.messages.models import MessageEvent, MessageOut, TokenCount
from instar.gateway.messages.output import PING, MessageBuilder, failed
from instar.gateway.openapi import add_answering, add_post, events_of
from instar.gateway.response_models import AnthropicError
from instar.gateway.session_hints import speaker
from instar.gateway.sse import EventStream, named_event
from instar.gateway.turns import Begun, Events, begin, collect, turn_headers, unless_client_leaves
from instar.gateway.versions import VersionKeeper
from instar.gateway.waiting_room import CountedRoute


@dataclass(slots=True)
class MessagesApi:
    """Translates between Anthropic's shapes and the flow."""

    serve_turn: ServeTurn
    versions: VersionKeeper
    keys: KeyRing
    settings: Settings
    router: APIRouter = field(default_factory=APIRouter)

    def __post_init__(self) -> None:
        add_answering(
            self.router,
            "/v1/messages",
            self.create,
            "Answer a conversation in Anthropic's shape, streaming or not",
            body=MessagesBody,
            answer=MessageOut,
            events=events_of(MessageEvent, error=AnthropicError),
        )
        add_post(
            self.router,
            "/v1/messages/count_tokens",
            self.count,
            "How many tokens a conversation takes as a prompt",
            TokenCount,
            CountBody,
            responses={
                404: {"description": "There is no such model or version"},
                429: {"description": "Too many requests are being answered or wait already"},
            },
            route_class_override=CountedRoute,
        )

    async def create(self, request: Request) -> Response:
        caller = self.keys.caller(request)
        body = await read(request, MessagesBody, self.settings.max_body_bytes)
        who = speaker(caller, (body.metadata or {}).get("user_id"))
        events = self.serve_turn.serve(self._to_request(body, request), who)
        if body.stream:
            begun = await unless_client_leaves(request, begin(events))
            return self._stream(begun, body)
        return await unless_client_leaves(request, self._collect(events, body))

    async def count(self, request: Request) -> Response:
        caller = self.keys.caller(request)
        body = await read(request, CountBody, self.settings.max_body_bytes)
        asked = self._to_chat(body, request)
        await self.versions.check(asked.version)
        who = speaker(caller, (body.metadata or {}).get("user_id"))
        tokens = await self.serve_turn.count_tokens(asked, who)
        return JSONResponse({"input_tokens": tokens})

    def _to_chat(self, body: CountBody, request: Request) -> ChatRequest:
        """The part of a request that makes its prompt."""
        asked = ChatRequest(
            messages=body.chat_messages(),
            sampling=sampling_of(self.settings, max_tokens=None, temperature=None, top_p=None),
            tools=body.chat_tools(),
            tool_choice=body.chat_tool_choice(),
            parallel_tool_calls=body.parallel_tool_calls(),
            response_schema=body.response_schema(),
        )
        return as_sent(asked, request, self.settings, model=body.model, fields={"metadata": body.metadata})

    def _to_request(self, body: MessagesBody, request: Request) -> ChatRequest:
        sampling = sampling_of(
            self.settings,
            max_tokens=body.max_tokens,
            temperature=body.temperature,
            top_p=body.top_p,
            stop=body.stop_sequences or (),
        )
        params = {"api": "messages", "temperature": sampling.temperature, "top_p": body.top_p}
        return replace(self._to_chat(body, request), sampling=sampling, params=params)

    def _stream(self, begun: Begun, body: MessagesBody) -> Response:
        builder = self._builder(begun.serving, body)
        return EventStream(
            _events(begun, builder),
            turn_headers(begun.serving),
            lambda: named_event(PING),
            self.settings.ping_s,
        )

    async def _collect(self, events: Events, body: MessagesBody) -> Response:
        found = await collect(events)
        builder = self._builder(found.serving, body)
        for piece in found.pieces[0]:
            builder.add(piece)
        builder.end(found.ended[0])
        return JSONResponse(builder.message(), headers=turn_headers(found.serving))

    def _builder(self, serving: Serving, body: MessagesBody) -> MessageBuilder:
        return MessageBuilder(serving, self.settings.served_name, shows_thinking=body.shows_thinking)


async def _events(begun: Begun, builder: MessageBuilder) -> AsyncGenerator[bytes, None]:
    async with aclosing(begun):
        for opening in builder.begin():
            yield named_event(opening)
        try:
            async for event in begun:
                for told in builder.add(event) if isinstance(event, Piece) else builder.end(event):
                    yield named_event(told)
        except InstarError as error:
            yield named_event(failed(error))
