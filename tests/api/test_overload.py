"""More requests than can be answered or wait: told so at once, unread and unrecorded, while steering still works."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from instar.config import EngineSettings
from instar.errors import EngineError
from tests.kit import malformed, wire
from tests.kit.live_gateway import KEY, Live, live_gateway
from tests.kit.malformed_tables import VALID

PLACES = 3
UNCOUNTED = {"/v1/feedback", "/v1/versions/rollback"}
"""Routes with a body that cost next to nothing."""


@pytest.fixture
async def live(tmp_path: Path) -> AsyncIterator[Live]:
    async with live_gateway(tmp_path, engine=EngineSettings(max_streams=1, max_waiting=PLACES - 1)) as live:
        live.engine.gate = asyncio.Event()
        yield live


async def fill(live: Live, **more: Any) -> list[asyncio.Task[httpx.Response]]:
    asking = [asyncio.create_task(live.ask(f"{number}", **more)) for number in range(PLACES)]
    while live.engine.sampling < PLACES:
        await asyncio.sleep(0.01)
    return asking


def taken(live: Live) -> int:
    count: int = live.app.state.waiting_room.taken
    return count


async def test_one_too_many_is_refused_on_every_route_that_takes_much(live: Live) -> None:
    asking = await fill(live)
    paths = set(malformed.routes_with_body(live.app.openapi())) - UNCOUNTED
    assert {"/v1/chat/completions", "/v1/messages/count_tokens"} <= paths
    for path in paths:
        answer = await live.http.post(path, json=VALID[path])
        assert answer.status_code == 429, path
        assert int(answer.headers["retry-after"]) >= 1
        assert answer.json()["error"]["message"]
    assert len(await live.turns()) == PLACES, "nothing was recorded of it"
    live.engine.gate.set()
    assert {answer.status_code for answer in await asyncio.gather(*asking)} == {200}
    assert taken(live) == 0
    assert (await live.ask("again")).status_code == 200


async def test_refusal_does_not_wait_for_the_body(live: Live) -> None:
    asking = await fill(live)
    announced = ("content-type: application/json", "content-length: 1000000")
    head = wire.head_of("POST", "/v1/chat/completions", KEY, *announced)
    answer = await wire.exchange(live.url, head)
    assert (answer.status, answer.json()["error"]["code"]) == (429, "overloaded")
    live.engine.gate.set()
    await asyncio.gather(*asking)


async def test_steering_works_while_all_places_are_taken(live: Live) -> None:
    live.publish("v1")
    asking = await fill(live)
    assert (await live.http.get("/health")).status_code == 200
    assert (await live.http.get("/v1/status")).status_code == 200
    assert (await live.http.post("/v1/versions/v1/activate")).status_code == 200
    assert (await live.http.post("/v1/versions/rollback")).status_code == 200
    turn = (await live.turns())[0]["id"]
    assert (await live.http.post("/v1/feedback", json={"turn": turn, "score": 1})).status_code == 200
    live.engine.gate.set()
    await asyncio.gather(*asking)


@pytest.mark.parametrize("stream", [False, True])
async def test_place_is_free_again_when_a_client_leaves(live: Live, stream: bool) -> None:
    for asking in await fill(live, stream=stream):
        asking.cancel()
    async with asyncio.timeout(wire.HANG_S):
        while taken(live):
            await asyncio.sleep(0.01)
    live.engine.gate = None
    assert (await live.ask("hi")).status_code == 200


async def test_place_is_free_again_after_an_error(live: Live) -> None:
    live.engine.refuse = EngineError("it broke")
    for _ in range(PLACES + 1):
        assert (await live.ask("hi")).status_code == 502
    assert (await live.http.post("/v1/chat/completions", content=b"{")).status_code == 400
    assert taken(live) == 0
