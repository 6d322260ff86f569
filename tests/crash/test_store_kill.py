"""kill -9 at any moment: what was acknowledged is there, and nothing happened twice or by half."""

from __future__ import annotations

import collections
import random
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from instar.records import TurnStatus
from instar.store import SqlStore, open_store
from instar.store.schema import activations, reservations, update_turns, updates, uses
from instar.store.steady import Instant, steady_now
from tests.kit.processes import Worker
from tests.kit.store_scenes import Scene, url_of
from tests.kit.store_workers import PASSES

WORKERS = "tests.kit.store_workers"


def check_integrity(path: Path) -> None:
    with sqlite3.connect(path) as conn:
        assert conn.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert conn.execute("PRAGMA foreign_key_check").fetchall() == []


def rows(store: SqlStore, table: Any) -> list[Any]:
    with store._db.reading() as conn:
        return list(conn.execute(select(table)))


def test_every_acknowledged_turn_survives_a_kill(tmp_path: Path) -> None:
    path, chance = tmp_path / "instar.db", random.Random(5)
    acked: list[str] = []
    for life in range(4):
        with Worker(WORKERS, "record", path, f"life{life}-") as gateway:
            for _ in range(chance.randint(1, 60)):
                gateway.read()
            time.sleep(chance.uniform(0, 0.01))
            acked += [line.split()[1] for line in gateway.kill()]
    check_integrity(path)
    store = open_store(url_of(path))
    for turn_id in acked:
        turn, n = store.turn(turn_id), int(turn_id.split("-")[1])
        assert turn is not None, turn_id
        assert turn.status is TurnStatus.DONE
        assert turn.answer == {"role": "assistant", "content": f"answer {turn_id}"}
        assert (len(turn.messages), len(turn.prompt_ids)) == (n % 50, n)
    others = [v for v in store.turn_views(limit=10_000) if v["id"] not in set(acked)]
    assert len(others) <= 4, "at most the one that each life was at"
    opened = [v["id"] for v in others if v["status"] == "open"]
    assert store.sweep_open("interrupted") == len(opened)


def check_books(store: SqlStore) -> None:
    """Each use once, each sample in at most one place, each version activated once."""
    done = {u.id: u for u in rows(store, updates)}
    members = collections.defaultdict(set)
    for row in rows(store, update_turns):
        members[row.update_id].add(row.turn_id)
    used = collections.defaultdict(set)
    for row in rows(store, uses):
        assert done[row.update_id].status == "proposed"
        used[row.turn_id].add((row.update_id, getattr(row, "pass")))
    for turn_id, of_turn in used.items():
        [update_id] = {update_id for update_id, _ in of_turn}
        assert len(of_turn) == PASSES, turn_id
        assert turn_id in members[update_id]
    proposed = [u for u in done.values() if u.status == "proposed"]
    assert set(used) == {turn_id for u in proposed for turn_id in members[u.id]}
    served = sorted(a.version for a in rows(store, activations))
    assert served == sorted(u.version for u in proposed)
    assert len(set(served)) == len(served)
    running = [u.id for u in done.values() if u.status == "running"]
    assert len(running) <= 1
    held = {(r.turn_id, r.update_id) for r in rows(store, reservations)}
    assert held == {(turn_id, update_id) for update_id in running for turn_id in members[update_id]}
    after = store.get_state("method")
    finished = [u for u in done.values() if u.status != "running"]
    assert (after or {}).get("after") == (max(finished, key=lambda u: u.number).id if finished else None)


def test_every_use_is_committed_once_however_often_the_trainer_dies(tmp_path: Path) -> None:
    scene = Scene(tmp_path / "instar.db")
    turn_ids = [scene.corrected(f"t{n}") for n in range(45)]
    chance = random.Random(7)
    for life in range(6):
        with Worker(WORKERS, "train", scene.path, life) as trainer:
            trainer.read()
            time.sleep(chance.uniform(0, 0.04))
            trainer.kill()
        check_integrity(scene.path)
        check_books(scene.store)
    with Worker(WORKERS, "train", scene.path, 99) as trainer:
        assert trainer.finish()[-1] == "nothing left"
    check_integrity(scene.path)
    check_books(scene.store)
    assert scene.store.running_update() is None
    views = {v["id"]: v for v in scene.store.turn_views(limit=1000)}
    unaccounted = [t for t in turn_ids if not views[t]["learned"] and views[t]["reason"] is None]
    assert unaccounted == []
    assert any(views[t]["learned"] for t in turn_ids)


def test_an_update_that_was_begun_is_resumed_by_the_next_trainer(tmp_path: Path) -> None:
    scene = Scene(tmp_path / "instar.db")
    for n in range(3):
        scene.corrected(f"t{n}")
    update = scene.store.begin_update(
        ["t0", "t1", "t2"], "base", '{"turns": ["t0", "t1", "t2"], "number": 1}'
    )
    with Worker(WORKERS, "train", scene.path, 1) as trainer:
        assert trainer.finish()[0] == f"resumed {update.id}"


def test_judges_in_several_processes_share_the_work_while_a_gateway_writes(tmp_path: Path) -> None:
    scene = Scene(tmp_path / "instar.db")
    for n in range(60):
        scene.answered(f"t{n}")
        scene.said(f"t{n}", "no")
    with Worker(WORKERS, "record", scene.path, "silent-") as gateway:
        gateway.read()
        with (
            Worker(WORKERS, "judge", scene.path, "j1") as one,
            Worker(WORKERS, "judge", scene.path, "j2") as two,
        ):
            judged = [line.split()[1] for line in one.finish() + two.finish()]
        gateway.kill()
    assert len(judged) == len(set(judged))
    assert {f"t{n}" for n in range(60)} == set(judged)
    check_integrity(scene.path)


def test_a_dead_judge_s_turns_are_taken_over_when_its_time_is_up(tmp_path: Path) -> None:
    scene = Scene(tmp_path / "instar.db")
    for n in range(100):
        scene.answered(f"t{n}")
        scene.said(f"t{n}", "no")
    with Worker(WORKERS, "judge", scene.path, "mortal") as judge:
        judge.read()
        judge.kill()
    done = {v["id"] for v in scene.store.turn_views(limit=1000) if v["link"]}
    everything = {f"t{n}" for n in range(100)}
    alive = open_store(url_of(scene.path))  # by the machine's own clock
    free = {item.turn.id for item in alive.lease_unjudged("heir", 1000, 0.0)}
    held = everything - done - free
    assert len(held) <= 4, "only what the dead judge had in hand"
    later = steady_now()
    after = open_store(url_of(scene.path), steady=lambda: Instant(later.boot, later.seconds + 600.0))
    assert {item.turn.id for item in after.lease_unjudged("heir", 1000, 60.0)} == free | held


def test_processes_that_open_a_new_database_together_all_find_it_whole(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "instar.db"
    workers = [Worker(WORKERS, "open", path) for _ in range(5)]
    assert [w.finish() for w in workers] == [["opened"]] * 5
    assert open_store(url_of(path)).counts()["turns"] == {}


@pytest.mark.parametrize("seed", range(3))
def test_a_kill_while_the_schema_is_made_leaves_nothing_or_all(tmp_path: Path, seed: int) -> None:
    path, chance = tmp_path / "instar.db", random.Random(seed)
    with Worker(WORKERS, "open", path) as opener:
        while not path.exists():
            time.sleep(0.001)
        time.sleep(chance.uniform(0, 0.4))
        opener.kill()
    with sqlite3.connect(path) as conn:
        tables = {name for (name,) in conn.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    assert not tables or {"turns", "documents", "alembic_version"} <= tables
    check_integrity(path)
    assert open_store(url_of(path)).counts()["turns"] == {}
