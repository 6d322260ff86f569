"""The real OpenClaw, with a home of its own, set up by `instar connect openclaw --write`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tests.kit import client_cache
from tests.kit.live_server import free_port

TOKEN = "a-token-for-tests"
STARTS_S = 120


@dataclass
class OpenClaw:
    """One installation. `config` is its configuration, written back by `save`."""

    home: Path
    port: int = field(default_factory=free_port)
    gateway: subprocess.Popen[bytes] | None = None

    @property
    def config_file(self) -> Path:
        return self.home / "openclaw.json"

    @property
    def workspace(self) -> Path:
        return self.home / "workspace"

    @property
    def config(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.config_file.read_text("utf-8"))
        return found

    def save(self, config: dict[str, Any]) -> None:
        self.config_file.write_text(json.dumps(config, indent=1), "utf-8")

    @property
    def environment(self) -> dict[str, str]:
        kept = {name: os.environ[name] for name in ("LANG", "TMPDIR") if name in os.environ}
        return kept | {
            "PATH": f"{client_cache.node_bin()}{os.pathsep}{os.environ.get('PATH', '')}",
            "HOME": str(self.home),
            "OPENCLAW_HOME": str(self.home),
            "OPENCLAW_STATE_DIR": str(self.home / "state"),
            "OPENCLAW_CONFIG_PATH": str(self.config_file),
            "OPENCLAW_GATEWAY_TOKEN": TOKEN,
            "NO_COLOR": "1",
        }

    def command(self, *arguments: str, timeout_s: float = 180) -> str:
        """What a command of OpenClaw prints. Fails with what it complains of."""
        done = self.attempt(*arguments, timeout_s=timeout_s)
        assert done.returncode == 0, (
            f"{arguments}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}\n{self.log()}"
        )
        return done.stdout

    def attempt(self, *arguments: str, timeout_s: float = 180) -> subprocess.CompletedProcess[str]:
        program = [str(client_cache.node_bin() / "node"), str(client_cache.openclaw())]
        return subprocess.run(
            [*program, *arguments], cwd=self.home, env=self.environment, capture_output=True, text=True,
            timeout=timeout_s, check=False,
        )  # fmt: skip

    def say(self, text: str, session: str = "s1", *, local: bool = False) -> str:
        """What a person does: one message by the command line. Returns the reply's text."""
        more = ["--local"] if local else []
        printed = self.command("agent", "--session-id", session, "--message", text, "--json", *more)
        return _reply(json.loads(printed[printed.index("{") :]))

    def post(self, text: str, session: str = "s1", timeout_s: float = 180) -> httpx.Response:
        """The same through the gateway's own HTTP endpoint: the same run of the agent, without a start of Node."""
        headers = {
            "authorization": f"Bearer {TOKEN}",
            "x-openclaw-session-key": session_key(session),
        }
        body = {"model": "openclaw", "messages": [{"role": "user", "content": text}]}
        with httpx.Client(trust_env=False, timeout=timeout_s) as http:
            return http.post(f"http://127.0.0.1:{self.port}/v1/chat/completions", json=body, headers=headers)

    def start(self) -> None:
        """Start its gateway and wait until it listens."""
        program = [str(client_cache.node_bin() / "node"), str(client_cache.openclaw()), "gateway", "run"]
        with (self.home / "gateway.log").open("ab") as out:
            self.gateway = subprocess.Popen(
                program, cwd=self.home, env=self.environment, stdout=out, stderr=out, start_new_session=True
            )
        deadline = time.monotonic() + STARTS_S
        while "http server listening" not in self.log():
            assert self.gateway.poll() is None, f"OpenClaw's gateway ended\n{self.log()}"
            assert time.monotonic() < deadline, f"OpenClaw's gateway never listened\n{self.log()}"
            time.sleep(0.2)

    def stop(self) -> None:
        if self.gateway is not None and self.gateway.poll() is None:
            os.killpg(self.gateway.pid, signal.SIGTERM)
            try:
                self.gateway.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(self.gateway.pid, signal.SIGKILL)
                self.gateway.wait(10)

    def log(self) -> str:
        file = self.home / "gateway.log"
        return file.read_text("utf-8", "replace")[-6000:] if file.is_file() else ""


def session_key(session: str) -> str:
    """OpenClaw's name for a session of the command line; `main` is the agent's own, where heartbeats beat."""
    return "agent:main:main" if session == "main" else f"agent:main:explicit:{session}"


def _reply(result: dict[str, Any]) -> str:
    payloads = result.get("payloads") or (result.get("result") or {}).get("payloads") or []
    return "\n".join(str(p.get("text", "")) for p in payloads)


def connect(home: Path, url: str, key: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run `instar connect openclaw` on the configuration in `home`."""
    command = [sys.executable, "-m", "instar", "connect", "openclaw", "--config", str(home / "openclaw.json")]
    command += ["--data-dir", str(home / "no-data"), "--url", url, "--api-key", key, *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def install(home: Path, url: str, key: str, *, named_sessions: bool = True, small: bool = True) -> OpenClaw:
    """A fresh home that knows the server at `url`. Without `named_sessions`, requests name no session at all."""
    client = OpenClaw(home)
    client.workspace.mkdir(parents=True)
    client.save({
        "gateway": {
            "mode": "local", "bind": "loopback", "port": client.port, "controlUi": {"enabled": False},
            "auth": {"mode": "token", "token": TOKEN},
            "http": {"endpoints": {"chatCompletions": {"enabled": True}}},
        },
        "agents": {"defaults": {"workspace": str(client.workspace)}},
        "plugins": {"enabled": False},
    })  # fmt: skip
    done = connect(home, url, key, "--write", *(["--small"] if small else []))
    assert done.returncode == 0, done.stderr
    if not named_sessions:
        config = client.config
        compat = config["models"]["providers"]["instar"]["models"][0]["compat"]
        del compat["sendSessionAffinityHeaders"], compat["supportsPromptCacheKey"]
        client.save(config)
    return client


@contextmanager
def running(client: OpenClaw) -> Iterator[OpenClaw]:
    client.start()
    try:
        yield client
    finally:
        client.stop()
