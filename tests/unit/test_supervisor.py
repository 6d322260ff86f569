"""The supervisor: dead children are started again, live ones end in order, none outlives it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from instar.config import load_settings
from instar.errors import ConfigError
from instar.workers.child import Child, last_lines, rotate_log
from instar.workers.pids import created_at, end_orphans, is_same_process, read_pids, write_pids
from instar.workers.stopping import StopFlag
from instar.workers.supervisor import Supervisor, build_supervisor, make_state

POLITE = "import sys; sys.stdin.read()"
"""A child that ends when its lifeline breaks, and dies of SIGTERM."""


DEAF = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
open({up!r}, "w").close()
time.sleep(600)
"""
"""A child that does not hear SIGTERM; it makes the file `up` once it is deaf."""


def child(tmp_path: Path, name: str, program: str) -> Child:
    made = Child(name, [sys.executable, "-c", program], tmp_path / f"{name}.log")
    made.backoff.first_s = 0.01
    return made


def supervisor(
    tmp_path: Path, programs: dict[str, str], *, ready: Callable[[], bool] = lambda: True
) -> tuple[Supervisor, list[str]]:
    events: list[str] = []
    children = {name: child(tmp_path, name, program) for name, program in programs.items()}
    made = Supervisor(children, tmp_path, events.append, ready, lambda: events.append("ready"))
    made.drain_s = made.stop_s = 10.0
    return made, events


def until(condition: Callable[[], bool]) -> None:
    for _ in range(600):
        if condition():
            return
        time.sleep(0.05)
    raise AssertionError("it never happened")


def test_dead_child_is_started_again_and_counted(tmp_path: Path) -> None:
    marker = tmp_path / "once"
    dies_once = (
        f"import os, sys; p = {str(marker)!r}\nif not os.path.exists(p): open(p, 'w'); sys.exit(3)\n{POLITE}"
    )
    made, events = supervisor(tmp_path, {"engine": POLITE, "gateway": POLITE, "judge": dies_once})

    def tell(text: str) -> None:
        events.append(text)
        if "judge started again" in text:
            os.kill(os.getpid(), signal.SIGTERM)

    made.events = tell
    assert made.run() == 0
    assert any("judge ended (status 3, see" in event for event in events)
    record = read_pids(tmp_path)["loops"]
    assert record["judge"]["restarts"] == 1
    assert record["gateway"]["restarts"] == 0
    assert not any(loop["alive"] for loop in record.values())


def test_back_loops_start_after_the_front_is_ready(tmp_path: Path) -> None:
    asked: list[bool] = []
    made, events = supervisor(tmp_path, {"engine": POLITE, "gateway": POLITE, "trainer": POLITE})

    def ready() -> bool:
        asked.append(bool(made.children["trainer"].started_at))
        if len(asked) == 3:
            made.on_ready = lambda: (events.append("ready"), made.signals.set())[0]
            return True
        return False

    made.ready = ready
    assert made.run() == 0
    assert asked == [False, False, False]
    assert made.children["trainer"].started_at > 0
    assert "ready" in events


def test_gateway_ends_before_the_engine_is_told(tmp_path: Path) -> None:
    order = tmp_path / "order"
    notes = (
        "import signal, sys, time\n"
        "def end(*_):\n"
        "    time.sleep({pause}); open({path!r}, 'a').write('{name} '); sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, end); open({path!r} + '.{name}', 'w').close()\n"
        "while True: time.sleep(0.05)\n"
    )
    programs = {
        name: notes.format(pause=pause, path=str(order), name=name)
        for name, pause in (("engine", 0.0), ("gateway", 0.3), ("judge", 0.0))
    }
    made, _ = supervisor(tmp_path, programs)
    made.ready = lambda: all(Path(f"{order}.{name}").exists() for name in ("engine", "gateway"))
    made.on_ready = lambda: None
    made.signals = WaitFor(Path(f"{order}.judge").exists)
    assert made.run() == 0
    assert order.read_text().split()[0] == "gateway"
    assert set(order.read_text().split()) == {"gateway", "engine", "judge"}


class WaitFor(StopFlag):
    """Raised by itself as soon as a condition holds."""

    def __init__(self, condition: Callable[[], bool]) -> None:
        super().__init__()
        self._condition = condition

    def wait(self, timeout_s: float) -> bool:
        if self._condition():
            self.set()
        return super().wait(timeout_s)


def test_child_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    up = tmp_path / "up"
    deaf = DEAF.format(up=str(up))
    made = child(tmp_path, "judge", deaf)
    made.start()
    until(up.exists)
    made.stop(0.2)
    assert made.last_exit == -signal.SIGKILL


def test_second_interrupt_stops_at_once(tmp_path: Path) -> None:
    up = tmp_path / "up"
    deaf = DEAF.format(up=str(up))
    made, events = supervisor(tmp_path, {"gateway": deaf}, ready=up.exists)
    made.drain_s = 300.0

    def tell(text: str) -> None:
        events.append(text)
        if text.startswith("stopping"):
            os.kill(os.getpid(), signal.SIGINT)

    made.events = tell
    made.on_ready = lambda: os.kill(os.getpid(), signal.SIGINT)
    assert made.run() == 130
    assert made.children["gateway"].last_exit == -signal.SIGKILL


def test_user_error_of_a_child_at_the_start_reaches_the_user(tmp_path: Path) -> None:
    failing = (
        "import sys; print('noise'); print('error: The model folder is empty. Choose another.'); sys.exit(2)"
    )
    made, _ = supervisor(tmp_path, {"engine": failing, "gateway": POLITE}, ready=lambda: False)
    with pytest.raises(ConfigError, match="model folder is empty"):
        made.run()
    assert not made.children["gateway"].alive


def test_child_that_keeps_dying_at_the_start_is_given_up_with_its_log(tmp_path: Path) -> None:
    made, events = supervisor(
        tmp_path, {"engine": "raise RuntimeError('no luck')", "gateway": POLITE}, ready=lambda: False
    )
    with pytest.raises(ConfigError, match="no luck"):
        made.run()
    assert sum("engine started again" in event for event in events) == 3


def test_child_that_keeps_dying_later_is_not_given_up(tmp_path: Path) -> None:
    made, events = supervisor(tmp_path, {"gateway": POLITE, "trainer": "raise SystemExit(2)"})

    def tell(text: str) -> None:
        events.append(text)
        if "restart 5" in text:
            made.signals.set()

    made.events = tell
    assert made.run() == 0
    assert made.children["trainer"].restarts == 5


def test_what_the_user_can_mend_is_told_by_the_event(tmp_path: Path) -> None:
    failing = "import sys; print('error: There is no embedding called x.'); sys.exit(2)"
    made, events = supervisor(tmp_path, {"gateway": POLITE, "judge": failing})

    def tell(text: str) -> None:
        events.append(text)
        if "started again" in text:
            made.signals.set()

    made.events = tell
    assert made.run() == 0
    assert any(event.startswith("judge ended: There is no embedding called x.;") for event in events)


def test_machine_without_room_for_a_process_is_survived(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, events = supervisor(tmp_path, {"gateway": POLITE, "judge": "raise SystemExit(3)"})
    start = Child.start

    def sometimes(self: Child) -> None:
        if self.started_at and self.name == "judge" and not any("cannot be started" in e for e in events):
            raise BlockingIOError("no more processes")
        start(self)

    monkeypatch.setattr(Child, "start", sometimes)

    def tell(text: str) -> None:
        events.append(text)
        if "started again" in text:
            made.signals.set()

    made.events = tell
    assert made.run() == 0
    assert any("cannot be started now (no more processes)" in event for event in events)


def test_full_disk_does_not_end_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(run_dir: Path, record: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("instar.workers.supervisor.write_pids", full)
    made, events = supervisor(tmp_path, {"gateway": POLITE})
    made.on_ready = made.signals.set
    assert made.run() == 0
    assert any("No space left" in event for event in events)


def test_killed_supervisor_takes_its_children_along(tmp_path: Path) -> None:
    program = f"""
import sys
from pathlib import Path
from instar.workers.child import Child
from instar.workers.supervisor import Supervisor
run = Path({str(tmp_path)!r})
deaf = ("import signal, time; from instar.workers import lifeline; "
        "signal.signal(signal.SIGTERM, signal.SIG_IGN); lifeline.hold(grace_s=0.2); time.sleep(600)")
polite = "import time; from instar.workers import lifeline; lifeline.hold(); time.sleep(600)"
kids = {{"engine": Child("engine", [sys.executable, "-c", deaf], run / "e.log"),
        "gateway": Child("gateway", [sys.executable, "-c", polite], run / "g.log")}}
Supervisor(kids, run, print, lambda: False, lambda: None).run()
"""
    boss = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.DEVNULL)
    until(lambda: len(read_pids(tmp_path).get("loops", {})) == 2)
    pids = [loop["pid"] for loop in read_pids(tmp_path)["loops"].values()]
    assert all(psutil.pid_exists(pid) for pid in pids)
    boss.kill()
    boss.wait()
    until(lambda: all(created_at(pid) is None for pid in pids))


def test_orphans_of_a_killed_server_are_ended_and_strangers_are_not(tmp_path: Path) -> None:
    orphan = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    write_pids(
        tmp_path,
        {
            "loops": {
                "trainer": {"pid": orphan.pid, "created": created_at(orphan.pid)},
                "judge": {"pid": stranger.pid, "created": 1.0},  # the number was given out again
                "gateway": {"pid": None, "created": None},
            }
        },
    )
    assert end_orphans(tmp_path, patience_s=0.0) == ["trainer"]
    assert created_at(orphan.pid) is None
    assert stranger.poll() is None
    stranger.kill()
    stranger.wait()


def test_record_of_pids_that_is_damaged_counts_as_none(tmp_path: Path) -> None:
    (tmp_path / "pids.json").write_text("{")
    assert read_pids(tmp_path) == {}
    (tmp_path / "pids.json").write_text("[]")
    assert read_pids(tmp_path) == {}


def test_a_number_given_out_again_is_another_process() -> None:
    assert is_same_process(os.getpid(), created_at(os.getpid()))
    assert not is_same_process(os.getpid(), 1.0)
    assert not is_same_process(os.getpid(), None)


def test_backoff_grows_and_is_reset_by_a_minute_of_health(tmp_path: Path) -> None:
    now = [0.0]
    made = Child("judge", [sys.executable, "-c", POLITE], tmp_path / "j.log", clock=lambda: now[0])
    pauses = []
    for _ in range(8):
        made.start()
        assert made.process is not None
        made.process.kill()
        made.process.wait()
        made.look()
        pauses.append(round(made.due_at - now[0], 3))
    assert pauses == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0]
    assert not made.due
    now[0] += 10.0
    assert made.due
    made.start()
    now[0] += 61.0
    assert made.look() is None
    assert made.process is not None
    made.process.kill()
    made.process.wait()
    made.look()
    assert round(made.due_at - now[0], 3) == 0.2


def test_large_logs_are_rotated_and_the_oldest_dropped(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    for number in range(5):
        log.write_text(f"{number}" * 10)
        rotate_log(log, limit_bytes=10, keep=3)
        assert not log.exists()
    assert sorted(p.name for p in tmp_path.iterdir()) == [f"engine.log.{n}" for n in (1, 2, 3)]
    assert (tmp_path / "engine.log.1").read_text() == "4" * 10
    log.write_text("small")
    rotate_log(log, limit_bytes=10)
    assert log.exists()


def test_last_lines_skips_blank_ones(tmp_path: Path) -> None:
    (tmp_path / "l").write_text("one\n\ntwo\n\nthree\n\n")
    assert last_lines(tmp_path / "l", 2) == "two\nthree"
    assert last_lines(tmp_path / "none", 2) == ""


def test_what_is_started_follows_the_settings(tmp_path: Path) -> None:
    plain = load_settings(tmp_path)
    state = make_state(plain, tmp_path, "sk-the-key", None)
    made = build_supervisor(plain, state, "http://127.0.0.1:1", print, lambda: None)
    assert list(made.children) == ["engine", "gateway", "judge", "trainer"]
    assert made.children["judge"].command[1:5] == ["-m", "instar", "worker", "judge"]
    assert json.loads((tmp_path / "run" / "state.json").read_text())["run"]["api_key"] == "sk-the-key"
    remote = load_settings(
        tmp_path, {"engine": {"kind": "url", "url": "http://gpu:8000"}, "train": {"enabled": False}}
    )
    made = build_supervisor(remote, state, "http://127.0.0.1:1", print, lambda: None)
    assert list(made.children) == ["gateway", "judge"]


def test_broken_lifeline_lets_a_child_end_in_order(tmp_path: Path) -> None:
    program = (
        "import signal, sys, time; from instar.workers import lifeline\n"
        f"def end(*_): open({str(tmp_path / 'clean')!r}, 'w').close(); sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, end); lifeline.hold(grace_s=60.0); time.sleep(600)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(60) == 0
    assert (tmp_path / "clean").exists()
