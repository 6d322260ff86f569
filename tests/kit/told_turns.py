"""A gateway whose turns are told beforehand: for what the surfaces make of events that the tiny model never gives."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import anthropic
import openai
from fastapi import FastAPI
from pydantic import SecretStr

from instar.answers import CallPart, Thought
from instar.chat_format import ChatFormat
from instar.config import Settings
from instar.errors import InstarError
from instar.flow.exchange import ChatRequest, Ended, Piece, Serving
from instar.flow.serve_turn import ServeTurn
from instar.gateway import errors
from instar.gateway.keys import KeyRing
from instar.gateway.messages.api import MessagesApi
from instar.gateway.responses.api import ResponsesApi
from instar.gateway.versions import VersionKeeper
from instar.gateway.waiting_room import WaitingRoom
from instar.ports import Store
from instar.records import Caller, Kind, Turn
from tests.kit.live_gateway import KEY, listening

Told = Piece | Ended | InstarError | asyncio.Event

READ_A = (
    Piece(0, (CallPart(0, id="call_a", name="read"),), [5], [-0.1]),
    Piece(0, (CallPart(0, arguments='{"path": '),), [6, 7], [-0.1, -0.2]),
    Piece(0, (CallPart(0, arguments='"a"}'),), [8], [-0.1]),
)
READ_B = (Piece(0, (CallPart(1, '{"path": "b"}', "call_b", "read"),), [9], [-0.1]),)
AT_ONCE = (
    Piece(
        0, (Thought("Let me look."), "I shall ", CallPart(0, id="call_a", name="read")), [1, 2], [-0.1, -0.1]
    ),
    Piece(0, (CallPart(0, arguments='{"path": '),), [3], [-0.1]),
    Piece(0, (CallPart(0, arguments='"a"}'), "look.", *READ_B[0].shown), [4, 5], [-0.1, -0.1]),
)
"""An engine may hand out several tokens at once: the end of a call, words behind it, and another call."""
THOUGHT = (Piece(0, (Thought("Let me "),), [3], [-0.1]), Piece(0, (Thought("look."),), [4], [-0.1]))
WORDS = (Piece(0, ("I shall ",), [10], [-0.1]), Piece(0, ("look.",), [11], [-0.1]))


def ended(finish_reason: str = "stop", **message: Any) -> Ended:
    return Ended(0, finish_reason, 9, {"role": "assistant", "content": None, **message})


@dataclass
class ToldTurns:
    """Stands in for ServeTurn. Yields `events`, raises those that are errors, waits for those that are signals."""

    events: Sequence[Told] = ()
    asked: list[ChatRequest] = field(default_factory=list)
    closed: int = 0

    async def serve(self, request: ChatRequest, caller: Caller) -> AsyncGenerator[Any, None]:
        self.asked.append(request)
        try:
            yield Serving(request, [told_turn(request, caller)], [1, 2, 3], "base")
            for event in self.events:
                if isinstance(event, InstarError):
                    raise event
                if isinstance(event, asyncio.Event):
                    await event.wait()
                else:
                    yield event
        finally:
            self.closed += 1


def told_turn(request: ChatRequest, caller: Caller, choice: int = 0) -> Turn:
    return Turn(
        id="turn_1",
        session_id="s",
        episode_id="turn_1",
        parent_id=None,
        key_id=caller.key_id,
        learner=caller.learner,
        kind=Kind.MAIN,
        version="base",
        pinned=False,
        messages=request.messages,
        request_hash="",
        choice=choice,
        created_at=1_800_000_000.0,
    )


@dataclass
class ToldGateway:
    turns: ToldTurns
    openai: openai.AsyncOpenAI
    anthropic: anthropic.AsyncAnthropic
    url: str

    def tell(self, *parts: Told | Sequence[Told]) -> None:
        """What the next turns consist of."""
        self.turns.events = [e for part in parts for e in (part if isinstance(part, tuple) else (part,))]


@asynccontextmanager
async def told_gateway(folder: Path, **settings: Any) -> AsyncIterator[ToldGateway]:
    """Both SDKs validate strictly what they get."""
    made = Settings(data_dir=folder, api_key=SecretStr(KEY), **settings)
    turns, keys, app = ToldTurns(), KeyRing.of(KEY), FastAPI()
    errors.install(app)
    app.state.waiting_room = WaitingRoom(100)
    serve_turn = cast(ServeTurn, turns)
    app.include_router(ResponsesApi(serve_turn, cast(Store, None), cast(ChatFormat, None), keys, made).router)
    app.include_router(MessagesApi(serve_turn, cast(VersionKeeper, None), keys, made).router)
    async with (
        listening(app) as (url, _),
        openai.AsyncOpenAI(
            base_url=f"{url}/v1", api_key=KEY, max_retries=0, _strict_response_validation=True
        ) as theirs,
        anthropic.AsyncAnthropic(
            base_url=url, api_key=KEY, max_retries=0, _strict_response_validation=True
        ) as others,
    ):
        yield ToldGateway(turns, theirs, others, url)
