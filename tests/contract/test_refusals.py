"""Bad requests get the right status and a message; the engine goes on. On every engine."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from instar.config import EngineSettings
from instar.engines.client import HttpEngine
from instar.engines.scripted import ScriptedEngine
from instar.errors import EngineError, EngineUnavailable
from instar.records import BASE, Sampling
from tests.contract.conftest import COMMON, CONTEXT, SETTINGS, Endpoint, gather_answer

BAD_FIELDS: list[dict[str, Any]] = [
    {"prompt": "text"},
    {"prompt": []},
    {"prompt": [1, -2]},
    {"prompt": [1, 2.5]},
    {"prompt": [1, True]},
    {"prompt": [1, 259]},
    {"prompt": [[1, 2]]},
    {"prompt": None},
    {"max_tokens": 0},
    {"max_tokens": "8"},
    {"max_tokens": 2.5},
    {"temperature": -1},
    {"temperature": "hot"},
    {"temperature": float("nan")},
    {"top_p": 0},
    {"top_p": 1.5},
    {"seed": "x"},
    {"stream": 1},
    {"logprobs": 21},
    {"logprobs": -1},
    {"stop_token_ids": [-1]},
    {"stop_token_ids": 2},
    {"priority": "high"},
    {"model": 7},
    {"prompt_logprobs": 1, "stream": True},
    {"n": 2},
    {"top_k": 5},
    {"stop": ["x"]},
    {"repetition_penalty": 1.2},
    {"structured_outputs": {"structural_tag": "{}"}},
]


@pytest.mark.ours
@pytest.mark.parametrize("fields", BAD_FIELDS, ids=str)
def test_bad_field_is_refused(engine: Endpoint, fields: dict[str, Any]) -> None:
    import json

    body = json.dumps({**COMMON, "model": engine.base, **fields})
    response = httpx.post(engine.url + "/v1/completions", content=body, timeout=30)
    assert response.status_code == 400
    error = response.json()["error"]
    assert next(iter(fields)) in error["message"]
    assert error["type"] == "invalid_request_error"


@pytest.mark.ours
@pytest.mark.parametrize("body", [b"", b"{", b"[1]", b'"text"', b"\xff\xfe", b"[" * 100_000])
def test_body_that_is_no_object_is_refused(engine: Endpoint, body: bytes) -> None:
    for path in ("/v1/completions", "/v1/load_lora_adapter", "/v1/unload_lora_adapter"):
        assert httpx.post(engine.url + path, content=body, timeout=30).status_code == 400
    assert engine.complete()["token_ids"]


@pytest.mark.ours
def test_neutral_values_of_unsupported_fields_are_fine(engine: Endpoint) -> None:
    neutral = {"n": 1, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0, "stop": None, "echo": False}
    assert engine.complete(**neutral) == engine.complete()


@pytest.mark.ours
def test_prompt_and_answer_must_fit_the_context(engine: Endpoint) -> None:
    body = {**COMMON, "model": engine.base}
    fits = {**body, "prompt": [9] * (CONTEXT - 2), "max_tokens": 2}
    assert engine.post("/v1/completions", **fits).status_code == 200
    too_long = engine.post("/v1/completions", **{**fits, "max_tokens": 3})
    assert too_long.status_code == 400
    assert too_long.json()["error"]["code"] == "context_length_exceeded"
    assert str(CONTEXT) in too_long.json()["error"]["message"]


def test_unknown_model_and_route_are_404(engine: Endpoint) -> None:
    response = engine.post("/v1/completions", **{**COMMON, "model": "v99"})
    assert response.status_code == 404
    assert "v99" in response.json()["error"]["message"]
    assert engine.post("/v1/nothing").status_code == 404
    assert engine.unload("v99").status_code == 404


@pytest.mark.ours
async def test_full_queue_is_429_and_the_rest_is_served(engine: Endpoint) -> None:
    room = SETTINGS.max_streams + SETTINGS.max_waiting
    body = {**COMMON, "model": engine.base, "max_tokens": 200, "stop_token_ids": []}
    if isinstance(engine.server.backend, ScriptedEngine):
        engine.server.backend.first_token_s = 0.3
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(timeout=60, limits=limits) as http:
        responses = await asyncio.gather(
            *(http.post(engine.url + "/v1/completions", json=body) for _ in range(3 * room))
        )
    if isinstance(engine.server.backend, ScriptedEngine):
        engine.server.backend.first_token_s = 0
    statuses = [response.status_code for response in responses]
    assert set(statuses) == {200, 429}
    assert statuses.count(200) >= room
    refused = next(response for response in responses if response.status_code == 429)
    assert int(refused.headers["retry-after"]) >= 1
    assert engine.complete()["token_ids"]


async def test_client_maps_statuses_to_errors(engine: Endpoint, client: HttpEngine) -> None:
    for version, prompt, status in (("v99", [5], 404), (BASE, [5] * CONTEXT, 400)):
        with pytest.raises(EngineError) as caught:
            await gather_answer(client, version, prompt, Sampling(max_tokens=4))
        assert caught.value.status == status
        assert not isinstance(caught.value, EngineUnavailable)


async def test_key_is_asked_for_where_one_is_set() -> None:
    async with ScriptedEngine(api_key="secret", settings=EngineSettings()) as guarded:
        for key in (None, "wrong"):
            stranger = HttpEngine(guarded.base_url, guarded.base_name, [2], key)
            with pytest.raises(EngineError) as caught:
                await gather_answer(stranger, BASE, [5], Sampling(max_tokens=2))
            assert caught.value.status == 401
            assert await stranger.healthy()
            await stranger.close()
        friend = HttpEngine(guarded.base_url, guarded.base_name, [2], "secret")
        assert await gather_answer(friend, BASE, [5], Sampling(max_tokens=2))
        await friend.close()


async def test_engine_that_is_not_ready_is_unavailable() -> None:
    async with ScriptedEngine() as loading:
        loading.is_ready = False
        client = HttpEngine(loading.base_url, loading.base_name, [2])
        assert not await client.healthy()
        with pytest.raises(EngineUnavailable):
            await gather_answer(client, BASE, [5], Sampling(max_tokens=2))
        loading.is_ready = True
        assert await client.healthy()
        await client.close()
