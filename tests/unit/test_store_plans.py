"""Nothing that happens with every request, or several times a second, may read the whole history."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event

from instar.records import NextKind, NextState
from tests.kit.store_scenes import Scene, make_outcome, make_turn

OFTEN: dict[str, Callable[[Scene], object]] = {
    "find by context": lambda s: s.store.find_by_context("key", ["a", "b"]),
    "find by context in a session": lambda s: s.store.find_by_context("key", ["a", "b"], "s"),
    "find by request": lambda s: s.store.find_by_request("key", "s", "r"),
    "newest of sessions": lambda s: s.store.newest_of("key", ["s", "other"], 8),
    "children": lambda s: s.store.children("a"),
    "episode": lambda s: s.store.episode("e"),
    "turn": lambda s: s.store.turn("a"),
    "open": lambda s: s.store.open_turns([make_turn("x")], [NextState("a", NextKind.USER_REPLY, "no", 1.0)]),
    "close": lambda s: s.store.close_turn("open", make_outcome("open")),
    "feedback": lambda s: s.feedback("a", "no", -1),
    "judge": lambda s: s.judge("waits", -1),
    "trainable": lambda s: s.store.trainable(8, current=0, max_staleness=4),
    "last activity": lambda s: s.store.last_activity_at(),
    "last served": lambda s: s.store.last_served_at(),
    "update": lambda s: s.store.begin_update(["a"], "base", "{}"),
    "live scores": lambda s: s.store.live_scores("v1"),
    "active version": lambda s: s.store.active_version(),
    "newest rating": lambda s: s.store.newest_rating(),
    "rated turns": lambda s: s.store.rated_turns("ann", 200),
    "page of turns": lambda s: s.store.turn_views(limit=5, before="waits"),
}
SMALL_INDEXES = ("ix_turns_to_", "ix_next_states_rated")
"""As small as the work that waits, or as the ratings."""
LARGE = ("turns", "next_states", "judgements", "uses", "update_turns", "pieces", "activations")


def plans(scene: Scene, use: Callable[[Scene], object]) -> list[str]:
    """What SQLite does for each statement of this use."""
    asked: list[tuple[str, Any]] = []
    engine = scene.store._db.engine

    def note(_conn: object, _cursor: object, statement: str, values: Any, *_: object) -> None:
        if statement.startswith(("SELECT", "UPDATE", "DELETE")):
            asked.append((statement, values))

    event.listen(engine, "before_cursor_execute", note)
    use(scene)
    event.remove(engine, "before_cursor_execute", note)
    with engine.connect() as conn:
        return [
            str(row[3])
            for statement, values in asked
            for row in conn.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", values)
        ]


@pytest.mark.parametrize("name", OFTEN)
def test_what_happens_often_reads_only_what_it_needs(tmp_path: Path, name: str) -> None:
    scene = Scene(tmp_path / "instar.db")
    scene.corrected("a")
    scene.answered("waits")
    scene.said("waits", "no")
    scene.feedback("waits", score=-1)
    scene.store.open_turns([make_turn("open")], [])
    steps = plans(scene, OFTEN[name])
    assert steps
    scans = [s for s in steps if s.startswith("SCAN") and s.split()[1] in LARGE]
    whole = [s for s in scans if not any(index in s for index in SMALL_INDEXES)]
    # The newest lines of a history are read from its end.
    from_the_end = {"last activity", "last served", "active version", "page of turns"}
    assert [s for s in whole if name not in from_the_end] == []
    if name.startswith("find by context"):
        assert any("ix_turns_key_id_context_hash (key_id=? AND context_hash=?)" in s for s in steps), steps
