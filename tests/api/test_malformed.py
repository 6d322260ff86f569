"""Many hundred requests that must be refused: with a status, in the shape of their route, and without a trace."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from tests.kit import malformed, wire
from tests.kit.live_gateway import KEY, Live, live_gateway
from tests.kit.malformed import Bad
from tests.kit.malformed_tables import CHAT, RAW, TOO_LARGE_HEADS, VALID

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def live(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Live]:
    async with live_gateway(tmp_path_factory.mktemp("malformed")) as live:
        yield live


async def send(live: Live, bad: Bad) -> wire.Answer:
    if bad.raw is not None:
        return await wire.exchange(live.url, malformed.on_the_wire(bad.raw, KEY))
    answer = await live.http.request(bad.method, bad.path, content=bad.body, headers=bad.headers)
    return wire.Answer(answer.status_code, dict(answer.headers), answer.content)


def complaint(bad: Bad, answer: wire.Answer) -> str | None:
    """What is wrong with a refusal."""
    if not 400 <= answer.status < 500:
        return f"status {answer.status}: {answer.body[:200]!r}"
    try:
        error = answer.json()["error"]
    except (ValueError, KeyError, TypeError):
        return f"not the error shape: {answer.body[:200]!r}"
    anthropic = bad.path.startswith("/v1/messages")
    if anthropic != (answer.json().get("type") == "error"):
        return f"not the error shape of {bad.path}: {answer.body[:200]!r}"
    fields = {"message", "type"} if anthropic else {"message", "type", "param", "code"}
    if set(error) != fields or not error["message"]:
        return f"not the error object: {error}"
    if len(answer.body) > 2_000:
        return f"an answer of {len(answer.body)} bytes quotes what it was sent"
    return None


async def faults(live: Live, bads: list[Bad], at_a_time: int = 16) -> list[str]:
    """What is wrong with the answers to these, each with its request."""
    places = asyncio.Semaphore(at_a_time)

    async def fault(bad: Bad) -> str | None:
        async with places:
            try:
                wrong = complaint(bad, await asyncio.wait_for(send(live, bad), wire.HANG_S))
            except (TimeoutError, httpx.TransportError, OSError, EOFError) as error:
                wrong = f"no answer: {error!r}"
        return f"{bad.what}: {wrong}" if wrong else None

    return [found for found in await asyncio.gather(*map(fault, bads)) if found]


async def test_every_malformed_request_is_refused_and_leaves_nothing(live: Live) -> None:
    bads = malformed.all_bad(live.app.openapi())
    assert len({bad.what for bad in bads}) >= 300
    before = live.store.counts()
    found = await faults(live, bads)
    assert not found, f"{len(found)} of {len(bads)}\n" + "\n".join(found)
    assert live.store.counts() == before
    assert not live.engine.prompts
    assert (await live.ask("still there?")).status_code == 200


@pytest.mark.parametrize("what", TOO_LARGE_HEADS)
async def test_head_that_is_too_large_is_refused_for_that(live: Live, what: str) -> None:
    answer = await send(live, Bad(what, raw=RAW[what]))
    assert (answer.status, answer.json()["error"]["code"]) == (431, "headers_too_large")


async def test_valid_bodies_of_the_tables_are_taken(live: Live) -> None:
    """Otherwise the refusals above would show nothing."""
    for path in malformed.routes_with_body(live.app.openapi()):
        answer = await live.http.post(path, json=VALID[path])
        expected = {"/v1/feedback": 404, "/v1/versions/rollback": 409}.get(path, 200)
        assert answer.status_code == expected, f"{path}: {answer.text}"


TOOL = {"type": "function", "function": {"name": "f"}}


def schema_format(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}


CAPS = {
    ("n", "9"): "8",
    ("max_tokens", "1000001"): "1000000",
    ("max_completion_tokens", "1000001"): "1000000",
    ("stop", '["a", "b", "c", "d", "e"]'): "4",
    ("stop", '"' + "s" * 501 + '"'): "500",
    ("tools", json.dumps([TOOL | {"function": {"name": f"f{i}"}} for i in range(129)])): "128",
    ("tools", json.dumps([TOOL | {"x": "y" * 512_000}])): "512000",
    ("response_format", json.dumps(schema_format({"x": "y" * 64_000}))): "64000",
    ("messages", "[" + ",".join(['{"role": "user", "content": "a"}'] * 10_001) + "]"): "10000",
    ("messages", '[{"role": "user", "content": [' + ",".join(['{"text": "a"}'] * 1_001) + "]}]"): "1000",
    ("messages", '[{"role": "user", "content": "' + "x" * 100_000 + '"}]'): "512",
    ("top_logprobs", "21"): "20",
    ("metadata", "{" + ",".join(f'"{i}": 1' for i in range(65)) + "}"): "64",
}


@pytest.mark.parametrize(("asked", "cap"), CAPS.items(), ids=[f"{n}-{cap}" for (n, _), cap in CAPS.items()])
async def test_caps_are_named(live: Live, asked: tuple[str, str], cap: str) -> None:
    answer = await live.http.post(CHAT, content=malformed.body_with(CHAT, *asked))
    error = answer.json()["error"]
    assert answer.status_code == 400
    assert cap in error["message"]
    assert error["param"].split(".")[0] == asked[0]


async def test_text_with_nul_and_escapes_is_no_mistake(live: Live) -> None:
    """A tool may print any character; a conversation that holds one must not be refused for ever."""
    answer = await live.ask("a\u0000b\u001b[31m\r\n\ufffe")
    assert answer.status_code == 200
    assert (await live.turns(limit=1))[0]["question"] == "a\u0000b\u001b[31m\r\n\ufffe"
