"""`POST /v1/responses`: OpenAI's Responses API over the turn pipeline; and `GET /v1/responses/{id}`, from the store."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Annotated

from fastapi import APIRouter, Path, Request
from starlette.responses import JSONResponse, Response

from instar.chat_format import ChatFormat
from instar.config import Settings
from instar.errors import RequestError
from instar.flow.answer import reasoning_tokens
from instar.flow.exchange import ChatRequest
from instar.flow.serve_turn import ServeTurn
from instar.gateway.asking import as_sent, sampling_of
from instar.gateway.bodies import read
from instar.gateway.keys import KeyRing
from instar.gateway.logprobs import TokenLogprobs
from instar.gateway.openapi import add_answering, add_get, events_of
from instar.gateway.responses.body import ResponsesBody
from instar.gateway.responses.echo import INSTRUCTED, kept_of
from instar.gateway.responses.models import ResponseEvent, ResponseObject
from instar.gateway.responses.output import ResponseBuilder, stored
from instar.gateway.session_hints import speaker
from instar.gateway.turns import answer
from instar.ports import Store
from instar.records import Caller, Message, Turn, TurnStatus

_RETRIEVE_PARAMETERS = [
    {
        "name": "user",
        "in": "query",
        "description": "whose response it is, under the key of the role `proxy`",
        "schema": {"type": "string"},
    }
]


@dataclass(slots=True)
class ResponsesApi:
    """Translates between the Responses API's shapes and the flow."""

    serve_turn: ServeTurn
    store: Store
    chat: ChatFormat
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
        one = "/v1/responses/{id}"
        add_get(
            self.router,
            one,
            self.retrieve,
            "A response that was given before",
            ResponseObject,
            openapi_extra={"parameters": _RETRIEVE_PARAMETERS},
        )
        self.router.add_api_route(one, self.refuse_deletion, methods=["DELETE"], include_in_schema=False)

    async def respond(self, request: Request) -> Response:
        caller = self.keys.caller(request)
        body = await read(request, ResponsesBody, self.settings.max_body_bytes)
        who = speaker(caller, body.user)
        before = await self._previous(body, who)
        logprobs = TokenLogprobs(self.chat) if body.wants_logprobs else None
        return await answer(
            request,
            self.serve_turn.serve(self._to_request(body, request, before), who),
            lambda serving: ResponseBuilder.of(serving, body, self.settings.served_name, logprobs),
            stream=body.stream,
            ping_s=self.settings.ping_s,
        )

    async def retrieve(self, request: Request, response_id: Annotated[str, Path(alias="id")]) -> Response:
        caller = self.keys.caller(request)
        asked = request.query_params
        if asked.get("stream", "false") != "false" or asked.getlist("include") or asked.getlist("include[]"):
            raise RequestError("stream and include are not supported here; both are for POST /v1/responses.")
        turn = await self._turn_of(response_id, speaker(caller, asked.get("user")))
        if turn is None:
            raise RequestError(f"There is no response {response_id[:80]!r}.", status=404, code="not_found")
        return JSONResponse(await asyncio.to_thread(self._stored, turn))

    def _stored(self, turn: Turn) -> dict[str, object]:
        """Runs in a thread: thinking is counted by reading the tokens again."""
        return stored(turn, self.settings.served_name, reasoning_tokens(self.chat, turn))

    async def refuse_deletion(
        self, request: Request, response_id: Annotated[str, Path(alias="id")]
    ) -> Response:
        self.keys.caller(request)
        raise RequestError(
            f"{response_id[:80]!r} cannot be deleted: a response is a recorded turn, which stays on your own machine. "
            "The header X-Instar-Learn: off keeps one out of learning.",
            status=405,
            code="not_supported",
        )

    async def _turn_of(self, response_id: str, who: Caller) -> Turn | None:
        turn = await asyncio.to_thread(self.store.turn, response_id)
        is_theirs = turn is not None and (turn.key_id, turn.learner) == (who.key_id, who.learner)
        return turn if is_theirs else None

    async def _previous(self, body: ResponsesBody, who: Caller) -> Turn | None:
        """The turn that this request continues. Raises RequestError 404."""
        wanted = body.previous_response_id
        if wanted is None:
            return None
        turn = await self._turn_of(wanted, who)
        if turn is None or turn.status is not TurnStatus.DONE:
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
            top_logprobs=body.top_logprobs or 0,
        )
        asked = ChatRequest(
            messages=_messages(body, before),
            sampling=sampling,
            session_id=before.session_id if before else None,
            tools=body.chat_tools(),
            tool_choice=body.chat_tool_choice(),
            parallel_tool_calls=body.parallel_tool_calls is not False,
            response_schema=body.response_schema(),
            params=kept_of(body),
        )
        fields = {"prompt_cache_key": body.prompt_cache_key, "metadata": body.metadata}
        return as_sent(
            asked,
            request,
            self.settings,
            api="responses",
            model=body.model,
            fields=fields,
            top_p=body.top_p,
        )


def _messages(body: ResponsesBody, before: Turn | None) -> list[Message]:
    """The conversation: this request's instructions, what was said until then, and what is new."""
    history: list[Message] = []
    if before is not None:
        history = before.messages[1:] if before.params.get(INSTRUCTED) else list(before.messages)
        history.append(before.answer or {"role": "assistant", "content": ""})
    instructions = [] if body.instructions is None else [{"role": "system", "content": body.instructions}]
    return [*instructions, *history, *body.new_messages()]
