"""The client against replies as vLLM writes them, and against engines that misbehave."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from instar.engines.client import HttpEngine
from instar.engines.scripted import Failure, ScriptedEngine, scripted_logprob
from instar.errors import EngineError, EngineUnavailable
from instar.ports import TokenChunk
from instar.records import BASE, Sampling

SAMPLING = Sampling(max_tokens=8, temperature=0.7, top_p=0.9, seed=3)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def answering(handler: Handler, name: str = "base-model") -> AsyncIterator[HttpEngine]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    client = HttpEngine(f"http://{host}:{port}/", name, [2])
    try:
        yield client
    finally:
        await client.close()
        await runner.cleanup()


def event(choice: dict[str, Any] | None, **more: Any) -> bytes:
    choices = [] if choice is None else [{"index": 0, **choice}]
    return b"data: " + json.dumps({"id": "cmpl-1", "choices": choices, **more}).encode() + b"\n\n"


def token(ids: list[int], finish: str | None = None, **more: Any) -> dict[str, Any]:
    named = [f"token_id:{i}" for i in ids]
    logprobs = {
        "tokens": named,
        "token_logprobs": [-0.5] * len(ids),
        "top_logprobs": [{name: -0.5, "token_id:9": -1.5, "token_id:8": -0.9} for name in named],
    }
    return {"text": "x", "token_ids": ids, "logprobs": logprobs, "finish_reason": finish, **more}


def stream(*pieces: bytes, done: bool = True) -> Handler:
    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for piece in (*pieces, b"data: [DONE]\n\n") if done else pieces:
            await response.write(piece)
            await asyncio.sleep(0)
        return response

    return handler


async def collect_into(found: list[int], client: HttpEngine, version: str = "v1") -> None:
    async for chunk in client.sample(version, [5, 6], SAMPLING):
        found += chunk.ids


async def collect(client: HttpEngine, version: str = "v1", sampling: Sampling = SAMPLING) -> list[TokenChunk]:
    return [chunk async for chunk in client.sample(version, [5, 6], sampling)]


async def test_vllm_stream_with_its_extra_events() -> None:
    first = {"text": "", "token_ids": [], "logprobs": None, "finish_reason": None, "prompt_token_ids": [5, 6]}
    pieces = [
        event(first),
        b": comment\n\n",
        event(token([10, 11])),
        event(token([2], "stop", stop_reason=2)),
        event(None, usage={"prompt_tokens": 2}),
    ]
    async with answering(stream(*pieces)) as client:
        assert await collect(client) == [
            TokenChunk([10, 11], [-0.5, -0.5]),
            TokenChunk([2], [-0.5], "stop"),
        ]


async def test_events_cut_anywhere_are_put_together() -> None:
    whole = event(token([10])) + event(token([11], "length"))
    pieces = [whole[i : i + 7] for i in range(0, len(whole), 7)]
    async with answering(stream(*pieces)) as client:
        assert [chunk.ids for chunk in await collect(client)] == [[10], [11]]


async def test_ids_are_read_from_token_names_where_token_ids_are_missing() -> None:
    choice = token([12, 2], "stop")
    del choice["token_ids"]
    async with answering(stream(event(choice))) as client:
        assert [chunk.ids for chunk in await collect(client)] == [[12, 2]]


async def test_alternatives_are_sorted_and_cut() -> None:
    async with answering(stream(event(token([10], "length")))) as client:
        (chunk,) = await collect(client, sampling=Sampling(max_tokens=1, top_logprobs=2))
        assert chunk.top == [[(10, -0.5), (8, -0.9)]]


async def test_request_says_everything_that_decides_what_is_sampled() -> None:
    seen: list[dict[str, Any]] = []

    async def handler(request: web.Request) -> web.StreamResponse:
        seen.append(await request.json())
        return await stream(event(token([2], "stop")))(request)

    async with answering(handler) as client:
        await collect(client, BASE)
        await collect(client, "v7")
    assert [body["model"] for body in seen] == ["base-model", "v7"]
    body = seen[0]
    assert (body["prompt"], body["max_tokens"], body["temperature"]) == ([5, 6], 8, 0.7)
    assert (body["top_p"], body["seed"], body["stop_token_ids"]) == (0.9, 3, [2])
    assert body["return_token_ids"]
    assert body["return_tokens_as_token_ids"]
    assert body["logprobs"] == 0
    # vLLM would take these from the model's folder
    assert (body["top_k"], body["min_p"], body["repetition_penalty"]) == (-1, 0.0, 1.0)
    assert "priority" not in body


@pytest.mark.parametrize(
    ("pieces", "done"),
    [
        ([event(token([10]))], True),
        ([event(token([10]))], False),
        ([event(token([10])), event(token([], "abort"))], True),
    ],
    ids=["no ending", "cut", "aborted"],
)
async def test_answer_without_an_ending_is_unavailable(pieces: list[bytes], done: bool) -> None:
    async with answering(stream(*pieces, done=done)) as client:
        found: list[int] = []
        with pytest.raises(EngineUnavailable):
            await collect_into(found, client)
        assert found == [10]


@pytest.mark.parametrize(
    "piece",
    [
        b"data: {nonsense\n\n",
        event({"token_ids": [10], "logprobs": None, "finish_reason": None}),
        event(None, error={"message": "out of memory", "code": 500}),
        event({"logprobs": {"tokens": ["word"], "token_logprobs": [-1]}, "finish_reason": None}),
    ],
    ids=["no JSON", "no log-probs", "error event", "no ids"],
)
async def test_unreadable_answer_is_an_error_and_never_a_number(piece: bytes) -> None:
    async with answering(stream(piece)) as client:
        with pytest.raises(EngineError):
            await collect(client)


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (400, '{"error": {"message": "too long", "code": 400}}', EngineError),
        (404, '{"object": "error", "message": "no such model"}', EngineError),
        (429, '{"error": {"message": "full"}}', EngineError),
        (500, "<html>oops</html>", EngineError),
        (503, "", EngineUnavailable),
    ],
)
async def test_status_becomes_an_error(status: int, body: str, kind: type[EngineError]) -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        return web.Response(status=status, text=body)

    async with answering(handler) as client:
        with pytest.raises(EngineError) as caught:
            await collect(client)
        assert type(caught.value) is kind
        assert caught.value.status == status
        assert str(caught.value)


@pytest.mark.parametrize(
    ("told", "known"), [({"max_model_len": 4096}, 4096), ({"max_model_len": None}, None), ({}, None)]
)
async def test_context_that_the_engine_was_started_with_is_known(
    told: dict[str, Any], known: int | None
) -> None:
    async def models(request: web.Request) -> web.StreamResponse:
        rows = [{"id": "base-model", **told}, {"id": "v1", "parent": "base-model", "max_model_len": 1}]
        return web.json_response({"data": rows})

    async with answering(models) as client:
        assert client.context_length is None
        assert await client.loaded() == {BASE, "v1"}
        assert client.context_length == known


async def test_vllm_says_already_loaded() -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        message = "The lora adapter 'v1' has already been loaded."
        return web.json_response({"error": {"message": message}}, status=400)

    async with answering(handler) as client:
        await client.load("v1", Path("/tmp/v1"))


async def test_other_refusals_of_a_load_are_told() -> None:
    replies = iter([(400, "No adapter found"), (404, "Not Found")])

    async def handler(request: web.Request) -> web.StreamResponse:
        status, message = next(replies)
        return web.json_response({"error": {"message": message}}, status=status)

    async with answering(handler) as client:
        with pytest.raises(EngineError, match="No adapter found"):
            await client.load("v1", Path("/tmp/v1"))
        with pytest.raises(EngineError, match="VLLM_ALLOW_RUNTIME_LORA_UPDATING"):
            await client.load("v1", Path("/tmp/v1"))


async def test_nobody_listens() -> None:
    client = HttpEngine("http://127.0.0.1:9", "base-model", [2])
    assert not await client.healthy()
    for call in (collect(client), client.loaded(), client.load("v1", Path("/v1")), client.unload("v1")):
        with pytest.raises(EngineUnavailable):
            await call
    await client.close()
    await client.close()


async def test_scripted_failures_reach_the_client_as_errors() -> None:
    async with ScriptedEngine() as engine:
        client = HttpEngine(engine.base_url, engine.base_name, [2])
        for failure, status in ((Failure.ERROR, 500), (Failure.FULL, 429), (Failure.BROKEN, 500)):
            engine.fail(failure)
            with pytest.raises(EngineError) as caught:
                await collect(client, BASE)
            assert caught.value.status == status
        engine.fail(Failure.CUT, after=2)
        found: list[int] = []
        with pytest.raises(EngineUnavailable):
            await collect_into(found, client, BASE)
        assert len(found) == 2
        assert len(await collect(client, BASE)) == 8
        await client.close()


async def test_scripted_engine_repeats_itself_and_tells_its_numbers() -> None:
    async with ScriptedEngine(script=lambda request: [7, 8, 2, 9], tokens_per_chunk=2) as engine:
        client = HttpEngine(engine.base_url, engine.base_name, [2])
        first, again = await collect(client, BASE), await collect(client, BASE)
        await client.close()
        assert first == again
        assert [chunk.ids for chunk in first] == [[7, 8], [2]]
        assert first[-1].finish_reason == "stop"
        assert first[0].logprobs == [scripted_logprob(BASE, place, i) for place, i in ((0, 7), (1, 8))]
        assert [request.prompt_ids for request in engine.requests] == [[5, 6], [5, 6]]


async def test_lower_priority_number_is_served_first() -> None:
    from instar.config import EngineSettings

    async with ScriptedEngine(settings=EngineSettings(max_streams=1), token_s=0.02) as engine:
        client = HttpEngine(engine.base_url, engine.base_name, [2])
        order: list[str] = []

        async def ask(name: str, priority: int) -> None:
            async for _ in client.sample(BASE, [5], Sampling(max_tokens=2), priority=priority):
                pass
            order.append(name)

        tasks = [asyncio.create_task(ask("first", 0))]
        await asyncio.sleep(0.02)
        for name, priority in (("judge", 10), ("chat", 0)):
            tasks.append(asyncio.create_task(ask(name, priority)))
            while engine.gate.waiting < len(tasks) - 1:
                await asyncio.sleep(0.002)
        await asyncio.gather(*tasks)
        await client.close()
        assert order == ["first", "chat", "judge"]
