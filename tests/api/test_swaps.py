"""A new version is served beside the old one: nobody waits, fails, or sees two policies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from instar.config import EngineSettings
from instar.errors import EngineError
from instar.gateway.prewarm import PRIORITY
from tests.kit.live_gateway import Live, live_gateway


@pytest.fixture
async def live(tmp_path: Path) -> AsyncIterator[Live]:
    async with live_gateway(tmp_path, lambda version, prompt: f"{version} " * 10) as live:
        yield live


async def until_served(live: Live, version: str) -> None:
    for _ in range(400):
        status = (await live.http.get("/v1/status")).json()
        if status["served_version"] == version:
            return
        await asyncio.sleep(0.02)
    pytest.fail(f"{version} was never served")


async def test_request_in_flight_ends_under_the_version_it_began_with(live: Live) -> None:
    live.publish("v1")
    live.engine.gate = asyncio.Event()
    slow = asyncio.create_task(live.ask("hi"))
    while not live.engine.sampling:
        await asyncio.sleep(0.01)
    gate, live.engine.gate = live.engine.gate, None
    live.store.activate("v1", "test")
    await until_served(live, "v1")
    new = await live.ask("hi")
    assert new.headers["x-instar-version"] == "v1"
    gate.set()
    old = await slow
    assert old.headers["x-instar-version"] == "base"
    assert old.json()["choices"][0]["message"]["content"] == "base " * 10
    turns = {t["id"]: t["version"] for t in await live.turns()}
    assert turns[old.json()["id"]] == "base"
    assert turns[new.json()["id"]] == "v1"


async def test_many_swaps_under_load_fail_nothing_and_keep_memory_bounded(live: Live) -> None:
    live.engine.pause_s = 0.002
    for number in range(1, 8):
        live.publish(f"v{number}")
    answers = []

    async def talk() -> None:
        for i in range(25):
            answers.append(await live.ask(f"question {i}"))

    async def swap() -> None:
        for number in range(1, 8):
            assert (await live.http.post(f"/v1/versions/v{number}/activate")).status_code == 200
            await asyncio.sleep(0.1)

    await asyncio.gather(swap(), *(talk() for _ in range(4)))
    assert len(answers) == 100
    for answer in answers:
        assert answer.status_code == 200
        version = answer.headers["x-instar-version"]
        assert answer.json()["choices"][0]["message"]["content"] == f"{version} " * 10
    assert len({a.headers["x-instar-version"] for a in answers}) > 2
    await asyncio.sleep(0.6)
    assert len(live.engine.versions - {"base"}) <= live.settings.engine.max_loras


async def test_conversation_in_use_is_computed_under_a_new_version_and_is_no_turn(live: Live) -> None:
    first = await live.ask("hi")
    live.publish("v1")
    live.store.activate("v1", "trained")
    await until_served(live, "v1")
    assert live.engine.asked == [("base", 0), ("v1", PRIORITY)]
    answer = first.json()["choices"][0]["message"]["content"]
    prompt, computed = live.engine.prompts
    assert live.engine.chat.decode(computed) == live.engine.chat.decode(prompt) + answer
    assert [turn["id"] for turn in await live.turns()] == [first.json()["id"]]


async def test_engine_that_hangs_keeps_no_version_from_serving(tmp_path: Path) -> None:
    async with live_gateway(tmp_path, engine=EngineSettings(prewarm_s=0.2)) as live:
        await live.ask("hi")
        live.engine.prefill = asyncio.Event()
        live.publish("v1")
        live.store.activate("v1", "trained")
        await until_served(live, "v1")
        live.engine.prefill = None
        assert (await live.ask("hi again")).headers["x-instar-version"] == "v1"


async def test_version_in_use_is_not_unloaded(live: Live) -> None:
    for number in range(1, 8):
        live.publish(f"v{number}")
    await live.http.post("/v1/versions/v1/activate")
    live.engine.gate = asyncio.Event()
    slow = asyncio.create_task(live.ask("hi"))
    while not live.engine.sampling:
        await asyncio.sleep(0.01)
    gate, live.engine.gate = live.engine.gate, None
    for number in range(2, 8):
        await live.http.post(f"/v1/versions/v{number}/activate")
    assert "v1" in live.engine.versions
    gate.set()
    assert (await slow).status_code == 200


async def test_pinned_version_and_base_are_served_beside_the_active_one(live: Live) -> None:
    live.publish("v1")
    live.publish("v2")
    await live.http.post("/v1/versions/v2/activate")
    for wanted, expected in (("instar", "v2"), ("instar@v1", "v1"), ("instar@base", "base")):
        answer = await live.ask("hi", model=wanted)
        assert answer.headers["x-instar-version"] == expected
    assert (await live.http.get("/v1/models")).json()["data"][0]["id"] == "instar"


async def test_version_that_the_engine_refuses_leaves_the_old_one_and_says_why(live: Live) -> None:
    live.publish("v1")
    live.publish("v2")
    await live.http.post("/v1/versions/v1/activate")
    live.engine.load_error = EngineError("rank 999 is too large", status=400)
    live.store.activate("v2", "trained")
    for _ in range(200):
        status = (await live.http.get("/v1/status")).json()
        if status["problem"]:
            break
        await asyncio.sleep(0.02)
    assert "rank 999" in status["problem"]
    assert status["served_version"] == "v1"
    assert (await live.ask("hi")).headers["x-instar-version"] == "v1"


async def test_damaged_active_version_at_start_falls_back_to_the_last_good_one(tmp_path: Path) -> None:
    async with live_gateway(tmp_path) as live:
        for number in (1, 2):
            live.publish(f"v{number}")
            await live.http.post(f"/v1/versions/v{number}/activate")
        damaged = live.registry.verify("v2") / "adapter_config.json"
    damaged.chmod(0o600)
    damaged.write_bytes(b"[]")
    async with live_gateway(tmp_path) as live:
        status = (await live.http.get("/v1/status")).json()
        assert status["served_version"] == "v1"
        assert "v2" in status["problem"]


async def test_version_of_another_model_is_not_served(live: Live) -> None:
    live.publish("v1", base_sha256="f" * 64)
    answer = await live.http.post("/v1/versions/v1/activate")
    assert answer.status_code == 409
    assert "another model" in answer.json()["error"]["message"]
    assert (await live.ask("hi")).headers["x-instar-version"] == "base"


async def test_server_is_not_ready_while_the_engine_is_dead(live: Live) -> None:
    assert (await live.http.get("/ready")).status_code == 200
    live.engine.up = False
    dead = await live.http.get("/ready")
    assert (dead.status_code, dead.json()["status"]) == (503, "starting")
    live.engine.up = True
    assert (await live.http.get("/ready")).status_code == 200


async def test_engine_is_closed_though_the_follower_had_died(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with live_gateway(tmp_path) as live:

        def fault() -> str:
            raise ZeroDivisionError

        monkeypatch.setattr(live.store, "active_version", fault)
        await asyncio.sleep(0.6)
        assert live.engine.up
    assert not live.engine.up
