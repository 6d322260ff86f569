"""The judge's loop: take a turn that something followed, judge it, write the judgement."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import structlog

from instar.errors import LeaseLost, StoreError
from instar.records import JudgeItem, Judgement
from instar.runtime import Clock, SystemClock, new_id
from instar.workers.heartbeat import Heartbeat
from instar.workers.stopping import StopFlag, stop_on_signals

log = structlog.get_logger()

BATCH = 8
"""Turns leased at once: few enough that a dead judge delays few, enough to spare transactions."""


class JudgeStore(Protocol):
    """The part of the store that the judge needs."""

    def lease_unjudged(self, worker: str, limit: int, ttl_s: float) -> list[JudgeItem]: ...

    def record_judgement(self, judgement: Judgement, lease: str) -> None: ...

    def heartbeat(self, loop: str, state: dict[str, Any]) -> None: ...


@dataclass(slots=True)
class JudgeLoop:
    """`judge` is the flow's judgement of one item by the whole chain; it knows no store."""

    store: JudgeStore
    judge: Callable[[JudgeItem], Judgement]
    worker: str
    lease_s: float
    poll_s: float
    judged: int = 0
    failed: int = 0

    def run(self, stop: StopFlag, heart: Heartbeat) -> None:
        """Work until `stop` is raised; a turn in hand is finished first (milliseconds on this chain)."""
        while not stop.is_set():
            if not self.step(stop):
                heart.say("waiting", judged=self.judged, failed=self.failed)
                stop.wait(self.poll_s)
            else:
                heart.say("judging", judged=self.judged, failed=self.failed)

    def step(self, stop: StopFlag) -> int:
        """Judge up to a batch of turns. Returns how many were taken."""
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

    def _one(self, item: JudgeItem) -> None:
        """The boundary of a lease: whatever goes wrong with one turn must not stop the others.

        The lease is left to run out. Another attempt follows, and the store sets the turn aside after three.
        """
        try:
            self.store.record_judgement(self.judge(item), item.lease)
            self.judged += 1
        except LeaseLost:
            log.info("lease_lost", turn=item.turn.id)
        except Exception:
            self.failed += 1
            log.exception("judging_failed", turn=item.turn.id)


def run_judge_loop(
    store: JudgeStore,
    judge: Callable[[JudgeItem], Judgement],
    *,
    lease_s: float,
    poll_s: float,
    clock: Clock | None = None,
) -> None:
    """Judge until SIGTERM or SIGINT. Main thread only."""
    stop = StopFlag()
    loop = JudgeLoop(store, judge, new_id("judge"), lease_s, poll_s)
    with stop_on_signals(stop), Heartbeat(store, "judge", clock or SystemClock()) as heart:
        loop.run(stop, heart)
