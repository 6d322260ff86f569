"""The real vLLM, started as Instar starts it, for the checks of `make soak-vllm`."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from instar.config import EngineSettings
from tests.kit.live_server import free_port

KEY = "sk-engine"
RUN = """
import sys
from pathlib import Path
from instar.config import EngineSettings
from instar.engines import vllm_process
settings = EngineSettings.model_validate_json(sys.argv[3])
vllm_process.run(
    Path(sys.argv[1]), "127.0.0.1", int(sys.argv[2]), settings, sys.argv[4] or None,
    update_mib=0, log_path=Path(sys.argv[5]),
)
"""


def vllm_program() -> str:
    """`TEST_VLLM`, the program that `make soak-vllm` installs. Skips the test where it is not set."""
    program = os.environ.get("TEST_VLLM", "")
    if not program:
        pytest.skip("needs vLLM: make soak-vllm")
    return program


@contextmanager
def vllm_server(
    model_dir: Path, settings: EngineSettings, log_path: Path, key: str = "", patience_s: float = 1500
) -> Iterator[str]:
    """Its address, as soon as it is healthy."""
    port = free_port()
    with log_path.open("wb") as log:
        words = [str(model_dir), str(port), settings.model_dump_json(), key, str(log_path)]
        process = subprocess.Popen([sys.executable, "-c", RUN, *words], stdout=log, stderr=log)
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + patience_s
        while not _is_well(url):
            told = log_path.read_text("utf-8", "replace")[-4000:]
            assert process.poll() is None, told
            assert time.monotonic() < deadline, told
            time.sleep(0.5)
        yield url
    finally:
        process.terminate()
        assert process.wait(60) == 0


def _is_well(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=5).status_code == httpx.codes.OK
    except httpx.HTTPError:
        return False
