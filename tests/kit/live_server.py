"""`instar serve` as a person starts it: a process, a folder, a port; every part real."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import openai


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@dataclass
class Server:
    process: subprocess.Popen[bytes]
    data_dir: Path
    url: str

    @property
    def key(self) -> str:
        return (self.data_dir / "api_key").read_text("utf-8").strip()

    @property
    def http(self) -> httpx.Client:
        headers = {"authorization": f"Bearer {self.key}"}
        return httpx.Client(base_url=self.url, headers=headers, timeout=60, trust_env=False)

    @property
    def openai(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=self.key, max_retries=0, timeout=120)

    def get(self, path: str) -> Any:
        with self.http as http:
            answer = http.get(path)
            answer.raise_for_status()
            return answer.json()

    def pid(self, loop: str) -> int:
        record = json.loads((self.data_dir / "run" / "pids.json").read_text("utf-8"))
        pid: int = record["loops"][loop]["pid"]
        return pid

    def until_ready(self, timeout_s: float = 120) -> None:
        self.until("/ready", lambda body: body.get("status") == "ready", timeout_s)

    def until(self, path: str, said: Any, timeout_s: float = 120) -> Any:
        """Ask again and again until `said(body)` holds; the server's logs are shown when it never does."""
        deadline = time.monotonic() + timeout_s
        body: Any = None
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise AssertionError(f"the server ended with {self.process.returncode}\n{self.logs()}")
            try:
                body = self.get(path)
                if said(body):
                    return body
            except (httpx.HTTPError, OSError):
                pass
            time.sleep(0.2)
        raise AssertionError(f"{path} never said so; last: {json.dumps(body)[:2000]}\n{self.logs()}")

    def logs(self) -> str:
        files = sorted((self.data_dir / "run" / "logs").glob("*.log"))
        return "\n".join(f"── {f.name}\n{f.read_text('utf-8', 'replace')[-3000:]}" for f in files)

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


def launch(data_dir: Path, *options: str, port: int | None = None, files: int | None = None) -> Server:
    """`files` is how many descriptors each of its processes may have."""
    port = port or free_port()
    few = ["bash", "-c", f'ulimit -n {files}; exec "$@"', "bash"] if files else []
    command = [
        *few,
        sys.executable,
        "-m",
        "instar",
        "serve",
        "--data-dir",
        str(data_dir),
        "--port",
        str(port),
        *options,
    ]
    data_dir.mkdir(parents=True, exist_ok=True)
    with (data_dir / "serve.out").open("ab") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, env={**os.environ, "NO_COLOR": "1"})
    return Server(process, data_dir, f"http://127.0.0.1:{port}")


@contextmanager
def running_server(
    data_dir: Path, *options: str, files: int | None = None, patience_s: float = 120
) -> Iterator[Server]:
    server = launch(data_dir, *options, files=files)
    try:
        server.until_ready(patience_s)
        yield server
    finally:
        if server.process.poll() is None:
            server.stop()
