"""`POST /v1/messages` and `/v1/messages/count_tokens`: Anthropic's API over the turn pipeline.

Messages become chat messages one to one, so what a client sends back is known again as in chat completions.
Anthropic's `metadata.user_id` names no session: clients put what they like into it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from instar.config import Settings
from instar.flow.exchange import ChatRequest
from instar.flow.serve_turn import ServeTurn
from instar.gateway.asking import as_sent, sampling_of
from instar.gateway.bodies import read
from instar.gateway.keys import KeyRing
from instar.gateway.messages.body import CountBody, MessagesBody
from instar.gateway.messages.models import MessageEvent, MessageOut, TokenCount
from instar.gateway.messages.output import MessageBuilder
from instar.gateway.openapi import add_answering, add_post, events_of
from instar.gateway.response_models import AnthropicError
from instar.gateway.session_hints import speaker
from instar.gateway.turns import answer
from instar.gateway.versions import VersionKeeper
from instar.gateway.waiting_room import CountedRoute
from instar.records import Caller, Sampling


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
        asked = self._to_request(body, request, self._sampling(body), body.top_p)
        return await answer(
            request,
            self.serve_turn.serve(asked, _speaker(caller, body)),
            lambda serving: MessageBuilder(
                serving, self.settings.served_name, shows_thinking=body.shows_thinking
            ),
            stream=body.stream,
            ping_s=self.settings.ping_s,
        )

    async def count(self, request: Request) -> Response:
        caller = self.keys.caller(request)
        body = await read(request, CountBody, self.settings.max_body_bytes)
        sampling = sampling_of(self.settings, max_tokens=None, temperature=None, top_p=None)
        asked = self._to_request(body, request, sampling, None)
        await self.versions.check(asked.version)
        tokens = await self.serve_turn.count_tokens(asked, _speaker(caller, body))
        return JSONResponse({"input_tokens": tokens})

    def _to_request(
        self, body: CountBody, request: Request, sampling: Sampling, top_p: float | None
    ) -> ChatRequest:
        asked = ChatRequest(
            messages=body.chat_messages(),
            sampling=sampling,
            tools=body.chat_tools(),
            tool_choice=body.chat_tool_choice(),
            parallel_tool_calls=body.parallel_tool_calls(),
            response_schema=body.response_schema(),
        )
        fields = {"metadata": body.metadata}
        return as_sent(
            asked, request, self.settings, api="messages", model=body.model, fields=fields, top_p=top_p
        )

    def _sampling(self, body: MessagesBody) -> Sampling:
        return sampling_of(
            self.settings,
            max_tokens=body.max_tokens,
            temperature=body.temperature,
            top_p=body.top_p,
            stop=body.stop_sequences or (),
        )


def _speaker(caller: Caller, body: CountBody) -> Caller:
    return speaker(caller, (body.metadata or {}).get("user_id"))
