"""While a long prompt is read, streams say something, so that no client gives up; and errors keep their status."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest

from instar.chat_format import ChatFormat
from instar.errors import EngineUnavailable
from instar.flow.exchange import ChatRequest, Ended, Serving
from instar.gateway.chat import ChatBuilder
from instar.gateway.schemas import ChatBody
from instar.records import Caller, Sampling
from tests.kit.live_gateway import Live, live_gateway
from tests.kit.told_turns import told_turn

CHAT = {"messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture
async def live(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Live]:
    """Reading a prompt takes until the test says so."""
    monkeypatch.setattr("instar.gateway.turns.PATIENCE_S", 0.01)
    async with live_gateway(tmp_path, lambda version, prompt: "Yes.", ping_s=0.02) as live:
        live.engine.prefill = asyncio.Event()
        yield live


async def events_until_answered(live: Live, path: str, body: dict[str, Any], pings: int) -> list[Any]:
    """All data events; the engine begins to answer when `pings` more came than the opening."""
    found: list[Any] = []
    assert live.engine.prefill is not None
    async with live.http.stream("POST", path, json={"model": "instar", "stream": True, **body}) as response:
        assert response.status_code == 200
        async for line in response.aiter_lines():
            if line.startswith("data: "):
                found.append(line.removeprefix("data: "))
            if len(found) > pings:
                live.engine.prefill.set()
    return [event if event == "[DONE]" else json.loads(event) for event in found]


async def test_chat_sends_empty_pieces(live: Live) -> None:
    events = await events_until_answered(live, "/v1/chat/completions", CHAT, 3)
    deltas = [event["choices"][0]["delta"] for event in events[:-1]]
    assert deltas[:4] == [{"role": "assistant", "content": ""}, *[{"content": ""}] * 3]
    assert "".join(delta.get("content", "") for delta in deltas) == "Yes."
    assert events[-1] == "[DONE]"


async def test_completions_send_empty_text(live: Live) -> None:
    events = await events_until_answered(live, "/v1/completions", {"prompt": "hi"}, 3)
    texts = [event["choices"][0]["text"] for event in events[:-1]]
    assert texts[:4] == [""] * 4
    assert "".join(texts) == "Yes."


async def test_pings_go_on_between_pieces_and_only_to_answers_that_are_open(live: Live) -> None:
    live.engine.prefill = None
    live.engine.gate = gate = asyncio.Event()
    seen: list[Any] = []
    body = {"model": "instar", "stream": True, "n": 2, **CHAT}
    async with live.http.stream("POST", "/v1/chat/completions", json=body) as response:
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                seen.append(json.loads(line.removeprefix("data: "))["choices"][0])
            if sum(choice["delta"] == {"content": ""} for choice in seen) == 2:
                gate.set()
    for index in (0, 1):
        mine = [choice for choice in seen if choice["index"] == index]
        assert "".join(choice["delta"].get("content", "") for choice in mine) == "Yes."
        assert [choice["finish_reason"] for choice in mine[:-1]] == [None] * (len(mine) - 1)
        assert mine[-1]["finish_reason"] == "stop"


def test_ping_belongs_to_a_choice_that_is_still_open() -> None:
    request = ChatRequest([{"role": "user", "content": "hi"}], Sampling(max_tokens=9), n=2)
    turns = [told_turn(request, Caller("key", "learner"), choice) for choice in (0, 1)]
    body = ChatBody.model_validate(CHAT)
    builder = ChatBuilder(Serving(request, turns, [1], "base"), "instar", body, cast(ChatFormat, None))
    assert json.loads(builder.ping()[6:])["choices"][0]["index"] == 0
    builder.end(Ended(0, "stop", 1, {}))
    assert json.loads(builder.ping()[6:])["choices"][0]["index"] == 1
    builder.end(Ended(1, "stop", 1, {}))
    assert builder.ping() == b": ping\n\n"


async def test_client_that_leaves_while_the_prompt_is_read_cancels_the_turn(live: Live) -> None:
    body = {"model": "instar", "stream": True, **CHAT}
    async with live.http.stream("POST", "/v1/chat/completions", json=body) as response:
        turn_id = response.headers["x-instar-turn"]
        assert live.engine.sampling == 1
    for _ in range(200):
        turn = live.store.turn(turn_id)
        assert turn is not None
        if turn.status == "cancelled" and live.engine.sampling == 0:
            return
        await asyncio.sleep(0.02)
    pytest.fail("the turn went on without its client")


async def test_error_that_comes_late_is_an_event_and_one_that_comes_at_once_a_status(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    live.engine.fail_after = 0
    events = await events_until_answered(live, "/v1/chat/completions", CHAT, 1)
    assert events[-1]["error"]["code"] == "engine_unavailable"
    monkeypatch.setattr("instar.gateway.turns.PATIENCE_S", 60.0)
    live.engine.refuse = EngineUnavailable("nobody listens")
    answer = await live.http.post("/v1/chat/completions", json={"model": "instar", "stream": True, **CHAT})
    assert answer.status_code == 503
