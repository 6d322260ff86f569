"""Conversations in use are computed under a new version before it serves; and no version waits for that in vain."""

from __future__ import annotations

import asyncio

import pytest

from instar.errors import EngineError, EngineUnavailable, StoreError
from instar.gateway import prewarm, versions
from instar.gateway.prewarm import PRIORITY, fitting
from instar.gateway.versions import VersionKeeper
from instar.runtime import FakeClock
from tests.kit.version_house import House, keeper_of

TALK, OTHER = [7] * 40, [8] * 30


@pytest.fixture
def house() -> House:
    """With two sessions in use."""
    house = House()
    house.in_use = [TALK, OTHER]
    return house


@pytest.fixture(autouse=True)
def quick_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "POLL_S", 0.001)


async def started(house: House, **bounds: float) -> VersionKeeper:
    keeper = keeper_of(house, **bounds)  # type: ignore[arg-type]
    await keeper.poll()
    assert (keeper.current, house.asked) == ("base", []), "the first version waits for nothing"
    return keeper


async def until_served(keeper: VersionKeeper, version: str) -> None:
    while keeper.current != version:
        await keeper.poll()


async def test_version_serves_once_the_sessions_in_use_are_computed_under_it(house: House) -> None:
    keeper = await started(house)
    house.gate.clear()
    house.activate("v1")
    for _ in range(5):
        await keeper.poll()
    assert keeper.current == "base"
    assert house.asked == [("v1", TALK, 1, PRIORITY)], "one at a time, the newest first"
    assert house.since == FakeClock().now() - prewarm.IN_USE_S
    house.gate.set()
    await until_served(keeper, "v1")
    assert house.asked == [("v1", TALK, 1, PRIORITY), ("v1", OTHER, 1, PRIORITY)]
    assert keeper.problem is None


async def test_every_swap_computes_them_anew(house: House) -> None:
    keeper = await started(house)
    for version in ("v1", "v2", "v1"):
        house.activate(version)
        await until_served(keeper, version)
    assert [asked[0] for asked in house.asked] == ["v1", "v1", "v2", "v2", "v1", "v1"]


async def test_nothing_waits_where_nobody_talks(house: House) -> None:
    house.in_use = []
    keeper = await started(house)
    house.activate("v1")
    await keeper.poll()
    assert (keeper.current, house.asked) == ("v1", [])


async def test_engine_that_hangs_delays_a_version_no_longer_than_the_bound(house: House) -> None:
    keeper = await started(house, limit_s=0.05)
    house.gate.clear()
    house.activate("v1")
    await until_served(keeper, "v1")
    assert house.aborted == 1


async def test_versions_that_come_faster_than_the_bound_are_served_all_the_same(house: House) -> None:
    keeper = await started(house, limit_s=0.1)
    house.gate.clear()
    number = 0
    while keeper.current == "base":
        number += 1
        house.activate(f"v{number}")
        await keeper.poll()
    assert number > 1
    assert keeper.current == f"v{number}"


async def test_zero_seconds_switch_it_off(house: House) -> None:
    keeper = await started(house, limit_s=0.0)
    house.activate("v1")
    await keeper.poll()
    assert (keeper.current, house.asked) == ("v1", [])


@pytest.mark.parametrize(
    "error",
    [EngineUnavailable("it died"), EngineError("the queue is full", status=429), StoreError("locked")],
)
async def test_what_goes_wrong_keeps_no_version_from_serving(
    house: House, error: EngineError | StoreError, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper = await started(house)
    if isinstance(error, StoreError):

        def fails(*_: object) -> list[list[int]]:
            raise error

        monkeypatch.setattr(house, "ids_in_use", fails)
    else:
        house.sample_error = error
    house.activate("v1")
    await until_served(keeper, "v1")
    assert keeper.problem is None


async def test_engine_without_priorities_is_asked_without(house: House) -> None:
    house.knows_priority = False
    keeper = await started(house)
    house.activate("v1")
    await until_served(keeper, "v1")
    assert house.asked == [("v1", TALK, 1, 0), ("v1", OTHER, 1, 0)]


async def test_choice_of_a_person_breaks_it_off_serves_at_once_and_is_computed_afterwards(
    house: House,
) -> None:
    keeper = await started(house)
    house.gate.clear()
    house.activate("v2")
    await keeper.poll()
    await keeper.activate("v1", "v2 was taken back by hand")
    assert keeper.current == "v1"
    while len(house.asked) < 2:
        await asyncio.sleep(0)
    await keeper.poll()
    assert (keeper.current, house.aborted) == ("v1", 1)
    assert [asked[0] for asked in house.asked] == ["v2", "v1"]


async def test_choice_that_changes_during_the_wait_is_heeded(house: House) -> None:
    keeper = await started(house)
    house.gate.clear()
    house.activate("v1")
    waiting = asyncio.create_task(keeper.poll())
    while not house.asked:
        await asyncio.sleep(0)
    house.activate("base")
    house.gate.set()
    await waiting
    assert keeper.current == "base"


async def test_end_of_the_gateway_leaves_no_request_behind(house: House) -> None:
    keeper = await started(house)
    house.gate.clear()
    following = asyncio.create_task(keeper.run())
    house.activate("v1")
    while not house.asked:
        await asyncio.sleep(0)
    following.cancel()
    with pytest.raises(asyncio.CancelledError):
        await following
    await asyncio.sleep(0)
    assert house.aborted == 1


def test_the_newest_that_fit_are_computed_each_once() -> None:
    found = [[1] * 50, [2] * 60, [1] * 40, [3] * 50]
    assert fitting(found, 100, None) == [[1] * 50, [3] * 50]


def test_place_for_a_token_is_left_behind_a_full_conversation() -> None:
    assert fitting([[1] * 50], 100, 50) == [[1] * 49]
    assert fitting([[1] * 49], 100, 50) == [[1] * 49]
