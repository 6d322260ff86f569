"""The judge's loop: take a turn that something followed, judge it, write the judgement."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import structlog

from instar.errors import StoreError
from instar.records import JudgeItem, Judgement
from instar.runtime import Clock, SystemClock, new_id
from instar.workers.heartbeat import Beats, Heartbeat
from instar.workers.slow_lane import Leases, Outcome, SlowLane, judge_one
from instar.workers.stopping import StopFlag, stop_on_signals

log = structlog.get_logger()

BATCH = 8
"""Turns leased at once: few enough that a dead judge delays few, enough to spare transactions."""

TOO_MANY = "the model judge was not asked: too many turns wait for it"


class JudgeStore(Leases, Beats, Protocol):
    """The part of the store that the judge needs."""

    def lease_unjudged(self, worker: str, limit: int, ttl_s: float) -> list[JudgeItem]: ...


class Judges(Protocol):
    """The whole chain, as the loop sees it. `now` is wall time in seconds."""

    def judge(self, item: JudgeItem, now: float) -> Judgement:
        """Whoever has to be asked; may take long."""
        ...

    def at_once(self, item: JudgeItem, now: float) -> Judgement | None:
        """Within milliseconds; None where that cannot be."""
        ...

    def without_model(self, item: JudgeItem, now: float, why: str) -> Judgement: ...

    def facts(self) -> dict[str, Any]:
        """What `status` should tell of it."""
        ...


@dataclass(slots=True)
class JudgeLoop:
    """Judges at once what can be, and leaves to the slow lane what only a model can tell."""

    store: JudgeStore
    judges: Judges
    worker: str
    lease_s: float
    poll_s: float
    clock: Clock = field(default_factory=SystemClock)
    counts: dict[Outcome, int] = field(default_factory=lambda: dict.fromkeys(Outcome, 0))
    lane: SlowLane = field(init=False)

    def __post_init__(self) -> None:
        self.lane = SlowLane(self.store, self._judge, self.lease_s, clock=self.clock)

    @property
    def judged(self) -> int:
        return self.counts[Outcome.JUDGED] + self.lane.counts[Outcome.JUDGED]

    @property
    def failed(self) -> int:
        return self.counts[Outcome.FAILED] + self.lane.counts[Outcome.FAILED]

    def run(self, stop: StopFlag, heart: Heartbeat) -> None:
        """Work until `stop` is raised; a turn that is judged at once is finished first."""
        while not stop.is_set():
            taken = self.step(stop)
            busy = taken or self.lane.waiting
            heart.say("judging" if busy else "waiting", **self.facts())
            if not taken:
                stop.wait(self.poll_s)
        self.lane.close()

    def step(self, stop: StopFlag) -> int:
        """Judge up to a batch of turns. Returns how many were taken."""
        self.lane.renew()
        try:
            items = self.store.lease_unjudged(self.worker, BATCH, self.lease_s)
        except StoreError as error:
            log.warning("no_lease", error=str(error))
            return 0
        for item in items:
            if stop.is_set():
                break
            self._one(item)
        return len(items)

    def facts(self) -> dict[str, Any]:
        return {
            "judged": self.judged,
            "failed": self.failed,
            "wait_for_model": self.lane.waiting,
            **self.judges.facts(),
        }

    def _one(self, item: JudgeItem) -> None:
        outcome = judge_one(self.store, self._at_once, item)
        if outcome is Outcome.LEFT:
            if self.lane.take(item):
                return
            outcome = judge_one(self.store, self._without_model, item)
        self.counts[outcome] += 1

    def _judge(self, item: JudgeItem) -> Judgement:
        return self.judges.judge(item, self.clock.now())

    def _at_once(self, item: JudgeItem) -> Judgement | None:
        return self.judges.at_once(item, self.clock.now())

    def _without_model(self, item: JudgeItem) -> Judgement:
        return self.judges.without_model(item, self.clock.now(), TOO_MANY)


def run_judge_loop(
    store: JudgeStore, judges: Judges, *, lease_s: float, poll_s: float, clock: Clock | None = None
) -> None:
    """Judge until SIGTERM or SIGINT. Main thread only."""
    clock = clock or SystemClock()
    stop = StopFlag()
    loop = JudgeLoop(store, judges, new_id("judge"), lease_s, poll_s, clock)
    with stop_on_signals(stop), Heartbeat(store, "judge", clock) as heart:
        loop.run(stop, heart)
