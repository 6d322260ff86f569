"""Versions come and go while requests run, and each request is wholly under one. On every engine."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from instar.engines.client import HttpEngine
from instar.errors import EngineError
from instar.records import BASE, Sampling
from tests.contract.conftest import (
    SETTINGS,
    Endpoint,
    change_tensor,
    gather_answer,
    ids_of,
    logprobs_of,
    write_adapter,
)

PROMPT = [40, 41, 42, 43]
GREEDY = Sampling(max_tokens=24, temperature=0)


async def test_loaded_version_answers_unlike_base(engine: Endpoint, client: HttpEngine) -> None:
    await client.load("v1", write_adapter(engine.tmp / "v1", 1))
    assert await client.loaded() == {BASE, "v1"}
    assert client.context_length == 512
    base = await gather_answer(client, BASE, PROMPT, GREEDY)
    tuned = await gather_answer(client, "v1", PROMPT, GREEDY)
    assert ids_of(base) != ids_of(tuned)
    assert logprobs_of(base)[0] != logprobs_of(tuned)[0]


async def test_model_list_names_parents(engine: Endpoint) -> None:
    engine.load("v1", write_adapter(engine.tmp / "v1", 1))
    models = httpx.get(engine.url + "/v1/models", timeout=30).json()["data"]
    assert models[0]["id"] == engine.base
    assert models[0]["max_model_len"] == 512
    assert [(m["id"], m["parent"]) for m in models[1:]] == [("v1", engine.base)]


async def test_loading_twice_and_unloading_unknown_are_no_errors_for_the_client(
    engine: Endpoint, client: HttpEngine
) -> None:
    folder = write_adapter(engine.tmp / "v1", 1)
    await client.load("v1", folder)
    await client.load("v1", folder)
    assert await client.loaded() == {BASE, "v1"}
    await client.unload("v1")
    await client.unload("v1")
    assert await client.loaded() == {BASE}
    assert engine.unload("v1").status_code == 404


async def test_unloaded_version_is_unknown(engine: Endpoint, client: HttpEngine) -> None:
    await client.load("v1", write_adapter(engine.tmp / "v1", 1))
    await client.unload("v1")
    with pytest.raises(EngineError) as caught:
        await gather_answer(client, "v1", PROMPT, GREEDY)
    assert caught.value.status == 404


@pytest.mark.ours
def test_name_of_another_folder_is_taken(engine: Endpoint) -> None:
    assert engine.load("v1", write_adapter(engine.tmp / "one", 1)).status_code == 200
    refused = engine.load("v1", write_adapter(engine.tmp / "two", 2))
    assert refused.status_code == 400
    assert "taken" in refused.json()["error"]["message"]
    assert engine.load(engine.base, engine.tmp / "one").status_code == 400


@pytest.mark.ours
def test_more_adapters_than_fit_are_refused(engine: Endpoint) -> None:
    for number in range(SETTINGS.max_loras):
        folder = write_adapter(engine.tmp / f"v{number}", number)
        assert engine.load(f"v{number}", folder).status_code == 200
    extra = engine.load("more", write_adapter(engine.tmp / "more", 9))
    assert extra.status_code == 400
    assert "max_loras" in extra.json()["error"]["message"]
    engine.unload("v0")
    assert engine.load("more", engine.tmp / "more").status_code == 200


@pytest.mark.ours  # in vLLM a row's rounding depends on its batch: see test_vllm.py
async def test_versions_side_by_side_answer_as_if_alone(engine: Endpoint, client: HttpEngine) -> None:
    for number in (1, 2):
        await client.load(f"v{number}", write_adapter(engine.tmp / f"v{number}", number))
    plan = [(version, [50 + i, 51, 52]) for i in range(4) for version in (BASE, "v1", "v2")]
    alone = [await gather_answer(client, version, prompt, GREEDY) for version, prompt in plan]
    together = await asyncio.gather(
        *(gather_answer(client, version, prompt, GREEDY) for version, prompt in plan)
    )
    assert [ids_of(chunks) for chunks in together] == [ids_of(chunks) for chunks in alone]
    for mixed, single in zip(together, alone, strict=True):
        assert logprobs_of(mixed) == pytest.approx(logprobs_of(single), abs=1e-3)


async def test_unloading_does_not_touch_an_answer_under_way(engine: Endpoint, client: HttpEngine) -> None:
    long = Sampling(max_tokens=300, temperature=0)
    unstoppable = HttpEngine(engine.url, engine.base, [])
    await client.load("v1", write_adapter(engine.tmp / "v1", 1))
    alone = await gather_answer(unstoppable, "v1", PROMPT, long)
    answer = unstoppable.sample("v1", PROMPT, long)
    chunks = [await anext(answer)]
    await client.unload("v1")
    await client.load("v2", write_adapter(engine.tmp / "v2", 2))
    # the old name may even mean something else now
    await client.load("v1", write_adapter(engine.tmp / "other", 3))
    chunks += [chunk async for chunk in answer]
    await unstoppable.close()
    assert ids_of(chunks) == ids_of(alone)


async def test_versions_come_and_go_while_requests_run(engine: Endpoint, client: HttpEngine) -> None:
    folders = [write_adapter(engine.tmp / f"v{number}", number) for number in range(6)]
    await client.load("steady", write_adapter(engine.tmp / "steady", 77))
    expected = ids_of(await gather_answer(client, "steady", PROMPT, GREEDY))

    async def swap() -> None:
        for number, folder in enumerate(folders):
            await client.load(f"v{number}", folder)
            await gather_answer(client, f"v{number}", PROMPT, Sampling(max_tokens=2, temperature=0))
            await client.unload(f"v{number}")

    swapping = asyncio.create_task(swap())
    answers = []
    while not swapping.done() or not answers:
        answers.append(ids_of(await gather_answer(client, "steady", PROMPT, GREEDY)))
    await swapping
    assert all(ids == expected for ids in answers)


def _cut(folder: Path) -> None:
    path = folder / "adapter_model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def _garbage(folder: Path) -> None:
    (folder / "adapter_model.safetensors").write_bytes(b"\xff" * 4000)


def _no_weights(folder: Path) -> None:
    (folder / "adapter_model.safetensors").unlink()


def _no_config(folder: Path) -> None:
    (folder / "adapter_config.json").unlink()


def _broken_config(folder: Path) -> None:
    (folder / "adapter_config.json").write_text('{"peft_type": "LORA", ')


def _configured(**changes: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / "adapter_config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return change


def _without_half(folder: Path) -> None:
    change_tensor(folder, lambda tensors: tensors.pop(next(iter(tensors))))


def _unknown_tensor(folder: Path) -> None:
    def add(tensors: dict[str, Any]) -> None:
        tensors["something.else"] = np.zeros(3, np.float32)

    change_tensor(folder, add)


DAMAGES = {
    "cut file": _cut,
    "garbage": _garbage,
    "no weights": _no_weights,
    "no config": _no_config,
    "broken config": _broken_config,
    "rank above the limit": _configured(r=64),
    "another rank": _configured(r=8),
    "no rank": _configured(r=None),
    "dora": _configured(use_dora=True),
    "not lora": _configured(peft_type="IA3"),
    "half of a pair": _without_half,
    "unknown tensor": _unknown_tensor,
}


@pytest.mark.ours
@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_damaged_adapter_is_refused_and_serving_goes_on(
    engine: Endpoint, damage: Callable[[Path], None]
) -> None:
    before = engine.complete()
    folder = write_adapter(engine.tmp / "bad", 1)
    damage(folder)
    refused = engine.load("bad", folder)
    assert refused.status_code == 400
    assert str(folder) in refused.json()["error"]["message"]
    assert engine.names() == {engine.base}
    assert engine.complete() == before


@pytest.mark.parametrize("path", ["relative/dir", "/no/such/folder"])
def test_adapter_path_must_be_a_folder(engine: Endpoint, path: str) -> None:
    assert engine.load("v1", Path(path)).status_code in (400, 404)  # vLLM: nothing found there
