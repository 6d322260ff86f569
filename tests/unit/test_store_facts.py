"""The derived columns always follow from the facts, whatever happened, in whatever order."""

from __future__ import annotations

import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from instar.errors import StoreError
from instar.records import Judgement, NextKind, Source, TurnStatus
from instar.store.facts import refresh
from instar.store.schema import turns
from tests.kit.store_scenes import Scene, make_outcome, make_turn

DERIVED = (turns.c.id, turns.c.verdict_seq, turns.c.reason, turns.c.to_judge, turns.c.to_train)


class Life:
    """Everybody does something at random, sensible or not."""

    def __init__(self, scene: Scene, seed: int) -> None:
        self.scene, self.chance = scene, random.Random(seed)
        self.ids: list[str] = []
        self.leases: list[tuple[str, str]] = []

    def some_turn(self) -> str:
        return self.chance.choice(self.ids[-6:] or ["ghost"])

    def open(self) -> None:
        self.ids.append(f"t{len(self.ids)}")
        parent = self.chance.choice([None, *self.ids])
        turn = make_turn(
            self.ids[-1], parent_id=parent, learn=self.chance.random() < 0.9, pinned=self.chance.random() < 0.1,
            version=self.chance.choice(["base", "v1", "v2"]),
        )  # fmt: skip
        self.scene.store.open_turns([turn], [])

    def close(self) -> None:
        ids = [1] * self.chance.choice([0] + [1] * 7)
        status = self.chance.choice([TurnStatus.DONE] * 9 + [TurnStatus.CANCELLED])
        outcome = make_outcome("x", response_ids=ids, logprobs=[-1.0] * len(ids), status=status)
        self.scene.store.close_turn(self.some_turn(), outcome)

    def react(self) -> None:
        kind = self.chance.choice([NextKind.USER_REPLY, NextKind.TOOL_RESULT, NextKind.REGENERATE])
        self.scene.said(self.some_turn(), self.chance.choice("abc"), kind)

    def feedback(self) -> None:
        self.scene.feedback(self.some_turn(), self.chance.choice("ab"), self.chance.choice([1, -1, None]))

    def lease(self) -> None:
        items = self.scene.store.lease_unjudged("w", self.chance.randint(1, 4), 60)
        self.leases += [(item.turn.id, item.lease) for item in items]
        self.scene.steady.seconds += self.chance.choice([0, 0, 0, 0, 61])

    def judge(self) -> None:
        if not self.leases:
            self.lease()
        if self.leases:
            turn_id, lease = self.leases.pop(self.chance.randrange(len(self.leases)))
            score, source = self.chance.choice([1, -1, 0, None]), self.chance.choice(list(Source))
            correction = self.chance.choice([None, None, "so"])
            judgement = Judgement(turn_id, score, source, "l", 1.0, correction=correction)
            self.scene.store.record_judgement(judgement, lease)

    def begin(self) -> None:
        samples = self.scene.store.trainable(3, current=self.chance.choice([0, 2, 5]), max_staleness=4)
        self.scene.store.begin_update([s.turn_id for s in samples], "base", "{}", passes=2)

    def finish(self) -> None:
        running = self.scene.store.running_update()
        if running:
            number = self.scene.store.next_version_number()
            status = self.chance.choice(["proposed", "proposed", "rejected", "failed", "unused"])
            version = f"v{number}" if status == "proposed" else None
            self.scene.store.finish_update(
                running[0].id, status=status, version=version, note=None, activate=status == "proposed"
            )

    def sweep(self) -> None:
        if self.chance.random() < 0.1:
            self.scene.store.sweep_open("interrupted")

    def step(self) -> None:
        acts = [self.open, self.close, self.close, self.react, self.react, self.feedback, self.lease, self.judge,
                self.judge, self.begin, self.begin, self.finish, self.sweep]  # fmt: skip
        with suppress(StoreError):  # refused: then nothing changed, which the check below sees too
            self.chance.choice(acts)()


class Undo(Exception):
    pass


def derived_and_recomputed(scene: Scene) -> tuple[list[Any], list[Any]]:
    query = select(*DERIVED).order_by(turns.c.seq)
    before: list[Any] = []
    after: list[Any] = []
    with suppress(Undo), scene.store._db.writing() as conn:
        before = list(conn.execute(query))
        refresh(conn, [row.id for row in before])
        after = list(conn.execute(query))
        raise Undo
    return before, after


@pytest.mark.parametrize("seed", [2, 3, 5])
def test_what_is_derived_always_follows_from_the_facts(tmp_path: Path, seed: int) -> None:
    scene = Scene(tmp_path / "instar.db")
    life = Life(scene, seed)
    for _ in range(150):
        life.step()
        kept, recomputed = derived_and_recomputed(scene)
        assert kept == recomputed
    counts = scene.store.counts()
    assert counts["used"] > 0, "a life in which nothing was learned tests little"
    running = scene.store.running_update()
    free = set(scene.trainable())
    used = {v["id"] for v in scene.store.turn_views(limit=1000) if v["learned"]}
    assert not free & used
    assert not free & set(running[0].turn_ids if running else [])
