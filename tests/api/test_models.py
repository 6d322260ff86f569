"""`GET /v1/models` tells clients what they can ask for, and how long it may be."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.live_gateway import live_gateway


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
