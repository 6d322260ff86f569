"""The real OpenClaw on the real starter model, set up by the commands of the README: nothing is scripted here."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.client.test_openclaw_talks import CORRECTION, PRAISE
from tests.kit import real_openclaw
from tests.kit.live_server import running_server
from tests.kit.real_openclaw import connect

pytestmark = [
    pytest.mark.clients, pytest.mark.soak, pytest.mark.model, pytest.mark.timeout(1800)
]  # fmt: skip


def test_stock_prompt_is_refused_and_the_small_one_learns_from_a_correction(tmp_path: Path) -> None:
    with running_server(tmp_path / "data", "--set", "gate.held_back=0") as server:
        home = tmp_path / "home"
        home.mkdir()
        refused = connect(home, server.url, server.key, "--write")
        assert refused.returncode == 2
        assert "--small" in refused.stderr
        client = real_openclaw.install(home / "client", server.url, server.key)
        model = client.config["models"]["providers"]["instar"]["models"][0]
        assert (model["contextWindow"], model["maxTokens"]) == (8192, 1024)
        config = client.config
        config["models"]["providers"]["instar"]["models"][0]["maxTokens"] = 48  # it would go on and on
        client.save(config)
        with real_openclaw.running(client):
            for text in ("Write one line about cats.", CORRECTION, PRAISE):
                begun = time.monotonic()
                answer = client.post(text, "cats", timeout_s=600)
                assert answer.status_code == 200, f"{answer.text}\n{client.log()}"
                print(f"{text!r}: {time.monotonic() - begun:.1f} s, {answer.json()['usage']}")
        rows = server.until(
            "/v1/turns", lambda body: sum(row["score"] is not None for row in body["data"]) >= 2, 60
        )["data"][::-1]
        talk = [row for row in rows if row["kind"] != "side"]
        assert [row["question"] for row in talk if row["kind"] == "main"] == [
            "Write one line about cats.", CORRECTION, PRAISE,
        ]  # fmt: skip
        first = talk[0]
        assert (first["score"], first["hint"]) == (-1, CORRECTION)
        assert 1_500 < first["prompt_tokens"] < 3_000, "the size that `instar connect` reckons with"
        told = subprocess.run(
            [sys.executable, "-m", "instar", "connect", "openclaw", "--check", "--json",
             "--config", str(client.config_file), "--data-dir", str(tmp_path / "data")],
            capture_output=True, text=True, timeout=120, check=True,
        )  # fmt: skip
        found = json.loads(told.stdout)
        assert found["remarks"] == []
        assert found["text"].strip()
        assert found["version"] == "base"
