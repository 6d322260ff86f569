"""A process in the idle class gets its share of a core, and no more than that at the others' cost."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import pytest

from instar.trainers import share
from instar.trainers.share import Account, Guarantee, can_leave_idle, nice_for, processor_s, set_class

BUSY = "while True: pass"
IDLE = "import os; os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))\n"
needs_privilege = pytest.mark.skipif(not can_leave_idle(), reason="may not leave the idle class")


def test_a_nice_value_weighs_what_its_share_says() -> None:
    """By the kernel's own table of weights (sched_prio_to_weight), beside 1024 for nice 0."""
    weights = {0: 1024, 5: 335, 10: 110, 13: 56, 19: 15}
    assert [nice_for(s) for s in (0.5, 0.25, 0.1, 0.05, 0.0)] == [0, 5, 10, 13, 19]
    for nice, weight in weights.items():
        assert nice_for(weight / (weight + 1024)) == nice


def test_what_is_owed_grows_with_time_and_shrinks_with_use() -> None:
    account = Account(0.1)
    account.count(passed_s=0.2, used_s=0.0)
    assert account.owed_s == pytest.approx(0.02)
    account.count(passed_s=0.1, used_s=0.04)
    assert account.owed_s == pytest.approx(-0.01)
    assert account.next_look_s == pytest.approx(0.1)


def test_long_starvation_is_not_caught_up_in_one_go_and_plenty_is_forgotten() -> None:
    account = Account(0.1)
    account.count(passed_s=60.0, used_s=0.0)
    assert account.owed_s == share.MOST_OWED_S
    account.count(passed_s=60.0, used_s=60.0)
    assert account.owed_s == pytest.approx(-0.1 * share.WINDOW_S)
    assert account.next_look_s == share.LONGEST_PAUSE_S


class Machine:
    """A process that gets `alone` of a core in the idle class and half of one outside, on a clock of its own."""

    def __init__(self, alone: float) -> None:
        self.alone, self.lifted, self.now, self.used, self.up = alone, False, 0.0, 0.0, 0.0
        self.changes: list[bool] = []

    def lift(self, _pid: int, lifted: bool) -> None:
        self.lifted = lifted
        self.changes.append(lifted)

    def wait(self, seconds: float) -> bool:
        self.now += seconds
        self.used += seconds * (0.5 if self.lifted else self.alone)
        self.up += seconds * self.lifted
        return self.now > 30


@pytest.mark.parametrize(
    ("alone", "least", "most"), [(0.0, 0.095, 0.12), (0.04, 0.095, 0.12), (0.6, 0.59, 0.61)]
)
def test_the_share_is_kept_and_not_exceeded(
    monkeypatch: pytest.MonkeyPatch, alone: float, least: float, most: float
) -> None:
    machine = Machine(alone)
    guarantee = Guarantee(1, 0.1, used_s=lambda _pid: machine.used, lift=machine.lift)
    monkeypatch.setattr(share.time, "monotonic", lambda: machine.now)
    monkeypatch.setattr(guarantee._over, "wait", machine.wait)
    guarantee._run()
    assert least <= machine.used / machine.now <= most
    assert not machine.lifted, "it is left in the idle class"
    assert (machine.up > 0) == (alone < 0.1)


def test_it_ends_with_the_process_and_with_the_block() -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    changes: list[bool] = []
    with Guarantee(ended.pid, 0.1, lift=lambda _pid, lifted: changes.append(lifted)).held():
        pass
    assert changes == []
    assert not [t for t in threading.enumerate() if t.name == "guaranteed-share"]


@contextmanager
def running(*codes: str) -> Iterator[list[subprocess.Popen[bytes]]]:
    """In this session, so that no automatic group of the scheduler stands between them."""
    found = [subprocess.Popen([sys.executable, "-c", code]) for code in codes]
    try:
        yield found
    finally:
        for process in found:
            process.kill()
            process.wait()


@needs_privilege
def test_all_threads_of_a_process_change_their_class() -> None:
    code = (
        IDLE
        + "import threading, time; threading.Thread(target=time.sleep, args=(60,)).start(); time.sleep(60)"
    )
    with running(code) as [process]:
        until(lambda: psutil.Process(process.pid).num_threads() == 2)
        threads = [t.id for t in psutil.Process(process.pid).threads()]
        set_class(process.pid, True)
        assert {os.sched_getscheduler(t) for t in threads} == {os.SCHED_OTHER}
        set_class(process.pid, False)
        assert {os.sched_getscheduler(t) for t in threads} == {os.SCHED_IDLE}
    set_class(process.pid, True)  # it is gone, which is no error


def until(said: object) -> None:
    deadline = time.monotonic() + 60
    while not said():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.soak
@needs_privilege
@pytest.mark.parametrize("wanted", [0.1])
def test_beside_a_busy_loop_on_every_core_it_does_not_starve(wanted: float) -> None:
    """Two busy loops a core at normal priority; without the guarantee the idle class gets next to nothing."""
    loops = [BUSY] * (2 * (os.cpu_count() or 1))
    with running(IDLE + BUSY, *loops) as [trained, *_]:
        until(lambda: os.sched_getscheduler(trained.pid) == os.SCHED_IDLE)
        alone = share_over(trained.pid, 6.0)
        with Guarantee(trained.pid, wanted).held():
            held = share_over(trained.pid, 10.0)
        assert os.sched_getscheduler(trained.pid) == os.SCHED_IDLE
    print(f"share of a core: {alone:.3f} alone, {held:.3f} with {wanted} guaranteed")
    assert alone < 0.7 * wanted
    assert held > 0.7 * wanted


def share_over(pid: int, seconds: float) -> float:
    before, used = time.monotonic(), processor_s(pid)
    time.sleep(seconds)
    return (processor_s(pid) - used) / (time.monotonic() - before)
