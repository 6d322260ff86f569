"""A real `instar serve` in a process of its own, and the routes that look inside it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx

from instar.config import TrainSettings

READY_LINE = b"Instar is ready"
START_S = 300.0
"""A first start converts the starter model, which takes about a minute."""


class ServerDied(RuntimeError):
    """The server ended by itself; the text carries the end of its output."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Server:
    """Starts, asks, kills and starts again. `extra` are settings from the environment (INSTAR_…)."""

    def __init__(
        self, data_dir: Path, *, model: str = "starter", extra: dict[str, str] | None = None
    ) -> None:
        self.data_dir, self.model, self.port = data_dir, model, free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.starts_s: list[float] = []
        self._extra = extra or {}
        self._log = data_dir.parent / f"{data_dir.name}.out"
        self._process: subprocess.Popen[bytes] | None = None
        self._http = httpx.Client(base_url=self.url, timeout=30.0, trust_env=False)

    # ── life ──────────────────────────────────────────────────────────────────────────────────────────
    def command(self) -> list[str]:
        where = ["--data-dir", str(self.data_dir), "--port", str(self.port), "--model", self.model]
        return [sys.executable, "-m", "instar", "serve", *where]

    def start(self) -> None:
        """Returns when the new server says that it is ready, and GET /ready too. Raises ServerDied.

        The route alone would not do: after a kill the gateway of the dead server may still answer for a
        moment, before it notices.
        """
        began, seen = time.monotonic(), self._log.stat().st_size if self._log.exists() else 0
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self.command(),
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **self._extra},
                start_new_session=True,
            )
        while not (READY_LINE in self._log.read_bytes()[seen:] and self.ready()):
            if self._process.poll() is not None or time.monotonic() - began > START_S:
                self.stop()
                raise ServerDied(f"no server came up:\n{self.log_end()}")
            time.sleep(0.2)
        self.starts_s.append(time.monotonic() - began)

    def ready(self) -> bool:
        with contextlib.suppress(httpx.HTTPError):
            return self._http.get("/ready", timeout=2.0).status_code == httpx.codes.OK
        return False

    def log_end(self, lines: int = 15) -> str:
        return "\n".join(self._log.read_text("utf-8", "replace").splitlines()[-lines:])

    @property
    def pid(self) -> int:
        if self._process is None:
            raise ServerDied("the server was not started")
        return self._process.pid

    def kill(self) -> None:
        """kill -9 of the server's own process. What it started is left to notice by itself."""
        os.kill(self.pid, signal.SIGKILL)
        if self._process is not None:
            self._process.wait()

    def stop(self) -> int | None:
        """SIGTERM, then SIGKILL to the whole group after 45 s. Returns the exit status."""
        if self._process is None:
            return None
        if self._process.poll() is None:
            self._process.terminate()
        try:
            return self._process.wait(timeout=45)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            return self._process.wait()

    def __enter__(self) -> Server:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._http.close()

    # ── a look inside ─────────────────────────────────────────────────────────────────────────────────
    @property
    def key(self) -> str:
        return (self.data_dir / "api_key").read_text("utf-8").strip()

    def get(self, path: str, **params: str | int) -> Any:
        reply = self._http.get(path, params=params, headers={"authorization": f"Bearer {self.key}"})
        reply.raise_for_status()
        return reply.json()

    def post(self, path: str, body: dict[str, Any]) -> Any:
        reply = self._http.post(path, json=body, headers={"authorization": f"Bearer {self.key}"})
        reply.raise_for_status()
        return reply.json()

    def status(self) -> dict[str, Any]:
        facts: dict[str, Any] = self.get("/v1/status")
        return facts

    def versions(self) -> list[dict[str, Any]]:
        """Newest first."""
        rows: list[dict[str, Any]] = self.get("/v1/versions")["data"]
        return rows

    def turns(self) -> list[dict[str, Any]]:
        """Every recorded turn, newest first."""
        found: list[dict[str, Any]] = []
        while True:
            more = {"before": found[-1]["id"]} if found else {}
            page = self.get("/v1/turns", limit=500, **more)["data"]
            found += page
            if len(page) < 500:
                return found

    def model_dir(self) -> Path:
        """Where the served base model lies: needed to score answers under it."""
        state = json.loads((self.data_dir / "run" / "state.json").read_text("utf-8"))
        return Path(state["run"]["model_dir"])

    def settle(self, limit_s: float = 420.0, still_s: float = 4.0) -> bool:
        """Wait until everything is judged and too little is left for an update. False if it took too long."""
        deadline, since = time.monotonic() + limit_s, None
        while time.monotonic() < deadline:
            if busy(self.status()):
                since = None
            elif since is None:
                since = time.monotonic()
            elif time.monotonic() - since > still_s:
                return True
            time.sleep(0.5)
        return False


def busy(status: dict[str, Any], fewest: int = TrainSettings().min_batch) -> bool:
    """Whether an update runs or will come without further talk (`fewest` judged turns will do for one)."""
    waiting = status.get("counts", {}).get("waiting", {})
    left = waiting if isinstance(waiting, dict) else {}
    return bool(
        status["training"]["running"] or left.get("unjudged", 0) or left.get("trainable", 0) >= fewest
    )


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    cpu = "unknown"
    with contextlib.suppress(OSError):
        lines: Sequence[str] = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
        cpu = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), cpu)
    return {"cpu": cpu, "cores": os.cpu_count(), "python": sys.version.split()[0]}


def source() -> dict[str, str]:
    """Which code ran: the commit, and the tree of src (with + when it was changed since)."""

    def git(*args: str) -> str:
        done = subprocess.run(["git", *args], capture_output=True, text=True, check=False)
        return done.stdout.strip()

    changed = "+" if git("status", "--porcelain", "--", "src") else ""
    return {
        "commit": git("rev-parse", "--short=12", "HEAD"),
        "src": git("rev-parse", "HEAD:src")[:12] + changed,
    }
