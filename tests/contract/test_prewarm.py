"""A swap costs no slow first token: what was computed under the new version before is found again. On our engines."""

from __future__ import annotations

from typing import Any

import pytest

from instar.engines.client import HttpEngine
from instar.engines.scripted import ScriptedEngine
from instar.gateway.prewarm import PRIORITY, Prewarm
from instar.records import BASE, Sampling
from instar.runtime import FakeClock
from tests.contract.conftest import Endpoint, gather_answer, ids_of, write_adapter
from tests.kit.version_house import House

pytestmark = pytest.mark.ours  # only there can be seen what is computed
GREEDY = Sampling(max_tokens=8, temperature=0)
TALK = [40 + place % 90 for place in range(200)]
REPLY = [35, 36, 37]


async def prewarmed(client: HttpEngine, version: str, *sessions: list[int]) -> None:
    await client.loaded()  # tells how much the engine takes
    house: Any = House()
    house.in_use = list(sessions)
    prewarm = Prewarm(house, client, FakeClock(), limit_s=60.0, max_tokens=1_000)
    prewarm.begin(version)
    assert await prewarm.ended(within_s=60.0)


@pytest.fixture
def computed(engine: Endpoint, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many prompt tokens each pass computed, where there is a model."""
    found: list[int] = []
    if isinstance(engine.server.backend, ScriptedEngine):
        return found
    from instar.engines.embedded.model import Model

    prefill = Model.prefill

    def counting(self: Model, stream: Any, ids: Any, **more: Any) -> Any:
        found.append(len(ids))
        return prefill(self, stream, ids, **more)

    monkeypatch.setattr(Model, "prefill", counting)
    return found


async def test_first_turn_after_a_swap_computes_only_what_is_new(
    engine: Endpoint, client: HttpEngine, computed: list[int]
) -> None:
    await gather_answer(client, BASE, TALK, GREEDY)
    for version in ("v1", "v2"):
        await client.load(version, write_adapter(engine.tmp / version, int(version[1])))
    await prewarmed(client, "v1", TALK, [99] * 50)
    before = sum(computed)
    warm = await gather_answer(client, "v1", TALK + REPLY, GREEDY)
    after = sum(computed)
    backend = engine.server.backend
    if isinstance(backend, ScriptedEngine):
        asked = [(r.model, len(r.prompt_ids), r.max_tokens, r.priority) for r in backend.requests[-3:-1]]
        assert asked == [("v1", len(TALK), 1, PRIORITY), ("v1", 50, 1, PRIORITY)]
        return
    assert (before - len(TALK), after - before) == (len(TALK) + 50, len(REPLY))
    await gather_answer(client, "v2", TALK + REPLY, GREEDY)
    assert sum(computed) - after == len(TALK + REPLY), "another version finds nothing of it"
    await client.unload("v1")
    await client.load("again", engine.tmp / "v1")
    cold = await gather_answer(client, "again", TALK + REPLY, GREEDY)
    assert ids_of(warm) == ids_of(cold)


async def test_conversation_that_fills_the_context_is_computed_too(
    engine: Endpoint, client: HttpEngine, computed: list[int]
) -> None:
    length = engine.server.backend.max_model_len
    await client.load("v1", write_adapter(engine.tmp / "v1", 1))
    await prewarmed(client, "v1", [30 + place % 80 for place in range(length)])
    if computed:
        assert sum(computed) == length - 1
    else:
        backend: Any = engine.server.backend
        assert len(backend.requests[-1].prompt_ids) == length - 1
