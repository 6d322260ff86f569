"""A second thread for turns that only a model can judge, so that the others do not wait behind them."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Protocol

import structlog

from instar.errors import LeaseLost, StoreError
from instar.records import JudgeItem, Judgement
from instar.runtime import Clock, SystemClock

log = structlog.get_logger()

LONGEST = 64
"""Turns that may wait for the model: with more, it is too slow for all that is said."""


class Leases(Protocol):
    """The part of the store that keeps turns in hand."""

    def record_judgement(self, judgement: Judgement, lease: str) -> None: ...

    def renew_leases(self, held: Sequence[str], ttl_s: float) -> None: ...

    def return_leases(self, held: Sequence[str]) -> None: ...


class Outcome(StrEnum):
    JUDGED = "judged"
    LEFT = "left"  # to somebody who takes longer
    LOST = "lost"  # in other hands meanwhile
    FAILED = "failed"


def judge_one(store: Leases, judge: Callable[[JudgeItem], Judgement | None], item: JudgeItem) -> Outcome:
    """The boundary of a lease: whatever goes wrong with one turn must not stop the others.

    The lease is left to run out. Another attempt follows, and the store sets the turn aside after three.
    """
    try:
        judged = judge(item)
        if judged is None:
            return Outcome.LEFT
        store.record_judgement(judged, item.lease)
    except LeaseLost:
        log.info("lease_lost", turn=item.turn.id)
        return Outcome.LOST
    except Exception:
        log.exception("judging_failed", turn=item.turn.id)
        return Outcome.FAILED
    return Outcome.JUDGED


class SlowLane:
    """Judges one turn after the other in a thread that begins with the first. `judge` may block for long.

    The leases of the turns that wait are kept alive by `renew`, which the loop calls often, and given back by
    `close`, so that neither a slow model nor a stop counts as an attempt that failed.
    """

    def __init__(
        self,
        store: Leases,
        judge: Callable[[JudgeItem], Judgement],
        lease_s: float,
        *,
        longest: int = LONGEST,
        clock: Clock | None = None,
    ) -> None:
        self._store, self._judge, self._lease_s, self._longest = store, judge, lease_s, longest
        self._clock = clock or SystemClock()
        self._renewed_at = self._clock.monotonic()
        self._items: queue.SimpleQueue[JudgeItem] = queue.SimpleQueue()
        self._held: dict[str, None] = {}
        self._lock = threading.Lock()
        self._closing = False
        self._thread: threading.Thread | None = None
        self.counts = dict.fromkeys(Outcome, 0)

    @property
    def waiting(self) -> int:
        """Turns in hand, the one being judged included."""
        return len(self._held)

    def take(self, item: JudgeItem) -> bool:
        """Queue a turn; False when too many wait already."""
        if self.waiting >= self._longest:
            return False
        with self._lock:
            self._held[item.lease] = None
        self._items.put(item)
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="slow-lane", daemon=True)
            self._thread.start()
        return True

    def renew(self) -> None:
        """Keep the leases alive; does nothing before a third of their time is gone."""
        if not self._held or self._clock.monotonic() - self._renewed_at < self._lease_s / 3:
            return
        try:
            self._store.renew_leases(self._leases(), self._lease_s)
            self._renewed_at = self._clock.monotonic()
        except StoreError as error:
            log.warning("leases_not_renewed", error=str(error))

    def close(self) -> None:
        """Record nothing more and give back what is in hand. Does not wait for a model that is being asked."""
        self._closing = True
        try:
            if self._held:
                self._store.return_leases(self._leases())
        except StoreError as error:
            log.warning("leases_not_returned", error=str(error))

    def _leases(self) -> list[str]:
        with self._lock:
            return list(self._held)

    def _work(self) -> None:
        while not self._closing:
            item = self._items.get()
            outcome = judge_one(self._store, self._unless_closing, item)
            with self._lock:
                del self._held[item.lease]
            self.counts[outcome] += 1

    def _unless_closing(self, item: JudgeItem) -> Judgement | None:
        try:
            judged = self._judge(item)
        except Exception:
            if not self._closing:  # else it was broken off
                raise
            return None
        return None if self._closing else judged
