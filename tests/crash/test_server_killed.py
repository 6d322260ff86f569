"""kill -9 at random moments: whatever a client saw to its end is there, once. The engine is the scripted one."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import threading
import time
from pathlib import Path

import httpx
import pytest

from tests.kit.live_server import Server, free_port, launch
from tests.kit.tiny_model import weightless_model

CLIENTS = 4


class Talkers:
    """Clients that talk without a pause and note the turns whose stream they saw to `[DONE]`."""

    def __init__(self, server: Server, seed: int) -> None:
        self.acknowledged: list[str] = []
        self._server = server
        self._over = threading.Event()
        self._threads = [
            threading.Thread(target=self._talk, args=(random.Random(seed * 100 + i),)) for i in range(CLIENTS)
        ]
        self._key = server.key

    def __enter__(self) -> Talkers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(30)

    def _talk(self, choose: random.Random) -> None:
        headers = {"authorization": f"Bearer {self._key}"}
        with httpx.Client(base_url=self._server.url, headers=headers, timeout=10, trust_env=False) as http:
            while not self._over.is_set():
                messages = [{"role": "user", "content": f"question {choose.random()}"}]
                body = {"model": "instar", "messages": messages, "stream": True, "max_tokens": 6}
                try:
                    with http.stream("POST", "/v1/chat/completions", json=body) as response:
                        lines = list(response.iter_lines())
                    if response.status_code == 200 and "data: [DONE]" in lines:
                        self.acknowledged.append(response.headers["x-instar-turn"])
                except httpx.HTTPError:
                    time.sleep(0.05)


def rows(data_dir: Path) -> dict[str, str]:
    """Turn id → status, read past the server, after an integrity check."""
    with sqlite3.connect(data_dir / "instar.db") as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        found = database.execute("SELECT id, status FROM turns").fetchall()
    assert len(found) == len(dict(found))
    return dict(found)


def talk_and_kill(folder: Path, victims: list[str], seed: int) -> None:
    """For each victim: talk, kill it, see the server come back; at the end, every acknowledged turn is there."""
    choose = random.Random(seed)
    model = weightless_model(folder / "model")
    options = ["--model", str(model), "--set", "engine.kind=scripted"]
    port = free_port()
    server = launch(folder / "data", *options, port=port)
    acknowledged: list[str] = []
    try:
        for number, victim in enumerate(victims):
            server.until_ready(60)
            with Talkers(server, number) as talkers:
                time.sleep(choose.uniform(0.3, 1.0))
                pid = server.process.pid if victim == "server" else server.pid(victim)
                os.kill(pid, signal.SIGKILL)
                if victim == "server":
                    server.process.wait(10)
                    server = launch(folder / "data", *options, port=port)
                began = time.monotonic()
                server.until_ready(60)
                back_s = time.monotonic() - began
                enough = len(talkers.acknowledged) + 5
                while len(talkers.acknowledged) < enough and time.monotonic() - began < 30:
                    time.sleep(0.05)
            assert len(talkers.acknowledged) >= enough, f"nothing was served again after {victim} died"
            print(f"{victim} killed: ready again in {back_s:.1f} s")
            acknowledged += talkers.acknowledged
        assert server.stop() == 0
    finally:
        if server.process.poll() is None:
            server.process.kill()
            server.process.wait(10)
    stored = rows(folder / "data")
    assert len(set(acknowledged)) == len(acknowledged)
    assert {turn_id: stored.get(turn_id) for turn_id in acknowledged} == dict.fromkeys(acknowledged, "done")
    assert "open" not in stored.values()


@pytest.mark.timeout(240)
def test_killed_server_and_processes_lose_no_acknowledged_turn(tmp_path: Path) -> None:
    talk_and_kill(tmp_path, ["gateway", "server", "engine"], seed=1)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_killed_many_times(tmp_path: Path) -> None:
    talk_and_kill(tmp_path, ["gateway", "server", "engine", "judge", "trainer"] * 12, seed=2)
