"""Versions over HTTP: their story, the way back, and waiting for a person."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from instar.records import Fate, Judgement, NextKind, NextState, Source
from tests.kit.live_gateway import Live, live_gateway
from tests.kit.store_scenes import make_outcome, make_turn


@pytest.fixture
async def live(tmp_path: Path) -> AsyncIterator[Live]:
    async with live_gateway(tmp_path) as live:
        yield live


async def served(live: Live) -> str:
    return str((await live.ask("hi")).headers["x-instar-version"])


async def post(live: Live, path: str, body: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
    answer = await live.http.post(f"/v1/versions/{path}", json=body or {})
    return answer.status_code, answer.json()


async def state(live: Live, version: str) -> tuple[str, str]:
    found = (await live.http.get(f"/v1/versions/{version}")).json()
    return found["state"], found["state_why"]


# ── the way back ──────────────────────────────────────────────────────────────────────────────────────────
async def test_rollback_serves_the_parent_at_once_and_tells_why(live: Live) -> None:
    live.publish("v1")
    live.publish("v2", parent="v1")
    await post(live, "v2/activate")
    assert await post(live, "rollback", {"reason": "too terse"}) == (
        200,
        {"active_version": "v1", "before": "v2", "reason": "too terse"},
    )
    assert await served(live) == "v1"
    assert await state(live, "v2") == ("taken back", "too terse")
    assert (await state(live, "v1"))[0] == "serving"
    found = (await live.http.get("/v1/versions/v2")).json()
    assert [(x["what"], x["why"]) for x in found["history"]] == [
        ("chosen", "asked for by hand"), ("serves", "asked for by hand"), ("rolled_back", "too terse"),
        ("served", "v1 serves"),
    ]  # fmt: skip


async def test_a_version_that_serves_again_does_not_give_the_reason_why_it_was_taken_back(live: Live) -> None:
    live.publish("v1")
    live.publish("v2", parent="v1")
    live.store.activate("v1", "made by update 1")
    live.store.decide("v1", Fate.ROLLED_BACK, "v1 was taken back by itself", activate="base")
    live.store.activate("v2", "made by update 2")
    await post(live, "rollback", {"to": "v1"})
    assert await state(live, "v1") == ("serving", "")
    found = (await live.http.get("/v1/versions/v1")).json()
    assert [x["what"] for x in found["history"]] == ["serves", "rolled_back", "served", "serves"]
    await post(live, "v1/activate")
    assert await state(live, "v1") == ("serving", "asked for by hand")


async def test_rollback_goes_to_any_of_the_last_ten_versions(live: Live) -> None:
    for number in range(1, 12):
        live.publish(f"v{number}", parent=f"v{number - 1}" if number > 1 else "base")
    for target in ["base", *(f"v{n}" for n in range(1, 11))]:
        await post(live, "v11/activate")
        assert (await post(live, "rollback", {"to": target}))[0] == 200
        assert await served(live) == target


async def test_there_is_not_always_a_way_back(live: Live) -> None:
    live.publish("v1")
    code, body = await post(live, "rollback")
    assert (code, "nothing to take back" in body["error"]["message"]) == (409, True)
    await post(live, "v1/activate")
    assert (await post(live, "rollback", {"to": "v1"}))[0] == 409
    assert (await post(live, "rollback", {"to": "v9"}))[0] == 404
    assert (await post(live, "rollback", {"to": 7}))[0] == 400
    assert (await post(live, "rollback", {"whither": "v1"}))[0] == 400
    assert await served(live) == "v1"
    assert (await live.http.post("/v1/versions/rollback")).json()["active_version"] == "base"


def spoil_manifest(live: Live, version: str) -> None:
    (live.registry.root / version / "manifest.json").write_text("{}")


def made_by_an_update(live: Live, version: str, parent: str) -> None:
    judged(live, f"makes-{version}", -1, "shorter", "s")
    update = live.store.begin_update([f"makes-{version}"], parent, "{}")
    live.store.finish_update(update.id, status="proposed", version=version, note=None, activate=False)
    live.publish(version, parent=parent)


async def test_rollback_finds_the_way_back_from_a_damaged_version(live: Live) -> None:
    live.publish("v1")
    made_by_an_update(live, "v2", "v1")
    await post(live, "v2/activate")
    spoil_manifest(live, "v2")
    assert (await post(live, "rollback"))[0] == 200
    assert await served(live) == "v1"


async def test_rollback_asks_for_a_name_where_nothing_tells_the_parent(live: Live) -> None:
    live.publish("v1")
    live.publish("v2", parent="v1")
    await post(live, "v2/activate")
    spoil_manifest(live, "v2")
    code, body = await post(live, "rollback")
    assert (code, "name the version to go back to" in body["error"]["message"]) == (409, True)
    assert (await post(live, "rollback", {"to": "v1"}))[0] == 200
    assert await served(live) == "v1"


# ── refused by the gate ───────────────────────────────────────────────────────────────────────────────────
async def test_a_version_that_did_not_pass_is_shown_and_never_served(live: Live) -> None:
    live.publish("v1", gate={"passed": False, "why": "It does not know where to end.", "checks": {}})
    assert await state(live, "v1") == ("refused by the gate", "It does not know where to end.")
    code, body = await post(live, "v1/activate")
    assert code == 409
    assert "did not pass the gate: It does not know where to end." in body["error"]["message"]
    names = [m["id"] for m in (await live.http.get("/v1/models")).json()["data"]]
    assert names == ["instar", "instar@base"]
    assert (await live.http.get("/v1/models/instar@v1")).status_code == 404
    assert (await live.ask("hi", model="instar@v1")).status_code == 404
    assert await served(live) == "base"


# ── waiting for a person ──────────────────────────────────────────────────────────────────────────────────
async def test_a_version_that_waits_is_told_and_approved(live: Live) -> None:
    live.publish("v1", gate={"passed": True, "why": "fine", "checks": {}})
    assert (await live.http.get("/v1/status")).json()["waiting_version"] is None
    live.store.decide("v1", Fate.WAITS, "passed")
    assert (await live.http.get("/v1/status")).json()["waiting_version"] == "v1"
    assert await state(live, "v1") == ("waits for approval", "passed")
    assert await served(live) == "base"
    assert (await post(live, "v1/approve"))[0] == 200
    assert await served(live) == "v1"
    assert (await live.http.get("/v1/status")).json()["waiting_version"] is None
    code, body = await post(live, "v1/approve")
    assert (code, body["error"]["code"]) == (409, "not_waiting")


async def test_a_version_that_waits_is_rejected(live: Live) -> None:
    live.publish("v1")
    live.store.decide("v1", Fate.WAITS, "passed")
    assert await post(live, "v1/reject") == (200, {"rejected": "v1", "active_version": "base"})
    assert await state(live, "v1") == ("rejected by a person", "A person rejected it.")
    assert (await post(live, "v1/reject"))[0] == 409
    assert (await post(live, "v9/reject"))[0] == 404
    assert await served(live) == "base"


async def test_a_version_that_waits_can_be_rejected_though_its_folder_is_gone(live: Live) -> None:
    live.publish("v1")
    live.store.decide("v1", Fate.WAITS, "passed")
    shutil.rmtree(live.registry.root / "v1")
    assert (await post(live, "v1/approve"))[0] == 404
    assert (await post(live, "v1/reject"))[0] == 200
    assert (await live.http.get("/v1/status")).json()["waiting_version"] is None


async def test_a_rejected_version_answers_nobody_until_it_is_activated_by_name(live: Live) -> None:
    live.publish("v1")
    live.store.decide("v1", Fate.WAITS, "passed")
    assert (await live.ask("hi", model="instar@v1")).status_code == 200, "to decide, one must try it"
    await post(live, "v1/reject")
    refused = await live.ask("hi", model="instar@v1")
    assert refused.status_code == 404
    assert "A person rejected it" in refused.json()["error"]["message"]
    assert (await live.http.get("/v1/models/instar@v1")).status_code == 404
    names = [m["id"] for m in (await live.http.get("/v1/models")).json()["data"]]
    assert names == ["instar", "instar@base"]
    assert (await post(live, "v1/activate"))[0] == 200
    assert (await live.ask("hi", model="instar@v1")).status_code == 200


# ── what made it ──────────────────────────────────────────────────────────────────────────────────────────
def judged(live: Live, turn_id: str, score: int, hint: str | None, session: str) -> None:
    live.store.open_turns([make_turn(turn_id, session_id=session)], [])
    live.store.close_turn(turn_id, make_outcome(turn_id))
    live.store.open_turns([], [NextState(turn_id, NextKind.USER_REPLY, "well", 1.0)])
    (item,) = live.store.lease_unjudged("test", 9, 60.0)
    live.store.record_judgement(Judgement(turn_id, score, Source.USER, "l", 1.0, hint=hint), item.lease)


async def test_a_version_tells_what_it_learned_from_and_what_came_of_it(live: Live) -> None:
    judged(live, "t1", -1, "shorter", "s1")
    judged(live, "t2", -1, "shorter", "s1")
    judged(live, "t3", 1, None, "s2")
    live.publish("v1", turn_ids=["t1", "t2", "t3"])
    live.publish("v2", parent="v1")
    live.publish("v3", parent="v1")
    found = (await live.http.get("/v1/versions/v1")).json()
    assert found["learned_from"] == {"turns": 3, "good": 1, "bad": 2, "sessions": 2, "hints": ["shorter"]}
    assert found["children"] == ["v2", "v3"]
    base = (await live.http.get("/v1/versions/base")).json()
    assert (base["children"], base["learned_from"]["turns"]) == (["v1"], 0)
    rows = (await live.http.get("/v1/versions")).json()["data"]
    assert [r["state"] for r in rows] == ["kept", "kept", "kept", "serving"]
