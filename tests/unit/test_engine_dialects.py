"""What each engine is asked and how its replies are read, against exchanges kept in data/engines."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from instar.engines.client import HttpEngine
from instar.engines.dialects import Asked, Sglang, Vllm, dialect_of
from instar.errors import EngineError, EngineUnavailable
from instar.ports import TokenChunk
from instar.records import BASE, Sampling
from tests.unit.test_engine_client import answering, collect

EXCHANGES = Path(__file__).parent / "data" / "engines"


def exchange(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((EXCHANGES / f"{name}.json").read_text("utf-8"))
    return found


def read(dialect: Vllm | Sglang, events: Iterable[Any], sampling: Sampling) -> list[TokenChunk]:
    reader = dialect.reader(sampling)
    return [chunk for chunk in map(reader, events) if chunk is not None]


def joined(chunks: list[TokenChunk]) -> tuple[list[int], list[float]]:
    return [i for c in chunks for i in c.ids], [value for c in chunks for value in c.logprobs]


def test_kinds_have_their_dialects() -> None:
    assert [type(dialect_of(kind)) for kind in ("embedded", "vllm", "url", "scripted", "sglang")] == [
        Vllm, Vllm, Vllm, Vllm, Sglang
    ]  # fmt: skip


# ── SGLang ───────────────────────────────────────────────────────────────────────────────────────────────
def sglang_event(
    tokens: list[tuple[float, int]], total: int, finish: Any = None, **more: Any
) -> dict[str, Any]:
    meta = {
        "id": "r1",
        "finish_reason": finish,
        "prompt_tokens": 3,
        "completion_tokens": total,
        "output_token_logprobs": [[value, token_id, None] for value, token_id in tokens],
        **more,
    }
    return {"text": "x", "output_ids": [token_id for _, token_id in tokens], "meta_info": meta}


TOKENS = [(-0.25, 10), (-1.5, 11), (-0.125, 12), (-0.0625, 2)]
STOPPED = {"type": "stop", "matched": 2}


@pytest.mark.parametrize("is_incremental", [False, True])
def test_sglang_tokens_are_read_once_however_they_are_streamed(is_incremental: bool) -> None:
    cuts = [(0, 1), (1, 3), (3, 3), (3, 4)]
    events = [
        sglang_event(TOKENS[start if is_incremental else 0 : end], end, STOPPED if end == 4 else None)
        for start, end in cuts
    ]
    chunks = read(Sglang(), events, Sampling(8))
    assert [chunk.ids for chunk in chunks] == [[10], [11, 12], [2]]
    assert joined(chunks)[1] == [-0.25, -1.5, -0.125, -0.0625]
    assert [chunk.finish_reason for chunk in chunks] == [None, None, "stop"]
    assert all(chunk.top is None and chunk.forced is None for chunk in chunks)


def test_sglang_answers_end_by_length_too_and_an_ending_may_come_alone() -> None:
    events = [sglang_event(TOKENS[:2], 2), sglang_event(TOKENS[:2], 2, {"type": "length", "length": 2})]
    assert read(Sglang(), events, Sampling(2)) == [
        TokenChunk([10, 11], [-0.25, -1.5]),
        TokenChunk([], [], "length"),
    ]


def test_sglang_alternatives_are_sorted_cut_and_belong_to_the_new_tokens() -> None:
    rows = [[[-3.0, 5, None], [-0.25, 10, None], [-1.0, 6, None]], [[-1.5, 11, None], [-0.5, 7, None]]]
    events = [
        sglang_event(TOKENS[:1], 1, output_top_logprobs=rows[:1]),
        sglang_event(TOKENS[:2], 2, STOPPED, output_top_logprobs=rows),
    ]
    first, second = read(Sglang(), events, Sampling(8, top_logprobs=2))
    assert first.top == [[(10, -0.25), (6, -1.0)]]
    assert second.top == [[(7, -0.5), (11, -1.5)]]


@pytest.mark.parametrize(
    ("events", "kind", "status"),
    [
        ([{"error": {"message": "The input is too long"}}], EngineError, 400),
        ([sglang_event(TOKENS[:1], 1), {"error": {"message": "broken"}}], EngineError, 500),
        ([{"error": {"message": "no", "code": 503}}], EngineError, 503),
        ([sglang_event(TOKENS[:1], 3)], EngineError, 200),
        ([sglang_event([], 2)], EngineError, 200),
        ([{"text": "x"}], EngineError, 200),
        ([sglang_event([(None, 10)], 1)], EngineError, 200),  # type: ignore[list-item]
        ([sglang_event([], 0, {"type": "abort", "message": "given up"})], EngineUnavailable, 0),
        ([sglang_event([], 0, {"type": "abort", "message": "bad", "status_code": 400})], EngineError, 400),
    ],
)
def test_sglang_failures_are_errors_and_never_a_number(events: list[Any], kind: type, status: int) -> None:
    with pytest.raises(EngineError) as caught:
        read(Sglang(), events, Sampling(8))
    assert type(caught.value) is kind
    assert caught.value.status == status


def test_sglang_is_asked_for_everything_that_decides_what_is_sampled() -> None:
    sampling = Sampling(8, temperature=0.7, top_p=0.9, seed=3, grammar={"json": {"type": "object"}})
    body = Sglang().body(Asked("base", "v7", [5, 6], sampling, [2], 10))
    assert body == {
        "input_ids": [5, 6],
        "sampling_params": {
            "max_new_tokens": 8,
            "temperature": 0.7,
            "top_p": 0.9,
            "top_k": -1,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "stop_token_ids": [2],
            "json_schema": '{"type":"object"}',
            "sampling_seed": 3,
        },
        "stream": True,
        "return_logprob": True,
        "top_logprobs_num": 0,
        "lora_path": "v7",
        "priority": 10,
    }
    plain = Sglang().body(Asked("base", None, [5], Sampling(8), [2]))
    assert not {"lora_path", "priority"} & set(plain)
    assert not {"json_schema", "sampling_seed"} & set(plain["sampling_params"])


def test_sglang_is_not_asked_for_what_it_cannot_obey() -> None:
    with pytest.raises(EngineError, match="Lark") as caught:
        Sglang().body(Asked("base", None, [5], Sampling(8, grammar={"grammar": "start: /a/"}), [2]))
    assert caught.value.status == 400


def sglang_server(seen: list[Any]) -> Any:
    replies = iter(exchange("sglang_adapters")["replies"])

    async def handler(request: web.Request) -> web.StreamResponse:
        seen.append((request.path, await request.json()))
        reply = next(replies)
        return web.json_response(reply["body"], status=reply["status"])

    return handler


async def test_sglang_adapters_come_and_go_by_its_own_routes() -> None:
    seen: list[Any] = []
    async with answering(sglang_server(seen)) as plain:
        client = HttpEngine(plain._url, "base-model", [2], dialect=Sglang())
        await client.load("v1", Path("/versions/v1"))
        await client.load("v1", Path("/versions/v1"))  # already loaded
        with pytest.raises(EngineError, match="rank"):
            await client.load("v2", Path("/versions/v2"))
        await client.unload("v1")
        await client.unload("v1")  # not loaded any longer
        await client.close()
    assert [path for path, _ in seen] == ["/load_lora_adapter"] * 3 + ["/unload_lora_adapter"] * 2
    assert seen[0][1] == {"lora_name": "v1", "lora_path": "/versions/v1"}
    assert seen[3][1] == {"lora_name": "v1"}


async def test_sglang_scores_a_text() -> None:
    scored = [[None, 5, None], [-0.5, 6, None], [-1.25, 7, None]]

    async def handler(request: web.Request) -> web.StreamResponse:
        assert request.path == "/generate"
        assert (await request.json())["logprob_start_len"] == 0
        return web.json_response({"meta_info": {"input_token_logprobs": scored}})

    async with answering(handler) as plain:
        client = HttpEngine(plain._url, "base-model", [2], dialect=Sglang())
        assert await client.score("v1", [5, 6, 7]) == [-0.5, -1.25]
        with pytest.raises(EngineError):
            await client.score("v1", [5, 6, 8])
        await client.close()


# ── one engine for several servers ───────────────────────────────────────────────────────────────────────
async def test_at_a_shared_engine_a_versions_name_tells_what_is_in_it(tmp_path: Path) -> None:
    loaded: dict[str, str] = {}
    asked: list[str] = []

    async def handler(request: web.Request) -> web.StreamResponse:
        if request.path == "/v1/models":
            rows = [{"id": name, "parent": "base-model"} for name in [*loaded, "somebody-elses"]]
            return web.json_response({"data": [{"id": "base-model"}, *rows]})
        body = await request.json()
        if request.path == "/v1/load_lora_adapter":
            loaded[body["lora_name"]] = body["lora_path"]
        elif request.path == "/v1/unload_lora_adapter":
            del loaded[body["lora_name"]]
        else:
            asked.append(body["model"])
            return web.json_response({"error": {"message": "enough"}}, status=400)
        return web.json_response({})

    folders = [tmp_path / name for name in ("one", "two")]
    for folder in folders:
        folder.mkdir()
        (folder / "adapter_model.safetensors").write_text(folder.name)
    async with answering(handler) as plain:
        clients = [HttpEngine(plain._url, "base-model", [2], shared=True) for _ in folders]
        for client, folder in zip(clients, folders, strict=True):
            await client.load("v1", folder)
            for version in ("v1", BASE):
                with pytest.raises(EngineError, match="enough"):
                    await collect(client, version)
            assert await client.loaded() == {BASE, "v1"}
        assert len(loaded) == 2
        first, second = loaded
        assert asked == [first, "base-model", second, "base-model"]
        assert all(name.startswith("v1-") for name in loaded)
        await clients[0].unload("v1")
        assert [*loaded.values()] == [str(folders[1])]
        assert await clients[0].loaded() == {BASE}
        for client in clients:
            await client.close()


async def test_an_engine_without_our_model_is_told_by_the_names_that_it_has() -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        return web.json_response({"data": [{"id": "Qwen/Qwen3-8B"}, {"id": "v1", "parent": "Qwen/Qwen3-8B"}]})

    async with answering(handler) as client:
        with pytest.raises(EngineError, match=r"no model named 'base-model' but Qwen/Qwen3-8B.*engine\.base"):
            await client.loaded()
