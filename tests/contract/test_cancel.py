"""A client that leaves frees its slot, wherever its request was. On every engine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from instar.engines.client import HttpEngine
from instar.engines.scripted import ScriptedEngine
from instar.records import BASE, Sampling
from tests.contract.conftest import CONTEXT, SETTINGS, Endpoint, eventually, gather_answer, ids_of

pytestmark = pytest.mark.ours
LONG = Sampling(max_tokens=CONTEXT - 100, temperature=0)


@pytest.fixture(autouse=True)
def steps(engine: Endpoint, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Makes answers last, so that cancelling ends them and not their length. Counts a model's decode steps."""
    found: list[int] = []
    backend = engine.server.backend
    if isinstance(backend, ScriptedEngine):
        backend.token_s = 30.0
        yield found
        backend.token_s = 0.0
        return
    from instar.engines.embedded.model import Model

    decode = Model.decode

    def slowly(self: Model, streams: Sequence[Any], last_ids: Sequence[int]) -> Any:
        found.append(len(streams))
        time.sleep(0.01)
        return decode(self, streams, last_ids)

    monkeypatch.setattr(Model, "decode", slowly)
    yield found


def idle(engine: Endpoint) -> bool:
    backend = engine.server.backend
    if isinstance(backend, ScriptedEngine):
        return backend.running == 0 and backend.gate.waiting == 0
    return bool(backend.is_idle())  # type: ignore[attr-defined]


async def test_closing_the_iterator_frees_the_slot(engine: Endpoint, steps: list[int]) -> None:
    client = HttpEngine(engine.url, engine.base, [])
    answers = [client.sample(BASE, [5 + i], LONG) for i in range(SETTINGS.max_streams)]
    for answer in answers:
        assert (await anext(answer)).ids
    for answer in answers:
        await answer.aclose()
    await eventually(lambda: idle(engine))
    assert len(steps) < LONG.max_tokens // 2
    await client.close()


async def test_cancelling_while_it_waits_frees_the_queue(engine: Endpoint, steps: list[int]) -> None:
    client = HttpEngine(engine.url, engine.base, [])
    tasks = [
        asyncio.create_task(gather_answer(client, BASE, [5 + i], LONG))
        for i in range(SETTINGS.max_streams + SETTINGS.max_waiting)
    ]
    await eventually(lambda: not idle(engine))
    for task in tasks:
        task.cancel()
    assert all(isinstance(end, asyncio.CancelledError) for end in await gather_ends(tasks))
    await eventually(lambda: idle(engine))
    assert len(steps) < LONG.max_tokens // 2
    await client.close()


async def test_cancelled_company_does_not_change_an_answer(engine: Endpoint) -> None:
    backend = engine.server.backend
    if isinstance(backend, ScriptedEngine):
        backend.token_s = 0.002
    client = HttpEngine(engine.url, engine.base, [])
    sampling = Sampling(max_tokens=60, temperature=0)
    alone = ids_of(await gather_answer(client, BASE, [70, 71, 72], sampling))
    leaving = [client.sample(BASE, [5 + i] * 20, LONG) for i in range(3)]
    for answer in leaving:
        await anext(answer)
    staying = client.sample(BASE, [70, 71, 72], sampling)
    chunks = [await anext(staying)]
    for answer in leaving:
        await answer.aclose()
    chunks += [chunk async for chunk in staying]
    assert ids_of(chunks) == alone
    await eventually(lambda: idle(engine))
    await client.close()


async def gather_ends(tasks: list[asyncio.Task[list[object]]]) -> list[object]:
    return list(await asyncio.gather(*tasks, return_exceptions=True))
