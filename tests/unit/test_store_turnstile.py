"""Writers of several processes take turns. Threads here hold separate locks, as processes do."""

from __future__ import annotations

import fcntl
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from instar.errors import StoreError
from instar.store import engine as store_engine
from instar.store.turnstile import Turnstile
from tests.kit.store_scenes import make_outcome, make_turn, new_store


def in_thread(work: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def test_one_at_a_time(tmp_path: Path) -> None:
    inside, most = 0, 0
    shared = Turnstile(tmp_path / "db")

    def work(turnstile: Turnstile) -> None:
        nonlocal inside, most
        for _ in range(50):
            with turnstile.passed(30):
                inside += 1
                most = max(most, inside)
                time.sleep(0.0001)
                inside -= 1

    gates = [shared, shared, Turnstile(tmp_path / "db"), Turnstile(tmp_path / "db")]
    threads = [in_thread(lambda gate=gate: work(gate)) for gate in gates]
    for thread in threads:
        thread.join()
    assert most == 1


def test_who_comes_back_at_once_does_not_pass_the_one_who_waits(tmp_path: Path) -> None:
    """Two greedy writers; the third must get through before either has had many more turns."""
    stop = threading.Event()
    order: list[str] = []

    def greedy(name: str) -> None:
        turnstile = Turnstile(tmp_path / "db")
        while not stop.is_set():
            with turnstile.passed(30):
                order.append(name)
                time.sleep(0.002)

    threads = [in_thread(lambda name=name: greedy(name)) for name in ("a", "b")]
    patient = Turnstile(tmp_path / "db")
    waits = []
    for _ in range(30):
        before = len(order)
        with patient.passed(30):
            waits.append(len(order) - before)
        time.sleep(0.001)
    stop.set()
    for thread in threads:
        thread.join()
    assert sorted(waits)[len(waits) // 2] <= 6, waits
    assert max(waits) < 40, waits


@pytest.mark.parametrize("held", ["_queue", "_turn"])
def test_a_writer_that_does_not_go_on_stops_the_others_for_a_while_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: str
) -> None:
    monkeypatch.setattr(store_engine, "BUSY_TIMEOUT_S", 0.05)
    store, stopped = new_store(tmp_path / "instar.db"), Turnstile(tmp_path / "instar.db")

    fcntl.flock(getattr(stopped, held), fcntl.LOCK_EX)
    for _ in range(2):
        with pytest.raises(StoreError, match="does not go on"):
            store.activate("v1", "x")
        assert store.active_version() == "base", "reading goes on"
    stopped.close()
    store.activate("v1", "x")
    assert store.active_version() == "v1"


def test_a_thread_that_waits_too_long_gives_up(tmp_path: Path) -> None:
    turnstile = Turnstile(tmp_path / "db")
    with turnstile.passed(1), pytest.raises(StoreError), turnstile.passed(0.01):
        pytest.fail("two at a time")
    with turnstile.passed(1):
        pass


def test_threads_share_a_store(tmp_path: Path) -> None:
    store = new_store(tmp_path / "instar.db")

    def work(name: str) -> None:
        for n in range(8):
            store.open_turns([make_turn(f"{name}{n}")], [])
            store.close_turn(f"{name}{n}", make_outcome(f"{name}{n}"))
            store.find_by_context("key", [f"context-{name}{n}"])

    threads = [in_thread(lambda name=name: work(name)) for name in "abcdef"]
    for thread in threads:
        thread.join()
    assert store.counts()["turns"] == {"done": 48}
