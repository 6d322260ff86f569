"""Starts the four processes, starts them again when they die, and stops them in order.

The third boundary at which errors are survived: a child may die of anything, the others go on.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Protocol

import httpx

from instar.config import Settings
from instar.engines.vllm_process import stage
from instar.errors import ConfigError
from instar.workers.child import Child, last_lines
from instar.workers.lifeline import HARD_EXIT_AFTER_S
from instar.workers.pids import created_at, end_orphans, write_pids
from instar.workers.preflight import free_loopback_port
from instar.workers.state import RunState, save_state
from instar.workers.stopping import StopFlag

FRONT = ("engine", "gateway")
"""What a chat needs; started first."""
BACK = ("judge", "trainer")
"""What may come a moment later, so that it does not slow the first answer down."""

USER_ERROR = 2
"""Exit status of a worker that met an error which the person can mend."""
POLL_S = 0.2
DRAIN_S = 30.0
STOP_S = 10.0
BACK_STARTS_AFTER_S = 20.0
START_ATTEMPTS = 4
STAGE_EVERY_S = 10.0


class Events(Protocol):
    """Where the supervisor's one-line events go."""

    def __call__(self, text: str) -> None: ...


def make_state(settings: Settings, model_dir: Path, api_key: str, listener: socket.socket | None) -> RunState:
    """Decide what holds for one run: the engine's address and key, the gateway's socket."""
    port = free_loopback_port()
    engine = settings.engine
    key: str | None = secrets.token_urlsafe(24)
    if engine.is_attached:
        key = engine.api_key.get_secret_value() if engine.api_key else None
    return RunState(
        model_dir=model_dir,
        engine_host="127.0.0.1",
        engine_port=port,
        engine_key=key,
        api_key=api_key,
        engine_url=(engine.url if engine.is_attached else None) or f"http://127.0.0.1:{port}",
        listen_fd=listener.fileno() if listener is not None else None,
    )


def worker_command(name: str, state_path: Path) -> list[str]:
    return [sys.executable, "-m", "instar", "worker", name, "--state", str(state_path)]


def is_ready(url: str) -> bool:
    """Whether the gateway says that it can answer. No secret is sent, so its certificate need not be looked at."""
    with contextlib.suppress(httpx.HTTPError):
        answer = httpx.get(f"{url}/ready", timeout=1.0, trust_env=False, verify=False)  # noqa: S501
        return answer.status_code == httpx.codes.OK
    return False


@dataclass(slots=True)
class Supervisor:
    """Watches children until it is told to stop.

    `ready` is asked until it first says yes; then `on_ready` is called once.
    """

    children: dict[str, Child]
    run_dir: Path
    events: Events
    ready: Callable[[], bool]
    on_ready: Callable[[], None]
    signals: StopFlag = field(default_factory=StopFlag)
    drain_s: float = DRAIN_S
    stop_s: float = STOP_S
    stage: Callable[[], str] | None = None
    """What is being waited for until it is ready, where that takes long."""
    was_ready: bool = False
    hurry: bool = False
    _begun_at: float = 0.0
    _told_at: float = 0.0

    def run(self) -> int:
        """Block until a signal; returns the exit status. Raises ConfigError if it never came up."""
        self._begun_at = self._told_at = time.monotonic()
        with self._handlers():
            try:
                self._start(FRONT)
                while not self.signals.wait(POLL_S):
                    self._watch()
            finally:
                self._stop_all()
        return 130 if self.hurry else 0

    # ── running ───────────────────────────────────────────────────────────────────────────────────────
    def _watch(self) -> None:
        changed = False
        for child in self.children.values():
            status = child.look()
            if status is not None:
                changed = True
                self._mourn(child, status)
            elif child.started_at and child.due:
                changed = True
                self._restart(child)
        if not self.was_ready and self.ready():
            self.was_ready = True
            self.on_ready()
        self._tell_stage(time.monotonic())
        late = time.monotonic() - self._begun_at > BACK_STARTS_AFTER_S
        if (self.was_ready or late) and any(not self.children[name].started_at for name in self._known(BACK)):
            self._start(BACK)
        elif changed:
            self._record()

    def _tell_stage(self, now: float) -> None:
        """A start of minutes must not look like one that hangs."""
        if self.was_ready or self.stage is None or now - self._told_at < STAGE_EVERY_S:
            return
        self._told_at = now
        self.events(f"still starting after {now - self._begun_at:.0f} s: {self.stage()}")

    def _restart(self, child: Child) -> None:
        """The boundary: a machine out of memory or processes today may have some in a while."""
        try:
            child.restart()
        except OSError as error:
            child.postpone()
            self.events(f"{child.name} cannot be started now ({error}); trying again")
        else:
            self.events(f"{child.name} started again (restart {child.restarts})")

    def _known(self, names: tuple[str, ...]) -> list[str]:
        return [name for name in names if name in self.children]

    def _start(self, names: tuple[str, ...]) -> None:
        for name in self._known(names):
            if not self.children[name].started_at:
                self.children[name].start()
        self._record()

    def _mourn(self, child: Child, status: int) -> None:
        """Say that a child died. Before the first readiness, give up on what cannot get better."""
        why = last_lines(child.log_path, 1).removeprefix("error: ") if status == USER_ERROR else ""
        how = f"signal {signal.Signals(-status).name}" if status < 0 else f"status {status}"
        if not self.was_ready and child.name in FRONT:
            if status == USER_ERROR:
                raise ConfigError(f"The {child.name} cannot start: {why}")
            if child.restarts + 1 >= START_ATTEMPTS:
                raise ConfigError(
                    f"The {child.name} ended {START_ATTEMPTS} times while starting (last: {how}). "
                    f"Its log {child.log_path} ends:\n{last_lines(child.log_path)}"
                )
        pause_s = max(0.0, child.due_at - child.clock())
        reason = f": {why}" if why else f" ({how}, see {child.log_path})"
        self.events(f"{child.name} ended{reason}; starting again in {pause_s:.1f} s")

    def _record(self) -> None:
        """For `instar status` only, so a full disk does not end the server."""
        own = os.getpid()
        record = {
            "supervisor": {"pid": own, "created": created_at(own)},
            "ready": self.was_ready,
            "loops": {name: child.facts() for name, child in self.children.items()},
        }
        try:
            write_pids(self.run_dir, record)
        except OSError as error:
            self.events(f"the record of processes cannot be written: {error}")

    # ── stopping ──────────────────────────────────────────────────────────────────────────────────────
    @contextmanager
    def _handlers(self) -> Iterator[None]:
        """The first signal stops politely, a second SIGINT at once."""

        def handler(number: int, _frame: FrameType | None) -> None:
            if self.signals.is_set() and number == signal.SIGINT:
                self.hurry = True
                for child in self.children.values():
                    child.tell(signal.SIGKILL)
            self.signals.set()

        numbers = [signal.SIGTERM, signal.SIGINT]
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # under nohup it stays ignored
            numbers.append(signal.SIGHUP)
        before = {number: signal.signal(number, handler) for number in numbers}
        try:
            yield
        finally:
            for number, old in before.items():
                signal.signal(number, old)

    def _stop_all(self) -> None:
        """The gateway first, so that answers under way are finished while the engine still runs."""
        if any(child.alive for child in self.children.values()):
            self.events("stopping; answers under way may end (Ctrl-C again to stop at once)")
        for name in self._known(("gateway",)):
            self.children[name].stop(self.drain_s)
        others = [child for name, child in self.children.items() if name != "gateway"]
        for child in others:
            child.tell(signal.SIGTERM)
        for child in others:
            child.wait(self.stop_s)
        self._record()


def build_supervisor(
    settings: Settings,
    state: RunState,
    url: str,
    events: Events,
    on_ready: Callable[[], None],
) -> Supervisor:
    """Write the run state and make the children (not started yet)."""
    state_path = settings.run_dir / "state.json"
    save_state(state_path, settings, state)
    off = {"engine"} if settings.engine.is_attached else set()
    off |= set() if settings.train.enabled else {"trainer"}
    names = [name for name in FRONT + BACK if name not in off]
    children = {}
    for name in names:
        fds = (state.listen_fd,) if name == "gateway" and state.listen_fd is not None else ()
        log_path = settings.run_dir / "logs" / f"{name}.log"
        children[name] = Child(name, worker_command(name, state_path), log_path, fds)
    return Supervisor(
        children, settings.run_dir, events, lambda: is_ready(url), on_ready, stage=stage_of(settings)
    )


def stage_of(settings: Settings) -> Callable[[], str] | None:
    """How to tell what an engine that is not ours is doing as it starts."""
    engine = settings.engine
    if engine.is_attached:
        return lambda: f"the engine at {engine.url} is not ready"
    if engine.kind == "vllm":
        return lambda: f"vLLM: {stage(settings.run_dir / 'logs' / 'engine.log')}"
    return None


def clear_the_ground(settings: Settings, events: Events) -> None:
    """End what an earlier, killed server left behind."""
    for name in end_orphans(settings.run_dir, HARD_EXIT_AFTER_S + 2.0):
        events(f"ended a {name} process that an earlier server had left behind")
