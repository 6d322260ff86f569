"""An OpenAI-compatible server for the model judge: a real socket, and replies from a script."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Script = Callable[[str, int], Any]
"""From prompt and number of the request to a reply: text, or an Answer that is no proper completion."""


class Answer(Exception):
    """An answer as it goes over the wire."""

    def __init__(self, status: int = 200, body: bytes = b"", headers: dict[str, str] | None = None) -> None:
        super().__init__()
        self.status, self.body, self.headers = status, body, headers or {}


def code_of(prompt: str) -> str:
    """The code of a prompt, as a model would read it there."""
    found = re.search(r'Lines that begin with "([0-9a-f]+)"', prompt)
    assert found, prompt
    return found[1]


def verdict(prompt: str, score: Any, hint: str | None = None, **changes: Any) -> str:
    """A reply in the form that the prompt asks for."""
    return json.dumps({"code": code_of(prompt), "verdict": score, "hint": hint, **changes})


class JudgeServer(ThreadingHTTPServer):
    """`asked` keeps bodies and headers in order. `release` lets go of requests that hang."""

    daemon_threads = True

    def __init__(self, script: Script) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.script = script
        self.asked: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        self.release = threading.Event()
        self.hanging = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"

    def hang(self) -> None:
        """For a script: nothing comes until `release` is set."""
        self.hanging.set()
        self.release.wait(60)

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # a judge that hangs up at its deadline is what some tests are about


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: JudgeServer

    def log_message(self, *args: Any) -> None:
        pass

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        number = len(self.server.asked)
        self.server.asked.append(body)
        self.server.headers.append({name.lower(): value for name, value in self.headers.items()})
        self.server.paths.append(self.path)
        reply = self.server.script(body["messages"][-1]["content"], number)
        if not isinstance(reply, Answer):
            message = {"role": "assistant", "content": reply}
            reply = Answer(body=json.dumps({"choices": [{"index": 0, "message": message}]}).encode())
        self.send_response(reply.status)
        for name, value in {"content-length": str(len(reply.body)), **reply.headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(reply.body)


@contextmanager
def judge_server(script: Script) -> Iterator[JudgeServer]:
    server = JudgeServer(script)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.release.set()
        server.shutdown()
        server.server_close()
