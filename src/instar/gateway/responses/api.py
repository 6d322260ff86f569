"""`POST /v1/responses`: OpenAI's Responses API over the turn pipeline."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from instar.config import Settings
from instar.errors import InstarError, RequestError
from instar.flow.exchange import ChatRequest, Piece
from instar.flow.serve_turn import ServeTurn
from instar.gateway.asking import as_sent, sampling_of
from instar.gateway.bodies import read
from instar.gateway.keys import KeyRing
from instar.gateway.openapi import add_answering, events_of
from instar.gateway.responses.body import ResponsesBody
from instar.gateway.responses.models import ResponseEvent, ResponseObject
from instar.gateway.responses.output import ResponseBuilder
from instar.gateway.session_hints import speaker
from instar.gateway.sse import EventStream, named_event
from instar.gateway.turns import Begun, Events, begin, collect, turn_headers, unless_client_leaves
from instar.ports import Store
from instar.records import Caller, Message, Turn, TurnStatus

INSTRUCTED = "instructions"
"""Key of a turn's params: its first message are instructions, which hold for that turn only."""


@dataclass(slots=True)
class ResponsesApi:
    """Translates between the Responses API's shapes and the flow."""

    serve_turn: ServeTurn
    store: Store
    keys: KeyRing
    settings: Settings
    router: APIRouter = field(default_factory=APIRouter)

    def __post_init__(self) -> None:
        add_answering(
            self.router,
            "/v1/responses",
            self.respond,
            "Answer a conversation of items, streaming or not",
            body=ResponsesBody,
            answer=ResponseObject,
            events=events_of(ResponseEvent),
        )

    async def respond(self, request: Request) -> Response:
        caller = self.keys.caller(request)
        body = await read(request, ResponsesBody, self.settings.max_body_bytes)
        who = speaker(caller, body.user)
        before = await self._previous(body, who)
        events = self.serve_turn.serve(self._to_request(body, request, before), who)
        if body.stream:
            begun = await unless_client_leaves(request, begin(events))
            return self._stream(begun, body)
        return await unless_client_leaves(request, self._collect(events, body))

    async def _previous(self, body: ResponsesBody, caller: Caller) -> Turn | None:
        """The turn that this request continues. Raises RequestError 404."""
        wanted = body.previous_response_id
        if wanted is None:
            return None
        turn = await asyncio.to_thread(self.store.turn, wanted)
        ours = turn is not None and (turn.key_id, turn.learner) == (caller.key_id, caller.learner)
        if turn is None or not ours or turn.status is not TurnStatus.DONE:
            raise RequestError(
                f"There is no finished response {wanted!r} to continue. "
                "Use the `id` of an earlier response, or send the history as `input`.",
                status=404,
                code="previous_response_not_found",
                param="previous_response_id",
            )
        return turn

    def _to_request(self, body: ResponsesBody, request: Request, before: Turn | None) -> ChatRequest:
        sampling = sampling_of(
            self.settings,
            max_tokens=body.max_output_tokens,
            temperature=body.temperature,
            top_p=body.top_p,
        )
        asked = ChatRequest(
            messages=_messages(body, before),
            sampling=sampling,
            session_id=before.session_id if before else None,
            tools=body.chat_tools(),
            tool_choice=body.chat_tool_choice(),
            parallel_tool_calls=body.parallel_tool_calls is not False,
            response_schema=body.response_schema(),
            params={
                "api": "responses",
                "temperature": sampling.temperature,
                "top_p": body.top_p,
                INSTRUCTED: body.instructions is not None,
            },
        )
        fields = {"prompt_cache_key": body.prompt_cache_key, "metadata": body.metadata}
        return as_sent(asked, request, self.settings, model=body.model, fields=fields)

    def _stream(self, begun: Begun, body: ResponsesBody) -> Response:
        builder = ResponseBuilder(begun.serving, body, self.settings.served_name)
        return EventStream(
            _events(begun, builder),
            turn_headers(begun.serving),
            lambda: named_event(builder.still()),
            self.settings.ping_s,
        )

    async def _collect(self, events: Events, body: ResponsesBody) -> Response:
        found = await collect(events)
        builder = ResponseBuilder(found.serving, body, self.settings.served_name)
        for piece in found.pieces[0]:
            builder.add(piece)
        builder.end(found.ended[0])
        return JSONResponse(builder.response(), headers=turn_headers(found.serving))


async def _events(begun: Begun, builder: ResponseBuilder) -> AsyncGenerator[bytes, None]:
    async with aclosing(begun):
        for opening in builder.begin():
            yield named_event(opening)
        try:
            async for event in begun:
                for told in builder.add(event) if isinstance(event, Piece) else builder.end(event):
                    yield named_event(told)
        except InstarError as error:
            yield named_event(builder.fail(error))


def _messages(body: ResponsesBody, before: Turn | None) -> list[Message]:
    """The conversation: this request's instructions, what was said until then, and what is new."""
    history: list[Message] = []
    if before is not None:
        history = before.messages[1:] if before.params.get(INSTRUCTED) else list(before.messages)
        history.append(before.answer or {"role": "assistant", "content": ""})
    instructions = [] if body.instructions is None else [{"role": "system", "content": body.instructions}]
    return [*instructions, *history, *body.new_messages()]
