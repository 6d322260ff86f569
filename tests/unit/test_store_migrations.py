from __future__ import annotations

import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Engine, event

from instar.errors import StoreError
from instar.store import open_store
from instar.store.migrate import alembic_config
from instar.store.schema import REVISION, metadata
from tests.kit.store_scenes import url_of


def test_the_migrations_make_exactly_the_schema(tmp_path: Path) -> None:
    store = open_store(url_of(tmp_path / "instar.db"))
    with store._db.engine.connect() as conn:
        context = MigrationContext.configure(
            conn, opts={"compare_type": True, "compare_server_default": True}
        )
        assert compare_metadata(context, metadata) == []
        assert context.get_current_revision() == REVISION
        partial = conn.exec_driver_sql(
            "SELECT name FROM sqlite_master WHERE sql LIKE '%WHERE to_%= 1%'"
        ).scalars()
        assert set(partial) == {"ix_turns_to_judge", "ix_turns_to_train"}
        rated = conn.exec_driver_sql(
            "SELECT sql FROM sqlite_master WHERE name = 'ix_next_states_rated'"
        ).scalar()
        assert str(rated).endswith("WHERE score IS NOT NULL OR correction IS NOT NULL")


def test_the_newest_migration_is_the_one_that_the_schema_names() -> None:
    assert ScriptDirectory.from_config(alembic_config()).get_heads() == [REVISION]


def test_opening_again_changes_nothing_and_loads_no_alembic(tmp_path: Path) -> None:
    path = tmp_path / "instar.db"
    open_store(url_of(path)).close()
    before = path.read_bytes()
    code = (
        "import sys; from instar.store import open_store; open_store(sys.argv[1]).close();"
        "sys.exit('alembic' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, url_of(path)], check=True)
    assert path.read_bytes() == before


def test_a_database_of_a_newer_instar_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "instar.db"
    open_store(url_of(path)).close()
    with sqlite3.connect(path) as conn:
        conn.execute("UPDATE alembic_version SET version_num = '9999'")
    before = path.read_bytes()
    with pytest.raises(StoreError, match=r"newer Instar.*9999.*Update Instar"):
        open_store(url_of(path))
    assert path.read_bytes() == before


def test_a_migration_that_fails_anywhere_leaves_the_old_schema(tmp_path: Path) -> None:
    path, nth, seen = tmp_path / "instar.db", 0, 0

    def count(*_: object) -> None:
        nonlocal seen
        seen += 1
        if seen == nth:
            raise sqlite3.OperationalError("disk I/O error")

    def tables() -> int:
        with sqlite3.connect(path) as conn:
            return int(conn.execute("SELECT count(*) FROM sqlite_master").fetchone()[0])

    event.listen(Engine, "before_cursor_execute", count)
    event.listen(Engine, "commit", count)
    try:
        failures = 0
        while True:
            nth, seen = nth + 1, 0
            try:
                open_store(url_of(path)).close()
                break
            except StoreError:
                failures += 1
                assert tables() == 0
    finally:
        event.remove(Engine, "before_cursor_execute", count)
        event.remove(Engine, "commit", count)
    assert failures > len(metadata.tables)
    assert open_store(url_of(path)).counts()["turns"] == {}


def test_threads_that_open_several_databases_do_not_disturb_each_other(tmp_path: Path) -> None:
    problems: list[StoreError] = []

    done: list[int] = []

    def work(n: int) -> None:
        try:
            store = open_store(url_of(tmp_path / f"{n % 2}.db"))
            store.put_state(f"{n}", {})
            done.append(n)
        except StoreError as error:
            problems.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (problems, sorted(done)) == ([], list(range(6)))
