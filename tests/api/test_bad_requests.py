"""Whatever a client sends: the right status, the OpenAI error shape, a sentence that helps, and the server goes on."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from tests.kit.live_gateway import Live, live_gateway

ASK = {"model": "instar", "messages": [{"role": "user", "content": "hi"}]}


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def live(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Live]:
    """One server for all of this: surviving the last test is part of the next one."""
    async with live_gateway(tmp_path_factory.mktemp("bad"), max_body_bytes=100_000) as live:
        yield live


async def turn_count(live: Live) -> int:
    return len(await live.turns(limit=1000))


def is_openai_error(answer: httpx.Response) -> bool:
    return set(answer.json()["error"]) == {"message", "type", "param", "code"}


BROKEN_BODIES: list[bytes] = [
    b"",
    b"{",
    b"[]",
    b"null",
    b'"text"',
    b"3",
    b"\xff\xfe",
    b'{"messages": NaN}',
    b"[" * 50_000,
    b'{"a":' * 20_000,
    b'{"model": "instar", "messages": [{"role": "user", "content": "\\ud800"}]}',
    b"model=instar&messages=hi",
]


@pytest.mark.parametrize("body", BROKEN_BODIES, ids=range(len(BROKEN_BODIES)))
async def test_broken_bodies(live: Live, body: bytes) -> None:
    answer = await live.http.post("/v1/chat/completions", content=body)
    assert answer.status_code == 400
    assert is_openai_error(answer)
    assert (await live.ask("still there?")).status_code == 200


WRONG_FIELDS: list[dict[str, Any]] = [
    {"messages": []},
    {"messages": "hi"},
    {"messages": [{"role": "user"}]},
    {"messages": [{"role": "wizard", "content": "hi"}]},
    {"messages": [{"role": "user", "content": 3}]},
    {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
    {"temperature": "warm"},
    {"temperature": -1},
    {"temperature": 3},
    {"top_p": -0.1},
    {"functions": [{"name": "f"}]},
    {"function_call": {"name": "f"}},
    {"max_tokens": 0},
    {"max_tokens": "many"},
    {"max_tokens": 10**30},
    {"n": 0},
    {"n": 10_000},
    {"stop": ["a", "b", "c", "d", "e"]},
    {"stop": 3},
    {"seed": 2**70},
    {"stream": "yes"},
    {"top_logprobs": 5},
    {"logprobs": True, "top_logprobs": 50},
    {"logit_bias": {"1": 100}},
    {"frequency_penalty": 1.5},
    {"response_format": {"type": "json_schema"}},
]


@pytest.mark.parametrize("wrong", WRONG_FIELDS, ids=str)
async def test_wrong_fields_are_named(live: Live, wrong: dict[str, Any]) -> None:
    before = await turn_count(live)
    answer = await live.http.post("/v1/chat/completions", json={**ASK, **wrong})
    assert answer.status_code == 400
    assert is_openai_error(answer)
    assert any(name in answer.text for name in wrong)
    assert await turn_count(live) == before


@pytest.mark.parametrize("model", ["gpt-4", "instar@v9", "instar@../../etc", "instar@v1;", "", "instar@"])
async def test_unknown_model(live: Live, model: str) -> None:
    answer = await live.http.post("/v1/chat/completions", json={**ASK, "model": model})
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "model_not_found"


async def test_prompt_over_the_context_window(live: Live) -> None:
    before = await turn_count(live)
    answer = await live.ask("long " * 200)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "context_length_exceeded"
    assert "512" in answer.json()["error"]["message"]
    assert await turn_count(live) == before


async def test_answer_is_fitted_into_what_is_left_of_the_context(live: Live) -> None:
    answer = await live.ask("a" * 440, max_tokens=400)
    assert answer.status_code == 200
    assert answer.json()["usage"]["total_tokens"] <= 512


@pytest.mark.parametrize(
    "header", [None, "Bearer wrong", "Bearer", "Basic abc", "sk-test", "Bearer sk-test-and-more"]
)
async def test_every_route_but_health_is_closed_without_the_key(live: Live, header: str | None) -> None:
    headers = {"authorization": header} if header else {}
    paths = {p: ways for p, ways in live.app.openapi()["paths"].items() if p not in {"/health", "/ready"}}
    assert len(paths) >= 13
    sampled, turns = len(live.engine.prompts), await turn_count(live)
    async with httpx.AsyncClient(base_url=live.url, trust_env=False) as stranger:
        for path, method in (
            (p.format(version="base", model="instar", id="x"), m) for p in paths for m in paths[p]
        ):
            answer = await stranger.request(method, path, json=ASK, headers=headers)
            assert answer.status_code == 401, path
            assert is_openai_error(answer) or path.startswith("/v1/messages")
            assert "instar serve" in answer.json()["error"]["message"]
    assert (len(live.engine.prompts), await turn_count(live)) == (sampled, turns)


async def test_large_body_is_refused_by_its_announced_length(live: Live) -> None:
    answer = await live.http.post("/v1/chat/completions", content=b" " * 100_001)
    assert answer.status_code == 413


async def test_large_body_without_a_length_is_refused_while_it_comes(live: Live) -> None:
    async def endless():  # type: ignore[no-untyped-def]
        for _ in range(1000):
            yield b" " * 10_000

    try:
        answer = await live.http.post("/v1/chat/completions", content=endless())
        assert answer.status_code == 413
    except httpx.WriteError:
        pass  # the server closed the connection while we were still sending: as good
    assert (await live.ask("still there?")).status_code == 200


async def test_unknown_route_and_method(live: Live) -> None:
    for path, status in (("/nothing", 404), ("/v1/chat/completions", 405)):
        answer = await live.http.get(path)
        assert answer.status_code == status
        assert is_openai_error(answer)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"turn": "turn_nobody", "score": 1}, 404),
        ({"turn": "x"}, 400),
        ({"score": 1}, 400),
        ({"turn": "x", "score": 5}, 400),
        ({"turn": "x", "score": 1, "note": "typo of comment"}, 400),
    ],
    ids=str,
)
async def test_wrong_feedback(live: Live, body: dict[str, Any], status: int) -> None:
    answer = await live.http.post("/v1/feedback", json=body)
    assert answer.status_code == status
    assert is_openai_error(answer)


@pytest.mark.parametrize(
    "kind",
    [
        "application/json;",
        "Application/JSON; Charset=UTF-8; profile=x",
        'application/json; x=y; charset="utf8"',
    ],
)
async def test_type_of_the_content_may_have_more_to_say(live: Live, kind: str) -> None:
    body = json.dumps(ASK).encode()
    answer = await live.http.post("/v1/chat/completions", content=body, headers={"content-type": kind})
    assert answer.status_code == 200


@pytest.mark.parametrize("more", [{"function_call": "none"}, {"functions": []}, {"functions": None}], ids=str)
async def test_older_shape_of_tools_that_means_none_is_taken(live: Live, more: dict[str, Any]) -> None:
    assert (await live.ask("hi", **more)).status_code == 200


async def test_top_p_of_nothing_is_the_likeliest_token(live: Live) -> None:
    assert (await live.ask("hi", top_p=0)).status_code == 200
    assert 0 < live.engine.samplings[-1].top_p < 0.001
    answer = await live.http.post("/v1/responses", json={"input": "hi", "top_p": 0})
    assert answer.json()["top_p"] == 0


@pytest.mark.parametrize("query", ["limit=0", "limit=-1", "limit=x", "limit=99999999999999999999"])
async def test_wrong_page_size(live: Live, query: str) -> None:
    answer = await live.http.get(f"/v1/turns?{query}")
    assert answer.status_code == 400


@pytest.mark.parametrize("name", ["v9", "..%2f..%2fetc", "base2", "v1%00", "%E2%88%9E"])
async def test_activating_what_is_not_there(live: Live, name: str) -> None:
    answer = await live.http.post(f"/v1/versions/{name}/activate")
    assert answer.status_code == 404


async def test_damaged_version_is_refused_and_the_old_one_serves_on(live: Live) -> None:
    folder = live.publish("v1")
    (folder / "adapter_config.json").write_bytes(b"[]")
    answer = await live.http.post("/v1/versions/v1/activate")
    assert answer.status_code == 409
    assert is_openai_error(answer)
    assert (await live.ask("hi")).headers["x-instar-version"] == "base"
    assert live.store.active_version() == "base"
