"""Engines as processes: ready when they say so, gone when told, no torch where none is needed."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.kit.tiny_model import write_chat_files, write_tiny_model

PROGRAM = """
from pathlib import Path
from instar.config import EngineSettings
from instar.engines.{kind} import run
run(Path({folder!r}), "127.0.0.1", {port}, EngineSettings(threads=1), None)
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def process(kind: str, folder: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    program = PROGRAM.format(kind=kind, folder=str(folder), port=port)
    child = subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE)
    try:
        yield child
    finally:
        child.kill()
        child.wait()


def wait_ready(child: subprocess.Popen[bytes], port: int) -> None:
    while child.poll() is None:
        try:
            if httpx.get(f"http://127.0.0.1:{port}/health").status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.05)
    raise AssertionError(child.stderr.read().decode() if child.stderr else "it ended")


@pytest.mark.parametrize("kind", ["scripted", "embedded"])
def test_serves_until_told_to_stop(kind: str, tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path / "tiny") if kind == "embedded" else write_chat_files(tmp_path / "m")
    port = free_port()
    with process(kind, folder, port) as child:
        wait_ready(child, port)
        body = {"model": "base", "prompt": [50, 51], "max_tokens": 400, "stream": True, "logprobs": 0}
        url = f"http://127.0.0.1:{port}/v1/completions"
        with httpx.stream("POST", url, json=body, timeout=30) as response:
            assert next(response.iter_lines()).startswith("data: ")
            child.send_signal(signal.SIGTERM)
            assert child.wait(20) == 0


def test_stops_while_it_still_loads(tmp_path: Path) -> None:
    port = free_port()
    with process("embedded", write_tiny_model(tmp_path / "tiny"), port) as child:
        while child.poll() is None:
            try:
                assert httpx.get(f"http://127.0.0.1:{port}/health").status_code in (200, 503)
                break
            except httpx.TransportError:
                time.sleep(0.02)
        os.kill(child.pid, signal.SIGTERM)
        assert child.wait(20) == 0


def test_unusable_model_ends_it_with_words(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path / "tiny")
    (folder / "model.safetensors").write_bytes(b"\0" * 100)
    with process("embedded", folder, free_port()) as child:
        assert child.wait(60) != 0
        assert child.stderr is not None
        assert "model.safetensors cannot be read" in child.stderr.read().decode()


def test_client_and_model_folders_need_no_torch() -> None:
    program = (
        "import sys, instar.engines.client, instar.engines.starter, instar.engines.scripted, "
        "instar.engines.embedded; print([m for m in ('torch', 'transformers') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
