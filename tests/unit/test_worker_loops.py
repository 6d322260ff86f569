"""The judge's and the trainer's loops: what they survive, and that they stop when told."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from instar.errors import LeaseLost, StoreError, TrainingError
from instar.records import JudgeItem, Judgement, Kind, Source, Turn
from instar.runtime import Backoff, FakeClock
from instar.workers.heartbeat import Heartbeat
from instar.workers.judge import TOO_MANY, JudgeLoop, run_judge_loop
from instar.workers.slow_lane import LONGEST
from instar.workers.stopping import StopFlag, Stopped, stop_on_signals, unwind_on_signals
from instar.workers.trainer import TrainerLoop, run_trainer_loop


def item(name: str) -> JudgeItem:
    turn = Turn(
        id=name, session_id="s", episode_id="e", parent_id=None, key_id="k", learner="l", kind=Kind.MAIN,
        version="base", pinned=False, messages=[], request_hash="h", created_at=0.0,
    )  # fmt: skip
    return JudgeItem(turn, [], lease=f"lease-{name}")


def judgement(taken: JudgeItem) -> Judgement:
    return Judgement(taken.turn.id, 1, Source.USER, "test", 0.0)


@dataclass
class MemoryStore:
    """Enough of a store for the loops, with errors on demand."""

    waiting: list[JudgeItem] = field(default_factory=list)
    recorded: list[tuple[str, str]] = field(default_factory=list)
    beats: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    renewed: list[list[str]] = field(default_factory=list)
    returned: list[str] = field(default_factory=list)
    lost: set[str] = field(default_factory=set)
    broken: bool = False
    when_empty: Callable[[], None] = lambda: None

    def lease_unjudged(self, worker: str, limit: int, ttl_s: float) -> list[JudgeItem]:
        if self.broken:
            self.broken = False
            raise StoreError("the database is busy")
        taken, self.waiting = self.waiting[:limit], self.waiting[limit:]
        if not taken:
            self.when_empty()
        return taken

    def record_judgement(self, given: Judgement, lease: str) -> None:
        if given.turn_id in self.lost:
            raise LeaseLost("somebody else has it")
        self.recorded.append((given.turn_id, lease))

    def renew_leases(self, held: Sequence[str], ttl_s: float) -> None:
        if self.broken:
            self.broken = False
            raise StoreError("the database is busy")
        self.renewed.append(list(held))

    def return_leases(self, held: Sequence[str]) -> None:
        self.returned += held

    def heartbeat(self, loop: str, state: dict[str, Any]) -> None:
        if self.broken:
            raise StoreError("the database is busy")
        self.beats.append((loop, state))


@dataclass
class FakeJudges:
    """A chain that knows at once, but for turns whose name begins with "slow": those wait for `answered`."""

    quick: Callable[[JudgeItem], Judgement] = judgement
    answered: threading.Event = field(default_factory=threading.Event)
    being_asked: threading.Event = field(default_factory=threading.Event)
    fails: bool = False
    reasons: list[str] = field(default_factory=list)

    def at_once(self, taken: JudgeItem, now: float) -> Judgement | None:
        return None if taken.turn.id.startswith("slow") else self.quick(taken)

    def judge(self, taken: JudgeItem, now: float) -> Judgement:
        self.being_asked.set()
        assert self.answered.wait(60)
        if self.fails:
            raise RuntimeError("broken off")
        return judgement(taken)

    def without_model(self, taken: JudgeItem, now: float, why: str) -> Judgement:
        self.reasons.append(why)
        return judgement(taken)

    def facts(self) -> dict[str, Any]:
        return {"problem": None}


def loop(store: MemoryStore, judge: Callable[[JudgeItem], Judgement] = judgement, **more: Any) -> JudgeLoop:
    return JudgeLoop(store, FakeJudges(judge), "judge-1", lease_s=60.0, poll_s=0.0, **more)


def slow_loop(store: MemoryStore, **more: Any) -> tuple[JudgeLoop, FakeJudges]:
    made = loop(store, **more)
    judges = made.judges
    assert isinstance(judges, FakeJudges)
    return made, judges


def until(said: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not said():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def test_every_turn_is_judged_under_its_lease() -> None:
    store = MemoryStore([item(str(n)) for n in range(11)])
    made = loop(store)
    assert made.step(StopFlag()) == 8
    assert made.step(StopFlag()) == 3
    assert made.step(StopFlag()) == 0
    assert store.recorded == [(str(n), f"lease-{n}") for n in range(11)]
    assert made.judged == 11


def test_one_turn_that_breaks_the_judge_does_not_stop_the_others() -> None:
    def judge(taken: JudgeItem) -> Judgement:
        if taken.turn.id == "bad":
            raise ZeroDivisionError
        return judgement(taken)

    store = MemoryStore([item("a"), item("bad"), item("b")])
    made = loop(store, judge)
    made.step(StopFlag())
    assert [turn for turn, _ in store.recorded] == ["a", "b"]
    assert (made.judged, made.failed) == (2, 1)


def test_lost_lease_is_not_counted_as_failure() -> None:
    store = MemoryStore([item("a"), item("b")], lost={"a"})
    made = loop(store)
    made.step(StopFlag())
    assert (made.judged, made.failed) == (1, 0)


def test_busy_store_is_asked_again() -> None:
    store = MemoryStore([item("a")], broken=True)
    made = loop(store)
    assert made.step(StopFlag()) == 0
    assert made.step(StopFlag()) == 1


def test_judge_stops_between_two_turns() -> None:
    stop = StopFlag()

    def judge(taken: JudgeItem) -> Judgement:
        stop.set()
        return judgement(taken)

    store = MemoryStore([item("a"), item("b")])
    loop(store, judge).step(stop)
    assert [turn for turn, _ in store.recorded] == ["a"]


def test_judge_loop_ends_at_sigterm_and_says_so() -> None:
    store = MemoryStore([item("a")], when_empty=lambda: os.kill(os.getpid(), signal.SIGTERM))
    run_judge_loop(store, FakeJudges(), lease_s=60.0, poll_s=30.0, clock=FakeClock())
    assert [turn for turn, _ in store.recorded] == ["a"]
    name, last = store.beats[-1]
    assert (name, last["doing"], last["judged"], last["problem"]) == ("judge", "stopped", 1, None)


def test_a_model_that_takes_its_time_keeps_nobody_else_waiting() -> None:
    store = MemoryStore([item("slow-1"), item("a"), item("slow-2"), item("b")])
    made, judges = slow_loop(store)
    made.step(StopFlag())
    assert judges.being_asked.wait(60)
    assert [turn for turn, _ in store.recorded] == ["a", "b"]
    assert made.facts()["wait_for_model"] == 2
    judges.answered.set()
    until(lambda: made.judged == 4)
    assert [turn for turn, _ in store.recorded] == ["a", "b", "slow-1", "slow-2"]
    assert made.facts() == {"judged": 4, "failed": 0, "wait_for_model": 0, "problem": None}


def test_leases_of_turns_that_wait_are_kept_alive() -> None:
    clock = FakeClock()
    store = MemoryStore([item("slow-1"), item("slow-2"), item("a")])
    made, judges = slow_loop(store, clock=clock)
    made.step(StopFlag())
    made.step(StopFlag())
    assert store.renewed == []
    clock.advance(20.0)
    made.step(StopFlag())
    made.step(StopFlag())
    assert store.renewed == [["lease-slow-1", "lease-slow-2"]]
    clock.advance(20.0)
    store.broken = True
    made.step(StopFlag())
    made.step(StopFlag())
    assert len(store.renewed) == 2, "after a busy moment it is tried again"
    judges.answered.set()
    until(lambda: made.lane.waiting == 0)
    clock.advance(20.0)
    made.step(StopFlag())
    assert len(store.renewed) == 2


def test_what_is_in_hand_at_the_end_is_given_back_and_not_recorded() -> None:
    store = MemoryStore([item("slow-1"), item("slow-2")])
    made, judges = slow_loop(store)
    made.step(StopFlag())
    assert judges.being_asked.wait(60)
    made.lane.close()
    judges.answered.set()
    assert made.lane._thread is not None
    made.lane._thread.join(60)
    assert not made.lane._thread.is_alive()
    assert store.returned == ["lease-slow-1", "lease-slow-2"]
    assert store.recorded == []
    assert made.failed == 0


def test_a_stop_raises_the_flag_and_closes_the_lane() -> None:
    stop = StopFlag()
    store = MemoryStore([item("slow-1")], when_empty=stop.set)
    made, judges = slow_loop(store)
    made.run(stop, Heartbeat(store, "judge", FakeClock()))
    assert store.returned == ["lease-slow-1"]
    judges.answered.set()


def test_a_turn_that_breaks_the_model_does_not_stop_the_next() -> None:
    store = MemoryStore([item("slow-1")])
    made, judges = slow_loop(store)
    judges.fails = True
    judges.answered.set()
    made.step(StopFlag())
    until(lambda: made.failed == 1)
    judges.fails = False
    store.waiting = [item("slow-2")]
    made.step(StopFlag())
    until(lambda: made.judged == 1)
    assert [turn for turn, _ in store.recorded] == ["slow-2"]


def test_more_turns_than_a_model_can_manage_are_judged_without_it() -> None:
    store = MemoryStore([item(f"slow-{n}") for n in range(LONGEST + 3)])
    made, judges = slow_loop(store)
    while made.step(StopFlag()):
        pass
    assert judges.reasons == [TOO_MANY] * 3
    assert [turn for turn, _ in store.recorded] == [f"slow-{n}" for n in range(LONGEST, LONGEST + 3)]
    judges.answered.set()
    until(lambda: made.judged == LONGEST + 3)


@dataclass
class Report:
    worked: bool = False
    doing: str = "waiting"
    facts: dict[str, Any] = field(default_factory=dict)


def trainer(step: Callable[[], Any]) -> tuple[TrainerLoop, list[float], Heartbeat]:
    slept: list[float] = []
    heart = Heartbeat(MemoryStore(), "trainer", FakeClock())
    return TrainerLoop(step, heart, slept.append, poll_s=0.5), slept, heart


def in_turns(outcomes: list[Any]) -> Callable[[], Any]:
    """A step that gives the next of these each time, or raises it."""

    def step() -> Any:
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    return step


def test_errors_slow_the_trainer_down_and_success_makes_it_forget() -> None:
    outcomes: list[Any] = [
        TrainingError("nan"),
        StoreError("busy"),
        TrainingError("nan"),
        Report(),
        TrainingError("nan"),
    ]

    made, slept, _ = trainer(in_turns(outcomes))
    for _ in range(5):
        made.once()
    assert slept == [1.0, 2.0, 4.0, 0.5, 1.0]
    assert made.failed == 4


def test_an_error_takes_the_place_of_what_was_waited_for_until_a_step_succeeds() -> None:
    outcomes: list[Any] = [
        Report(facts={"why": "5 of 8 judged turns", "later": "waits for 02:00"}),
        TrainingError("no memory"),
        Report(facts={"why": "6 of 8 judged turns", "later": None}),
    ]
    told = []

    made, _, heart = trainer(in_turns(outcomes))
    for _ in range(3):
        made.once()
        told.append((heart._state["doing"], heart._state["why"], heart._state["later"]))
    assert told == [
        ("waiting", "5 of 8 judged turns", "waits for 02:00"),
        ("waiting after an error", "no memory", None),
        ("waiting", "6 of 8 judged turns", None),
    ]


def test_an_update_is_followed_by_the_next_step_at_once() -> None:
    made, slept, _ = trainer(lambda: Report(worked=True, doing="published v1"))
    made.once()
    assert slept == []


def test_unexpected_error_ends_the_trainer() -> None:
    def step() -> Any:
        raise ZeroDivisionError

    made, _, _ = trainer(step)
    with pytest.raises(ZeroDivisionError):
        made.once()


def test_trainer_is_unwound_in_the_middle_of_a_step() -> None:
    store = MemoryStore()
    unwound = []

    def step() -> Any:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            threading.Event().wait(30)
        except Stopped:
            unwound.append(True)
            raise

    run_trainer_loop(store, step, poll_s=0.5, clock=FakeClock())
    assert unwound == [True]
    assert store.beats[-1][1]["doing"] == "stopped"


def test_second_signal_does_not_disturb_the_unwinding() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with unwind_on_signals():
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)
            finished = True
    assert finished
    assert signal.getsignal(signal.SIGTERM) == before


def test_signals_raise_the_flag_and_handlers_are_put_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    flag = StopFlag()
    with stop_on_signals(flag):
        os.kill(os.getpid(), signal.SIGINT)
        assert flag.wait(30)
    assert flag.wait(30)
    assert signal.getsignal(signal.SIGTERM) == before
    assert not StopFlag().wait(0.0)


def test_heartbeat_tells_since_when_and_keeps_facts() -> None:
    clock = FakeClock(wall=100.0)
    store = MemoryStore()
    heart = Heartbeat(store, "judge", clock)
    heart.say("waiting", judged=1)
    clock.advance(5)
    heart.say("waiting", judged=2)
    heart.beat()
    assert store.beats[-1] == ("judge", {"doing": "waiting", "since": 100.0, "judged": 2})
    heart.say("judging")
    heart.beat()
    assert store.beats[-1][1] == {"doing": "judging", "since": 105.0, "judged": 2}


def test_heartbeat_survives_a_busy_store() -> None:
    store = MemoryStore(broken=True)
    heart = Heartbeat(store, "judge", FakeClock())
    heart.beat()
    store.broken = False
    heart.beat()
    assert len(store.beats) == 1


def test_heartbeat_goes_on_while_the_loop_works() -> None:
    store = MemoryStore()
    beaten = threading.Event()

    def beat(name: str, state: dict[str, Any]) -> None:
        store.beats.append((name, state))
        if len(store.beats) > 3:
            beaten.set()

    store.heartbeat = beat  # type: ignore[method-assign]
    with Heartbeat(store, "trainer", FakeClock(), interval_s=0.01):
        assert beaten.wait(30)


def test_backoff_is_bounded() -> None:
    backoff = Backoff(1.0, 5.0)
    assert [backoff.fail() for _ in range(4)] == [1.0, 2.0, 4.0, 5.0]
    backoff.reset()
    assert backoff.fail() == 1.0
