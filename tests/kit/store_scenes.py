"""Short ways to fill a store: a turn, its answer, what followed, a judgement."""

from __future__ import annotations

import functools
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from instar.flow.held_back import Lot
from instar.records import Judgement, Kind, NextKind, NextState, Source, Turn, TurnOutcome, TurnStatus
from instar.runtime import FakeClock
from instar.store import SqlStore, open_store
from instar.store.steady import Instant
from instar.store.training import LOT

SALT = "the same in all tests"


def url_of(path: Path) -> str:
    return f"sqlite:///{path}"


@functools.cache
def _empty_database() -> bytes:
    """Migrating takes longer than most tests: done once, copied for each."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "empty.db"
        open_store(url_of(path)).close()
        return path.read_bytes()


def new_store(path: Path, **clocks: Any) -> SqlStore:
    path.write_bytes(_empty_database())
    return open_store(url_of(path), **clocks)


@dataclass
class FakeSteady:
    """A lease clock that a test moves by hand."""

    boot: str = "boot-1"
    seconds: float = 1000.0

    def __call__(self) -> Instant:
        return Instant(self.boot, self.seconds)


def session_that_is(held_back: bool, share: float = 0.1, at: float = 100.0) -> str:
    """Name of a session of ann's that is held back in the hour of `at`, in a scene, or that is not."""
    lot = Lot(share, SALT)
    return next(s for s in (f"session {i}" for i in range(1000)) if lot.holds_back("ann", s, at) == held_back)


def make_turn(turn_id: str, **changes: Any) -> Turn:
    values: dict[str, Any] = {
        "id": turn_id,
        "session_id": "s",
        "episode_id": turn_id,
        "parent_id": None,
        "key_id": "key",
        "learner": "ann",
        "kind": Kind.MAIN,
        "version": "base",
        "pinned": False,
        "messages": [{"role": "user", "content": f"question {turn_id}"}],
        "request_hash": f"request-{turn_id}",
        "created_at": 100.0,
    }
    return Turn(**(values | changes))


def make_outcome(turn_id: str, **changes: Any) -> TurnOutcome:
    values: dict[str, Any] = {
        "status": TurnStatus.DONE,
        "prompt_ids": [1, 2, 3],
        "response_ids": [4, 5],
        "logprobs": [-0.5, -0.25],
        "answer": {"role": "assistant", "content": f"answer {turn_id}"},
        "context_hash": f"context-{turn_id}",
        "finish_reason": "stop",
        "closed_at": 101.0,
    }
    return TurnOutcome(**(values | changes))


@dataclass
class Scene:
    """A store with hands: what a gateway and a judge would do to it, in one word each."""

    path: Path
    clock: FakeClock = field(default_factory=FakeClock)
    steady: FakeSteady = field(default_factory=FakeSteady)

    def __post_init__(self) -> None:
        self.store: SqlStore = new_store(self.path, clock=self.clock, steady=self.steady)
        self.store.put_state(LOT, {"salt": SALT})

    def answered(self, turn_id: str, *, outcome: dict[str, Any] | None = None, **turn: Any) -> str:
        self.store.open_turns([make_turn(turn_id, **turn)], [])
        self.store.close_turn(turn_id, make_outcome(turn_id, **(outcome or {})))
        return turn_id

    def said(self, turn_id: str, text: str, kind: NextKind = NextKind.USER_REPLY) -> None:
        self.store.open_turns([], [NextState(turn_id, kind, text, created_at=200.0)])

    def feedback(
        self, turn_id: str, text: str = "", score: int | None = None, correction: str | None = None
    ) -> None:
        state = NextState(turn_id, NextKind.FEEDBACK, text, 300.0, score=score, correction=correction)
        self.store.add_feedback(state)

    def judge(self, turn_id: str, score: int | None, source: Source = Source.USER, **more: Any) -> None:
        """Judge one turn, which must be waiting; the leases of others are given back."""
        items = {item.turn.id: item for item in self.store.lease_unjudged("judge", 1000, 60.0)}
        link = more.pop("link", "a link")
        self.store.record_judgement(
            Judgement(turn_id, score, source, link, 250.0, **more), items[turn_id].lease
        )
        self.steady.seconds += 61.0

    def corrected(self, turn_id: str, score: int = -1, **turn: Any) -> str:
        """A turn that was answered, reacted to and judged."""
        self.answered(turn_id, **turn)
        self.said(turn_id, f"reaction to {turn_id}")
        self.judge(turn_id, score, hint="shorter")
        return turn_id

    def waiting(self) -> list[str]:
        """Ids that a judge would be given now. Takes leases, which then run out."""
        found = [item.turn.id for item in self.store.lease_unjudged("peek", 1000, 1.0)]
        self.steady.seconds += 2.0
        return found

    def trainable(self, current: int = 0, max_staleness: int = 4, limit: int = 100) -> list[str]:
        samples = self.store.trainable(limit, current=current, max_staleness=max_staleness)
        return [sample.turn_id for sample in samples]
