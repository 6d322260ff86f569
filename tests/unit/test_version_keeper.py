"""What is served follows what the store says, whatever happens to the engine, to folders, to the store."""

from __future__ import annotations

import asyncio

import pytest

from instar.errors import EngineError, EngineUnavailable, RequestError, StoreError
from instar.gateway import versions
from instar.gateway.versions import VersionKeeper
from tests.kit.version_house import House, keeper_of


@pytest.fixture
def house() -> House:
    return House()


@pytest.fixture
def keeper(house: House) -> VersionKeeper:
    return keeper_of(house)


async def polls(keeper: VersionKeeper, times: int = versions.CHECK_ENGINE_EVERY) -> None:
    for _ in range(times):
        await keeper.poll()


async def served(keeper: VersionKeeper) -> str:
    async with keeper.lease(None) as version:
        return version


async def test_version_that_is_damaged_while_it_serves_gives_way_when_the_engine_restarts(
    house: House, keeper: VersionKeeper
) -> None:
    for version in ("v1", "v2"):
        house.activate(version)
        await polls(keeper)
    house.damaged.add("v2")
    house.restart_engine()
    await polls(keeper)
    assert await served(keeper) == "v1"
    assert keeper.problem is not None
    assert "v2 is damaged" in keeper.problem
    house.activate("v3")
    await polls(keeper, 1)
    assert (await served(keeper), keeper.problem) == ("v3", None)


async def test_version_that_the_restarted_engine_refuses_gives_way_too(
    house: House, keeper: VersionKeeper
) -> None:
    house.activate("v1")
    await polls(keeper)
    house.restart_engine()
    house.load_error = EngineError("rank 64 is too large", status=400)
    await polls(keeper)
    assert await served(keeper) == "base"


async def test_follower_outlives_every_error_of_ours(
    house: House, keeper: VersionKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(versions, "POLL_S", 0.0)
    following = asyncio.create_task(keeper.run())
    house.activate("v1")
    while keeper.current != "v1":
        await asyncio.sleep(0)
    house.damaged |= {"v1"}
    house.restart_engine()
    while keeper.current != "base":
        await asyncio.sleep(0)
    house.activate("v2")
    while keeper.current != "v2":
        await asyncio.sleep(0)
    following.cancel()


async def test_problem_goes_when_all_is_well_again(house: House, keeper: VersionKeeper) -> None:
    house.activate("v1")
    await polls(keeper)
    house.is_up = False
    await polls(keeper)
    assert keeper.problem == "nobody listens"
    house.is_up = True
    house.restart_engine()
    await polls(keeper)
    assert (keeper.problem, keeper.current, house.held) == (None, "v1", {"v1"})
    house.store_error = StoreError("the disk is full")
    await polls(keeper)
    assert keeper.problem == "the disk is full"
    house.store_error = None
    await polls(keeper)
    assert keeper.problem is None


async def test_engine_that_dies_while_a_substitute_is_looked_for_does_not_make_it_base(
    house: House, keeper: VersionKeeper
) -> None:
    house.activate("v1")
    await polls(keeper)
    house.activate("v2")
    await polls(keeper)
    house.damaged.add("v2")
    house.restart_engine()
    house.load_error = EngineUnavailable("it died again")
    await polls(keeper)
    assert keeper.current != "base"
    house.load_error = None
    await polls(keeper)
    assert keeper.current == "v1"


async def test_active_version_that_cannot_be_served_is_read_again_only_now_and_then(
    house: House, keeper: VersionKeeper
) -> None:
    house.damaged.add("v1")
    house.activate("v1")
    await polls(keeper, 40)
    assert (keeper.current, house.read["v1"]) == ("base", 1)
    assert keeper.problem is not None
    assert "v1 is damaged" in keeper.problem
    house.damaged.clear()
    await polls(keeper, versions.RETRY_EVERY)
    assert (keeper.current, keeper.problem) == ("v1", None)


async def test_full_engine_is_no_fault_of_the_version(house: House, keeper: VersionKeeper) -> None:
    await polls(keeper)
    house.load_error = EngineError("all places are in use", status=429)
    house.activate("v1")
    await polls(keeper)
    assert (keeper.current, keeper.problem) == ("base", "all places are in use")
    house.load_error = None
    await polls(keeper, 1)
    assert keeper.current == "v1", "at once, not half a minute later"


async def test_pinned_version_that_is_damaged_is_not_there(house: House, keeper: VersionKeeper) -> None:
    await polls(keeper)
    house.damaged.add("v9")
    with pytest.raises(RequestError) as refused:
        async with keeper.lease("v9"):
            pass
    assert refused.value.status == 404
    assert not keeper._in_use, "what is asked for once leaves no trace"


async def test_current_version_that_was_just_lost_is_told_to_come_again(
    house: House, keeper: VersionKeeper
) -> None:
    """A 404 would be final for clients, and another version is there in a moment."""
    house.activate("v1")
    await polls(keeper)
    house.restart_engine()
    house.load_error = EngineUnavailable("it died again")
    await polls(keeper)
    house.load_error = None
    house.damaged.add("v1")
    with pytest.raises(RequestError) as refused:
        await served(keeper)
    assert refused.value.status == 503


async def test_leases_leave_nothing_behind(house: House, keeper: VersionKeeper) -> None:
    await polls(keeper)
    async with keeper.lease(None), keeper.lease("v1"), keeper.lease("v1"):
        assert keeper._in_use == {"base": 1, "v1": 2}
    assert not keeper._in_use
