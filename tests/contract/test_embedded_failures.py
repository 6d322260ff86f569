"""What fails inside the embedded engine fails its own requests only. And what it admits, in which order."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from instar.engines.client import HttpEngine
from instar.engines.embedded import scheduler
from instar.engines.embedded.backend import EmbeddedBackend
from instar.engines.embedded.model import Model
from instar.errors import EngineError
from instar.records import BASE, Sampling
from tests.contract.conftest import (
    SETTINGS,
    Endpoint,
    Server,
    eventually,
    gather_answer,
    ids_of,
)

GREEDY = Sampling(max_tokens=12, temperature=0)


@pytest.fixture
def numbers(embedded_server: Any, tmp_path: Path) -> Endpoint:
    return Endpoint("embedded", embedded_server.url, BASE, embedded_server, tmp_path)


@pytest.mark.parametrize("method", ["prefill", "decode"])
async def test_pass_that_fails_is_500_and_the_next_is_served(
    numbers: Endpoint, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    client = HttpEngine(numbers.url, BASE, [])
    before = ids_of(await gather_answer(client, BASE, [30, 31, 32], GREEDY))

    def fails(*_: Any, **__: Any) -> None:
        raise RuntimeError("out of memory")

    with monkeypatch.context() as broken:
        broken.setattr(Model, method, fails)
        with pytest.raises(EngineError, match="out of memory") as caught:
            await gather_answer(client, BASE, [30, 31, 32], GREEDY)
    assert caught.value.status == 500
    assert ids_of(await gather_answer(client, BASE, [30, 31, 32], GREEDY)) == before
    await client.close()


async def test_memory_that_cannot_be_had_is_500(numbers: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    client = HttpEngine(numbers.url, BASE, [])

    def fails(*_: Any) -> None:
        raise MemoryError("no room")

    with monkeypatch.context() as broken:
        broken.setattr(scheduler, "StreamCache", fails)
        with pytest.raises(EngineError, match="no room"):
            await gather_answer(client, BASE, [30], GREEDY)
    assert await gather_answer(client, BASE, [30], GREEDY)
    await client.close()


@pytest.fixture
def small(tiny_model: Path) -> Iterator[Endpoint]:
    """Room for 100 tokens altogether, and for kept conversations in what is left of it."""
    import torch

    settings = SETTINGS.model_copy(update={"max_cached_tokens": 100})
    backend = EmbeddedBackend(tiny_model, settings, torch.float32)
    server = Server(backend)
    server.call(backend.start())
    yield Endpoint("embedded", server.url, BASE, server, tiny_model)
    server.call(backend.stop())
    server.stop()


async def test_memory_bound_makes_requests_wait_and_none_fail(small: Endpoint) -> None:
    client = HttpEngine(small.url, BASE, [])
    prompts = [[20 + i] * 30 for i in range(5)]  # each reserves 70 of the 100
    sampling = Sampling(max_tokens=40, temperature=0)
    alone = [ids_of(await gather_answer(client, BASE, prompt, sampling)) for prompt in prompts]
    together = await asyncio.gather(*(gather_answer(client, BASE, prompt, sampling) for prompt in prompts))
    assert [ids_of(chunks) for chunks in together] == alone
    with pytest.raises(EngineError) as caught:
        await gather_answer(client, BASE, [5] * 90, Sampling(max_tokens=11))
    assert caught.value.status == 400
    await client.close()


async def test_chat_is_admitted_before_the_judge(small: Endpoint) -> None:
    client = HttpEngine(small.url, BASE, [])
    order: list[str] = []
    waiting = small.server.backend._scheduler._waiting  # type: ignore[attr-defined]

    async def ask(name: str, priority: int) -> None:
        sampling = Sampling(max_tokens=60, temperature=0)
        async for _ in client.sample(BASE, [5, 6], sampling, priority=priority):
            pass
        order.append(name)

    first = client.sample(BASE, [9], Sampling(max_tokens=99, temperature=0))
    await anext(first)  # holds all the memory
    tasks = []
    for name, priority in (("judge", 10), ("chat", 0)):
        tasks.append(asyncio.create_task(ask(name, priority)))
        await eventually(lambda: len(waiting) == len(tasks))
    async for _ in first:
        pass
    await asyncio.gather(*tasks)
    await client.close()
    assert order == ["chat", "judge"]


async def test_prompt_behind_a_chat_in_priority_gives_its_memory_back(
    small: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a chat would wait until a long conversation is computed that nobody asked for yet."""
    client = HttpEngine(small.url, BASE, [])
    begun, go_on = threading.Event(), threading.Event()
    prefill = Model.prefill

    def held(self: Model, *given: Any, **more: Any) -> Any:
        begun.set()
        go_on.wait(30)
        return prefill(self, *given, **more)

    monkeypatch.setattr(Model, "prefill", held)
    order: list[str] = []

    async def ask(name: str, length: int, priority: int) -> list[int]:
        chunks = client.sample(BASE, [40] * length, Sampling(max_tokens=5, temperature=0), priority=priority)
        ids = ids_of([chunk async for chunk in chunks])
        order.append(name)
        return ids

    early = asyncio.create_task(ask("early", 80, 100))
    await eventually(begun.is_set)
    chat = asyncio.create_task(ask("chat", 60, 0))
    await eventually(lambda: bool(small.server.backend._scheduler._waiting))  # type: ignore[attr-defined]
    go_on.set()
    await asyncio.gather(early, chat)
    assert order == ["chat", "early"]
    assert await ask("alone", 80, 0) == await early
    await client.close()


async def test_chat_is_answered_as_if_no_judge_were_at_work(
    numbers: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for no slot that a judge holds, and not a step is computed for the judges meanwhile."""
    client = HttpEngine(numbers.url, BASE, [])
    streams, decode = SETTINGS.max_streams, Model.decode
    rows: list[int] = []

    def counting(self: Model, running: Any, last_ids: Any) -> Any:
        rows.append(len(running))
        return decode(self, running, last_ids)

    monkeypatch.setattr(Model, "decode", counting)
    judges = [client.sample(BASE, [9 + i], Sampling(max_tokens=400), priority=10) for i in range(streams)]
    for judge in judges:
        await anext(judge)
    chat = await gather_answer(client, BASE, [40] * 50, Sampling(max_tokens=100, temperature=0))
    assert len(ids_of(chat)) == 100
    for judge in judges:
        assert [chunk async for chunk in judge][-1].finish_reason == "length"
    alone = "".join("1" if count == 1 else "-" for count in rows)
    assert "1" * 99 in alone, "the chat's steps were its own, one after the other"
    assert rows.count(streams) > 300, "the judges went on afterwards, together"
    await client.close()


async def test_long_prompt_does_not_stop_the_others(numbers: Endpoint) -> None:
    """Between two of its chunks the streams that decode each get a token."""
    client = HttpEngine(numbers.url, BASE, [])
    talking = client.sample(BASE, [40], Sampling(max_tokens=300, temperature=0))
    await anext(talking)
    tokens = 0
    long = asyncio.create_task(
        gather_answer(client, BASE, [7, 8] * 200, Sampling(max_tokens=1, temperature=0))
    )
    while not long.done():
        tokens += len((await anext(talking)).ids)
    assert (await long)[0].finish_reason == "length"
    assert tokens >= 400 // SETTINGS.prefill_chunk - 5
    await talking.aclose()
    await client.close()
