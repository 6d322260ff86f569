"""A server as a person starts it: what it keeps and logs of keys, what a gibibyte costs it, how it ends."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.kit import process_facts, wire
from tests.kit.bare_server import bare_server
from tests.kit.live_server import Server

GIB = 2**30
HI = [{"role": "user", "content": "hi"}]
FORGED = '\r\n{"event": "forged", "level": "info"}\r\n\x1b[2J\x1b[31mforged'
TERMINAL = "serve.out"
"""What `instar serve` says to the person who started it, the key among it."""
WRONG_KEY = "sk-wrong-0123456789"
linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with bare_server(tmp_path_factory.mktemp("server"), token_s=0.01) as server:
        yield server


def ask(http: httpx.Client, **more: object) -> httpx.Response:
    return http.post(
        "/v1/chat/completions", json={"model": "instar", "messages": HI, "max_tokens": 4, **more}
    )


def leave(http: httpx.Client) -> str:
    """Ask for a long answer and go in the middle of it. Returns the turn."""
    body = {"model": "instar", "messages": HI, "max_tokens": 90, "stream": True}
    with http.stream("POST", "/v1/chat/completions", json=body) as response:
        for line in response.iter_lines():
            if '"content": "' in line and '"content": ""' not in line:
                break
        return response.headers["x-instar-turn"]


def status_of(server: Server, turn: str) -> str:
    """What became of it, once it is no longer open."""

    def found(page: dict[str, Any]) -> str:
        return next(str(row["status"]) for row in page["data"] if row["id"] == turn)

    return found(server.until("/v1/turns", lambda page: found(page) != "open", 30))


def send_body(server: Server, size: int, *, announced: bool) -> bytes:
    """Send so many bytes, or as many as are taken. Returns what was answered."""
    how = f"content-length: {size}" if announced else "transfer-encoding: chunked"
    head = wire.head_of("POST", "/v1/chat/completions", server.key, "content-type: application/json", how)
    part = b" " * 2**20
    chunk = part if announced else b"%x\r\n%s\r\n" % (len(part), part)
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(head)
        answer: list[bytes] = []

        def read() -> None:
            with suppress(OSError):
                while got := connection.recv(65_536):
                    answer.append(got)

        reading = threading.Thread(target=read)
        reading.start()
        with suppress(OSError):
            for _ in range(size // len(part)):
                connection.sendall(chunk)
            connection.shutdown(socket.SHUT_WR)
        reading.join(30)
        return b"".join(answer)


@linux
@pytest.mark.parametrize("announced", [True, False], ids=["announced", "in chunks"])
def test_gibibyte_is_refused_in_thirty_two_mebibytes(server: Server, announced: bool) -> None:
    with server.http as http:
        assert ask(http).status_code == 200
        pid = server.pid("gateway")
        before = process_facts.forget_peak(pid)
        answer = send_body(server, GIB, announced=announced)
        grown = process_facts.peak_bytes(pid) - before
        assert answer.startswith(b"HTTP/1.1 413")
        assert b"request_too_large" in answer
        assert grown <= 32 * 2**20, f"{grown / 2**20:.1f} MiB"
        assert ask(http).status_code == 200


@linux
def test_requests_of_every_kind_leave_no_descriptor_behind(server: Server) -> None:
    pids = {loop: server.pid(loop) for loop in ("gateway", "engine")}
    with server.http as http:
        ask(http)
        left: list[str] = []
        before = {loop: process_facts.descriptors(pid) for loop, pid in pids.items()}
        for number in range(10):
            ask(http, stream=number % 2 == 0)
            ask(http, n=99)
            with httpx.Client(base_url=server.url, trust_env=False) as stranger:
                stranger.get("/v1/models")
            if number % 4 == 0:
                left.append(leave(http))
        after = {loop: process_facts.descriptors(pid) for loop, pid in pids.items()}
        assert {turn: status_of(server, turn) for turn in left} == dict.fromkeys(left, "cancelled")
    assert all(after[loop] <= before[loop] + 4 for loop in pids), (before, after)


def everything_kept(folder: Path) -> Iterator[tuple[Path, bytes]]:
    for path in folder.rglob("*"):
        if path.is_file() and path.name not in {"api_key", "state.json", TERMINAL}:
            yield path, path.read_bytes()


def test_keys_are_in_no_log_no_database_and_no_answer(server: Server) -> None:
    state = json.loads((server.data_dir / "run" / "state.json").read_text("utf-8"))
    keys = [server.key, WRONG_KEY, *_strings_that_are_keys(state)]
    assert len(keys) >= 3, "the engine's own key is one"
    answers = []
    with server.http as http:
        answers += [ask(http), ask(http, stream=True), ask(http, n=99)]
        for path in ("/v1/models", "/v1/status", "/v1/turns", "/v1/versions", "/openapi.json", "/v1/nothing"):
            answers.append(http.get(path, params={"api_key": server.key}))
        wrong = {"authorization": f"Bearer {WRONG_KEY}"}
        answers.append(http.get("/v1/models", headers=wrong))
        answers.append(http.get("/v1/models", headers={"authorization": server.key}))
    told = [answer.content + repr(answer.headers).encode() for answer in answers]
    kept = dict(everything_kept(server.data_dir))
    assert any(path.suffix == ".log" for path in kept)
    assert any(path.name == "instar.db" for path in kept)
    for key in keys:
        assert not [path for path, content in kept.items() if key.encode() in content]
        assert not [content for content in told if key.encode() in content]
    assert not os.stat(server.data_dir / "run" / "state.json").st_mode & 0o077


def _strings_that_are_keys(state: object) -> list[str]:
    if not isinstance(state, dict):
        return []
    own = [value for name, value in state.items() if "key" in name and isinstance(value, str)]
    return own + [key for value in state.values() for key in _strings_that_are_keys(value)]


def test_no_id_can_forge_a_line_of_the_log(server: Server) -> None:
    with server.http as http:
        for body in (
            {"session_id": FORGED},
            {"prompt_cache_key": FORGED},
            {"metadata": {"session_id": FORGED}},
            {"model": f"instar@{FORGED}"},
            {"user": FORGED},
            {"messages": [{"role": "user", "content": FORGED, "name": FORGED}]},
            {"messages": [{"role": FORGED, "content": "hi"}]},
        ):
            ask(http, **body)
        http.get("/v1/versions/v1%0d%0a%7b%22event%22:%22forged%22%7d")
        http.get("/v1/turns", params={"session": FORGED, "before": FORGED})
        http.post("/v1/feedback", json={"turn": FORGED, "score": 1, "comment": FORGED})
        ask(http, stream=True, session_id="\x1b[31m" * 20)
    logs = [path.read_text("utf-8") for path in (server.data_dir / "run" / "logs").glob("*.log")]
    assert all("forged" not in log and "\x1b" not in log for log in logs)
    gateway = (server.data_dir / "run" / "logs" / "gateway.log").read_text("utf-8")
    assert all(isinstance(json.loads(line), dict) for line in gateway.splitlines())


def test_streams_are_finished_after_sigterm_and_the_status_is_zero(server: Server) -> None:
    """The last one: it ends the server."""
    ends: list[bytes] = []

    def stream(begun: threading.Event) -> None:
        body = {"model": "instar", "messages": HI, "stream": True, "max_tokens": 200}
        with server.http as http, http.stream("POST", "/v1/chat/completions", json=body) as answer:
            lines = []
            for line in answer.iter_lines():
                lines.append(line)
                begun.set()
            ends.append("\n".join(lines).encode())

    begun = [threading.Event() for _ in range(8)]
    clients = [threading.Thread(target=stream, args=(event,)) for event in begun]
    for client in clients:
        client.start()
    assert all(event.wait(30) for event in begun)
    server.process.send_signal(signal.SIGTERM)
    for client in clients:
        client.join(40)
    assert len(ends) == len(clients)
    assert all(b'"finish_reason": "stop"' in end and end.rstrip().endswith(b"data: [DONE]") for end in ends)
    assert server.process.wait(40) == 0
    exits = json.loads((server.data_dir / "run" / "pids.json").read_text("utf-8"))["loops"]
    assert exits["gateway"]["last_exit"] == 0
