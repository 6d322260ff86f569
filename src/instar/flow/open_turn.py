"""From a request to open turns that only have to be sampled: its place, its prompt, its grammar."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from instar.chat_format import ChatFormat
from instar.errors import RequestError
from instar.flow.constraint import constraint
from instar.flow.exchange import ChatRequest, Serving
from instar.flow.next_states import SESSION_DONE
from instar.flow.sessions import Place, place
from instar.ports import Store
from instar.records import Caller, Turn
from instar.runtime import Clock, new_id

OPTED_OUT = "opted_out"


class TurnOpener:
    """Every method blocks: it grows with the prompt or waits for the disk. So call it in a thread."""

    def __init__(self, store: Store, chat: ChatFormat, clock: Clock) -> None:
        self._store = store
        self._chat = chat
        self._clock = clock

    def open(self, request: ChatRequest, caller: Caller, version: str, context_length: int) -> Serving:
        """Record that answering begins, one turn for each choice. Raises RequestError, and nothing is recorded."""
        now = self._clock.now()
        turn_ids = [new_id("turn") for _ in range(request.n)]
        where = self._place(request, caller, turn_ids[0], now)
        prompt_ids = self._encode(request, where)
        most = min(request.sampling.max_tokens, _room(len(prompt_ids), context_length))
        sampling = replace(request.sampling, max_tokens=most, grammar=self._grammar(request, prompt_ids))
        asked = replace(request, sampling=sampling)
        turns = [
            _new_turn(turn_id, choice, asked, caller, version, where, now)
            for choice, turn_id in enumerate(turn_ids)
        ]
        self._store.open_turns(turns, where.says if request.learn else [])
        return Serving(asked, turns, prompt_ids, version)

    def prompt_ids(self, request: ChatRequest, caller: Caller) -> list[int]:
        """What it would be answered from. Nothing is recorded. Raises RequestError."""
        return self._encode(request, self._place(request, caller, new_id("turn"), self._clock.now()))

    def _place(self, request: ChatRequest, caller: Caller, turn_id: str, now: float) -> Place:
        return place(
            self._store,
            caller,
            request.messages,
            turn_id=turn_id,
            now=now,
            explicit_session=request.session_id,
            side=request.side,
            tools=request.offered or [],
            hints=request.hints,
        )

    def _encode(self, request: ChatRequest, where: Place) -> list[int]:
        if request.prompt_ids is not None:
            return request.prompt_ids
        messages = list(request.messages)
        served: dict[int, list[int]] = {}
        for i, turn in where.served.items():
            answer = turn.answer or {}
            if self._chat.covers(turn.response_ids, answer.get("content")):
                served[i] = turn.response_ids
            # clients may leave out what was thought; whether it comes back is the template's to say
            if answer.get("reasoning_content") and not messages[i].get("reasoning_content"):
                messages[i] = {**messages[i], "reasoning_content": answer["reasoning_content"]}
        return self._chat.encode_prompt(messages, served=served, tools=request.offered)

    def _grammar(self, request: ChatRequest, prompt_ids: list[int]) -> dict[str, Any] | None:
        return constraint(
            self._chat,
            prompt_ids,
            tools=request.offered,
            choice=request.tool_choice,
            many=request.parallel_tool_calls,
            schema=request.response_schema,
        )


def _room(prompt_tokens: int, context_length: int) -> int:
    """Tokens that are left for the answer. Raises RequestError where there are none."""
    if prompt_tokens >= context_length:
        raise RequestError(
            f"The messages take {prompt_tokens} tokens; this model's context is {context_length}, and the answer "
            "needs room too. Shorten the conversation.",
            code="context_length_exceeded",
            param="messages",
        )
    return context_length - prompt_tokens


def _new_turn(
    turn_id: str,
    choice: int,
    request: ChatRequest,
    caller: Caller,
    version: str,
    where: Place,
    now: float,
) -> Turn:
    reason = where.what.reason or (where.reason if request.learn else OPTED_OUT)
    done = {SESSION_DONE: True} if request.hints.done else {}
    return Turn(
        id=turn_id,
        session_id=where.session_id,
        episode_id=where.episode_id or turn_id,
        parent_id=where.parent.id if where.parent else None,
        key_id=caller.key_id,
        learner=caller.learner,
        kind=where.kind,
        version=version,
        pinned=request.version is not None,
        messages=request.messages,
        tools=request.offered or [],
        request_hash=where.request_hash,
        created_at=now,
        learn=reason is None,
        reason=reason,
        choice=choice,
        params={**request.params, "max_tokens": request.sampling.max_tokens, **where.notes, **done},
    )
