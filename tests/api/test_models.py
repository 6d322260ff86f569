"""`GET /v1/models` tells clients what they can ask for, and how long it may be."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from instar import compose
from instar.config import load_settings
from instar.workers.state import RunState
from tests.kit.live_gateway import live_gateway
from tests.kit.tiny_model import write_chat_files


@pytest.mark.parametrize("length", [512, 8192])
async def test_every_model_tells_its_context_under_both_names(tmp_path: Path, length: int) -> None:
    async with live_gateway(tmp_path, context_length=length) as live:
        live.publish("v1")
        rows = (await live.http.get("/v1/models")).json()["data"]
        assert [row["id"] for row in rows] == ["instar", "instar@base", "instar@v1"]
        for row in rows:
            assert (row["context_length"], row["max_model_len"]) == (length, length)
            assert (await live.http.get(f"/v1/models/{row['id']}")).json() == row
        told = await live.openai.models.list()
        assert [model.id for model in told.data] == ["instar", "instar@base", "instar@v1"]


async def test_engine_that_takes_less_than_the_model_was_made_for_is_asked_for_less(tmp_path: Path) -> None:
    async with live_gateway(tmp_path, context_length=512) as live:
        live.engine.context_length = 100
        while (await live.http.get("/v1/models/instar")).json()["context_length"] != 100:
            await asyncio.sleep(0.02)
        assert (await live.ask("hi", max_tokens=500)).status_code == 200
        prompt, sampling = live.engine.prompts[-1], live.engine.samplings[-1]
        assert len(prompt) + sampling.max_tokens == 100
        refused = await live.ask("x" * 100)
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "context_length_exceeded")
        assert "100" in refused.json()["error"]["message"]
        ids = await live.http.post("/v1/completions", json={"model": "instar", "prompt": [5] * 101})
        assert (ids.status_code, ids.json()["error"]["code"]) == (400, "context_length_exceeded")


@pytest.mark.parametrize(("kind", "length"), [("embedded", 300), ("url", 512)])
def test_embedded_engine_holds_no_more_than_its_setting(tmp_path: Path, kind: str, length: int) -> None:
    model = write_chat_files(tmp_path / "model", 512)
    engine = {"kind": kind, "max_cached_tokens": 300, "url": "http://localhost:8000"}
    settings = load_settings(tmp_path / "data", {"engine": engine})
    state = RunState(model, "127.0.0.1", 8000, "", "", "http://localhost:8000")
    assert compose.chat_format(settings, state).context_length == length
