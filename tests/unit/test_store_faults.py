"""The disk fails, the file is damaged, somebody holds the lock: a clear error, nothing by half, usable afterwards."""

from __future__ import annotations

import resource
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event, select

from instar.errors import StoreError
from instar.records import Fate, Judgement, NextKind, NextState, Source
from instar.store import engine as store_engine
from instar.store import open_store
from instar.store.schema import metadata
from tests.kit.store_scenes import Scene, make_outcome, make_turn, new_store, url_of


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    """A store in which every kind of write has something to do."""
    scene = Scene(tmp_path / "instar.db")
    for turn_id in ("a", "b"):
        scene.corrected(turn_id)
    scene.corrected("liked", 1)
    scene.answered("waits")
    scene.said("waits", "no")
    scene.store.open_turns([make_turn("open", parent_id="a")], [])
    return scene


def everything(scene: Scene) -> dict[str, list[Any]]:
    """All rows of all tables."""
    with scene.store._db.reading() as conn:
        tables = metadata.sorted_tables
        return {t.name: sorted(map(tuple, conn.execute(select(t))), key=repr) for t in tables}


def set_aside(scene: Scene) -> None:
    scene.steady.seconds += 10**6
    for _ in range(4):
        scene.store.lease_unjudged("w", 9, 0.0)


WRITES: dict[str, Callable[[Scene], object]] = {
    "open": lambda s: s.store.open_turns(
        [make_turn("n1"), make_turn("n2")], [NextState("a", NextKind.USER_REPLY, "and", 1.0)]
    ),
    "close": lambda s: s.store.close_turn("open", make_outcome("open")),
    "feedback": lambda s: s.feedback("a", "better", 1),
    "sweep": lambda s: s.store.sweep_open("interrupted"),
    "lease": lambda s: s.store.lease_unjudged("w", 9, 60),
    "poison": set_aside,
    "stale": lambda s: s.store.trainable(9, current=99, max_staleness=4),
    "begin": lambda s: s.store.begin_update(["a", "b"], "base", "{}"),
    "activate": lambda s: s.store.activate("v9", "by hand"),
    "decide": lambda s: s.store.decide("v9", Fate.ROLLED_BACK, "worse", activate="v8"),
    "hold back": lambda s: s.store.trainable(9, current=0, max_staleness=4, held_back=0.99),
    "leave out": lambda s: s.store.leave_out_long(["a"]),
    "beat": lambda s: s.store.heartbeat("judge", {}),
    "document": lambda s: s.store.put_state("x", {}),
}
ENDINGS: dict[str, dict[str, Any]] = {
    "proposed": {"version": "v1", "activate": True, "documents": {"m": {"n": 1}}},
    "proposed too late": {"version": "v1", "activate": True, "if_active": "v9"},
    "proposed to wait": {"version": "v1", "activate": False, "waits": True},
    "rejected": {"version": "v1", "activate": False},
    "unused": {"version": None, "activate": False},
}


@contextmanager
def fails_at(scene: Scene, nth: int) -> Iterator[list[int]]:
    """The nth statement of the block (or its commit) fails as a full disk makes it fail."""
    seen = [0]

    def count(*_: object) -> None:
        seen[0] += 1
        if seen[0] == nth:
            raise sqlite3.OperationalError("database or disk is full")

    engine = scene.store._db.engine
    event.listen(engine, "before_cursor_execute", count)
    event.listen(engine, "commit", count)
    try:
        yield seen
    finally:
        event.remove(engine, "before_cursor_execute", count)
        event.remove(engine, "commit", count)


def fail_everywhere(scene: Scene, write: Callable[[], object], *, steps: bool = False) -> None:
    """Fail at each statement in turn; then let it pass.

    Unless the write is made of several steps, a failure leaves everything as it was.
    """
    before = everything(scene)
    for nth in range(1, 200):
        failure: StoreError | None = None
        with fails_at(scene, nth) as seen:
            try:
                write()
            except StoreError as error:
                failure = error
        if failure is None:
            assert seen[0] < nth, "a failure was swallowed"
            assert everything(scene) != before
            return
        assert "disk is full" in str(failure)
        assert steps or everything(scene) == before, f"statement {nth} left something"
    pytest.fail("it never ended")


@pytest.mark.parametrize("name", WRITES)
def test_a_write_that_fails_anywhere_leaves_nothing_and_works_when_tried_again(
    scene: Scene, name: str
) -> None:
    fail_everywhere(scene, lambda: WRITES[name](scene), steps=name == "poison")


@pytest.mark.parametrize("status", ENDINGS)
def test_an_update_whose_end_fails_anywhere_goes_on_running(scene: Scene, status: str) -> None:
    update = scene.store.begin_update(["a", "b"], "base", "{}")
    end = ENDINGS[status]
    fail_everywhere(
        scene, lambda: scene.store.finish_update(update.id, status=status.split()[0], note=None, **end)
    )


def test_a_judgement_whose_write_fails_anywhere_keeps_its_lease(scene: Scene) -> None:
    [item] = scene.store.lease_unjudged("w", 9, 60)
    judgement = Judgement("waits", 1, Source.USER, "link", 1.0)
    fail_everywhere(scene, lambda: scene.store.record_judgement(judgement, item.lease))


@contextmanager
def no_file_grows_beyond(size: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_disk_that_takes_no_more_bytes_then_takes_them_again(scene: Scene) -> None:
    """The operating system itself refuses the write, wherever SQLite happens to be with it."""
    log_size = Path(f"{scene.path}-wal").stat().st_size
    recorded: list[str] = []
    refused = 0
    for n in range(60):
        with no_file_grows_beyond(log_size + 3000 * n):
            try:
                scene.store.open_turns(
                    [make_turn(f"n{n}", messages=[{"role": "user", "content": "x" * 9000}])], []
                )
                recorded.append(f"n{n}")
            except StoreError:
                refused += 1
    assert refused > 5
    scene.answered("after")
    found = {v["id"] for v in scene.store.turn_views(limit=1000)}
    assert found == {"a", "b", "liked", "waits", "open", "after", *recorded}
    scene.store.close()
    with sqlite3.connect(scene.path) as conn:
        assert conn.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def test_a_database_that_may_not_grow_is_a_full_disk(scene: Scene) -> None:
    before = everything(scene)

    def limit(connection: sqlite3.Connection, *_: object) -> None:
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count={pages}")

    event.listen(scene.store._db.engine, "checkout", limit)
    with pytest.raises(StoreError, match=r"disk is full.*Free some space"):
        scene.store.put_state("large", {"x": "y" * 500_000})
    event.remove(scene.store._db.engine, "checkout", limit)
    assert everything(scene) == before
    assert scene.store.active_version() == "base"


def test_a_database_held_by_another_program_is_an_error_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_engine, "BUSY_TIMEOUT_S", 0.05)
    store = new_store(tmp_path / "instar.db")
    other = sqlite3.connect(tmp_path / "instar.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreError, match="another program holds it"):
        store.activate("v1", "x")
    assert store.active_version() == "base", "reading goes on"
    other.execute("ROLLBACK")
    store.activate("v1", "x")
    assert store.active_version() == "v1"
    other.close()


def test_a_write_holds_the_lock_from_its_start(scene: Scene) -> None:
    """Else what it read first could be outdated by the time it writes, and SQLite would refuse it in its middle."""
    other = sqlite3.connect(scene.path, timeout=0, isolation_level=None)
    with scene.store._db.writing(), pytest.raises(sqlite3.OperationalError, match="locked"):
        other.execute("BEGIN IMMEDIATE")
    with scene.store._db.reading():
        other.execute("BEGIN IMMEDIATE")
    other.close()


def test_a_damaged_file_says_what_to_do(scene: Scene) -> None:
    for n in range(20):
        scene.answered(f"t{n}")
    scene.store.close()
    data = bytearray(scene.path.read_bytes())
    data[4096:] = b"\xa5" * (len(data) - 4096)
    scene.path.write_bytes(data)
    with pytest.raises(StoreError, match=r"is damaged.*restore a backup"):
        open_store(url_of(scene.path)).turn_views()


def test_a_file_that_is_no_database_is_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("my notes " * 1000)
    with pytest.raises(StoreError, match="is not a database"):
        open_store(url_of(path))
    assert path.read_text() == "my notes " * 1000


def test_a_database_that_may_not_be_written_to(scene: Scene) -> None:
    def read_only(connection: sqlite3.Connection, *_: object) -> None:
        connection.execute("PRAGMA query_only=ON")

    event.listen(scene.store._db.engine, "checkout", read_only)
    with pytest.raises(StoreError, match="write permission"):
        scene.store.activate("v1", "x")


@pytest.mark.parametrize(
    "url", ["sqlite://", "sqlite:///:memory:", "nonsense", "nosuch:///x", "sqlite:////proc/nowhere/instar.db"]
)
def test_an_address_that_cannot_be_used_says_so(url: str) -> None:
    with pytest.raises(StoreError):
        open_store(url)


def test_a_missing_piece_is_damage_not_an_empty_message(scene: Scene) -> None:
    with sqlite3.connect(scene.path) as conn:
        conn.execute("DELETE FROM pieces")
    with pytest.raises(StoreError, match="is damaged"):
        scene.store.turn("a")


def test_a_closed_store_says_so(scene: Scene) -> None:
    scene.store.close()
    scene.store.close()
    for use in (scene.store.active_version, lambda: scene.store.activate("v1", "x")):
        with pytest.raises(StoreError, match="closed"):
            use()


DATABASE_FILES = ("instar.db", "instar.db-wal", "instar.db-shm", "instar.db-queue", "instar.db-turn")


def test_conversations_are_nobody_else_s_business(tmp_path: Path) -> None:
    path = tmp_path / "instar.db"
    store = open_store(url_of(path))
    store.activate("v1", "x")
    modes = {p.name: oct(p.stat().st_mode & 0o777) for p in tmp_path.iterdir()}
    assert modes == dict.fromkeys(DATABASE_FILES, "0o600")


def test_writes_reach_the_disk_before_they_are_reported(scene: Scene) -> None:
    with scene.store._db.engine.connect() as conn:
        settings = {
            name: conn.exec_driver_sql(f"PRAGMA {name}").scalar()
            for name in ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
        }
    assert settings == {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1, "busy_timeout": 10_000}
