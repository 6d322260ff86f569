"""One supervised process: start, watch, pause, start again."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from instar.runtime import Backoff
from instar.workers.pids import created_at

LOG_BYTES = 5 * 2**20
LOG_GENERATIONS = 3
HEALTHY_AFTER_S = 60.0


def rotate_log(path: Path, limit_bytes: int = LOG_BYTES, keep: int = LOG_GENERATIONS) -> None:
    """Make place for a new log when the old one is large: NAME.log → NAME.log.1 → … ."""
    if not path.exists() or path.stat().st_size < limit_bytes:
        return
    for number in range(keep - 1, 0, -1):
        older = path.with_name(f"{path.name}.{number}")
        if older.exists():
            os.replace(older, path.with_name(f"{path.name}.{number + 1}"))
    os.replace(path, path.with_name(f"{path.name}.1"))


def last_lines(path: Path, count: int = 5, window_bytes: int = 8192) -> str:
    """The end of a log, for an error message."""
    try:
        with path.open("rb") as log:
            log.seek(max(0, path.stat().st_size - window_bytes))
            lines = log.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return ""
    return "\n".join([line for line in lines if line.strip()][-count:])


@dataclass(slots=True)
class Child:
    """A process that should run. All times are monotonic seconds."""

    name: str
    command: Sequence[str]
    log_path: Path
    pass_fds: tuple[int, ...] = ()
    clock: Callable[[], float] = time.monotonic
    backoff: Backoff = field(default_factory=lambda: Backoff(0.2, 10.0))
    process: subprocess.Popen[bytes] | None = None
    created: float | None = None
    restarts: int = 0
    started_at: float = 0.0
    due_at: float = 0.0
    last_exit: int | None = None

    def start(self) -> None:
        """Start the process in a session of its own: Ctrl-C in the terminal is the supervisor's to handle."""
        rotate_log(self.log_path)
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                self.command,
                stdin=subprocess.PIPE,  # never written to: the lifeline
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=self.pass_fds,
            )
        self.created = created_at(self.process.pid)
        self.started_at = self.clock()

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def look(self) -> int | None:
        """Notice an end: returns the exit status once, when the process has just been found dead."""
        if self.process is None:
            return None
        status = self.process.poll()
        if status is None:
            if self.clock() - self.started_at > HEALTHY_AFTER_S:
                self.backoff.reset()
            return None
        self._forget(status)
        self.postpone()
        return status

    def postpone(self) -> None:
        """Be due after the next, longer pause."""
        self.due_at = self.clock() + self.backoff.fail()

    @property
    def due(self) -> bool:
        """Dead, and its pause is over."""
        return self.process is None and self.clock() >= self.due_at

    def restart(self) -> None:
        self.start()
        self.restarts += 1

    def stop(self, patience_s: float) -> None:
        """SIGTERM, wait, SIGKILL."""
        self.tell(signal.SIGTERM)
        self.wait(patience_s)

    def tell(self, number: signal.Signals) -> None:
        if self.alive and self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(number)

    def wait(self, patience_s: float) -> None:
        """Wait for the end; kill it when it does not come."""
        if self.process is None:
            return
        try:
            status = self.process.wait(patience_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            status = self.process.wait()
        self._forget(status)

    def _forget(self, status: int) -> None:
        if self.process is not None and self.process.stdin is not None:
            self.process.stdin.close()
        self.process = None
        self.last_exit = status

    def facts(self) -> dict[str, Any]:
        """What `instar status` tells of it."""
        return {
            "pid": self.process.pid if self.process else None,
            "created": self.created,
            "restarts": self.restarts,
            "last_exit": self.last_exit,
            "log": str(self.log_path),
        }
