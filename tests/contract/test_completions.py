"""What a completion is: exact ids, raw log-probs, endings, streams. On every engine."""

from __future__ import annotations

import asyncio
import json
import math
from typing import Any

import httpx
import pytest

from instar.engines.client import HttpEngine
from instar.records import BASE, Sampling
from tests.contract.conftest import COMMON, STOP, Endpoint, gather_answer, ids_of, logprobs_of

PROMPTS = [[5, 6, 7], [9] * 40, list(range(10, 43)), [100, 3, 50, 60], [200, 201] * 9, [17]]


def events(engine: Endpoint, **fields: Any) -> list[str]:
    body = {**COMMON, "model": engine.base, "stream": True, **fields}
    with httpx.stream("POST", engine.url + "/v1/completions", json=body, timeout=30) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        return [line for line in response.iter_lines() if line]


def test_stream_is_events_that_end_with_done(engine: Endpoint) -> None:
    lines = events(engine)
    assert lines[-1] == "data: [DONE]"
    payloads = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
    finishes = [payload["choices"][0]["finish_reason"] for payload in payloads]
    assert finishes[-1] in ("stop", "length")
    assert set(finishes[:-1]) <= {None}
    assert len({payload["id"] for payload in payloads}) == 1


def test_stream_and_whole_answer_are_the_same(engine: Endpoint) -> None:
    for prompt in PROMPTS:
        whole = engine.complete(prompt=prompt, max_tokens=12)
        payloads = [json.loads(line[6:]) for line in events(engine, prompt=prompt, max_tokens=12)[:-1]]
        choices = [payload["choices"][0] for payload in payloads]
        assert [i for choice in choices for i in choice["token_ids"]] == whole["token_ids"]
        streamed = [value for choice in choices for value in choice["logprobs"]["token_logprobs"]]
        assert streamed == pytest.approx(whole["logprobs"]["token_logprobs"], abs=1e-4)
        assert choices[-1]["finish_reason"] == whole["finish_reason"]


def test_tokens_are_named_by_their_ids(engine: Endpoint) -> None:
    choice = engine.complete(logprobs=2)
    named = [f"token_id:{i}" for i in choice["token_ids"]]
    assert choice["logprobs"]["tokens"] == named
    for name, value, top in zip(
        named, choice["logprobs"]["token_logprobs"], choice["logprobs"]["top_logprobs"], strict=True
    ):
        assert top[name] == value
        assert 2 <= len(top) <= 3
        assert all(math.isfinite(other) and other <= 0 for other in top.values())


def test_length_ends_an_answer(engine: Endpoint) -> None:
    choice = engine.complete(max_tokens=3, stop_token_ids=[])
    assert len(choice["token_ids"]) == len(choice["logprobs"]["token_logprobs"]) == 3
    assert choice["finish_reason"] == "length"


def test_stop_token_is_the_last_id_with_its_logprob(engine: Endpoint) -> None:
    free = engine.complete(max_tokens=6, stop_token_ids=[])
    stop = free["token_ids"][3]
    place = free["token_ids"].index(stop)
    choice = engine.complete(max_tokens=6, stop_token_ids=[stop])
    assert choice["token_ids"] == free["token_ids"][: place + 1]
    assert choice["finish_reason"] == "stop"
    assert len(choice["logprobs"]["token_logprobs"]) == place + 1


def test_stop_token_at_the_limit_is_a_stop(engine: Endpoint) -> None:
    first = engine.complete(max_tokens=1, stop_token_ids=[])["token_ids"][0]
    choice = engine.complete(max_tokens=1, stop_token_ids=[first])
    assert (choice["token_ids"], choice["finish_reason"]) == ([first], "stop")


def test_usage_counts_tokens(engine: Endpoint) -> None:
    body = {**COMMON, "model": engine.base, "max_tokens": 4, "stop_token_ids": []}
    usage = engine.post("/v1/completions", **body).json()["usage"]
    told = {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}
    assert {name: usage[name] for name in told} == told


def test_logprobs_are_left_out_unless_asked_for(engine: Endpoint) -> None:
    assert engine.complete(logprobs=None)["logprobs"] is None


def test_same_seed_gives_the_same_answer(engine: Endpoint) -> None:
    def ask(seed: int) -> list[int]:
        choice = engine.complete(temperature=1.0, seed=seed, max_tokens=10, stop_token_ids=[])
        return choice["token_ids"]

    assert ask(7) == ask(7)
    assert len({tuple(ask(seed)) for seed in range(6)}) > 1


def test_prompt_logprobs_score_every_token_but_the_first(engine: Endpoint) -> None:
    prompt = list(range(20, 60))
    found = engine.complete(prompt=prompt, prompt_logprobs=1, max_tokens=1)["prompt_logprobs"]
    assert len(found) == len(prompt)
    assert found[0] is None
    for token_id, scored in zip(prompt[1:], found[1:], strict=True):
        assert scored[str(token_id)]["logprob"] <= 0


async def test_a_text_that_was_sampled_scores_as_it_was_sampled(engine: Endpoint, client: HttpEngine) -> None:
    if engine.kind == "scripted":
        pytest.skip("its numbers come from a hash of the place")
    prompt = [40, 41, 42, 43]
    chunks = await gather_answer(client, BASE, prompt, Sampling(max_tokens=12, temperature=1.0, seed=5))
    scores = await client.score(BASE, [*prompt, *ids_of(chunks)])
    assert len(scores) == len(prompt) + len(ids_of(chunks)) - 1
    assert scores[len(prompt) - 1 :] == pytest.approx(logprobs_of(chunks), abs=0.05)


async def test_answers_in_company_equal_answers_alone(engine: Endpoint, client: HttpEngine) -> None:
    sampling = Sampling(max_tokens=24, temperature=0)
    alone = [ids_of(await gather_answer(client, BASE, prompt, sampling)) for prompt in PROMPTS]
    together = await asyncio.gather(
        *(gather_answer(client, BASE, prompt, sampling) for prompt in PROMPTS for _ in range(2))
    )
    expected = [ids for ids in alone for _ in range(2)]
    assert [ids_of(chunks) for chunks in together] == expected


async def test_client_gives_ids_logprobs_and_alternatives(engine: Endpoint, client: HttpEngine) -> None:
    sampling = Sampling(max_tokens=6, temperature=0, top_logprobs=3)
    chunks = await gather_answer(client, BASE, [5, 6, 7], sampling)
    whole = engine.complete(max_tokens=6)
    assert ids_of(chunks) == whole["token_ids"]
    assert logprobs_of(chunks) == pytest.approx(whole["logprobs"]["token_logprobs"], abs=1e-4)
    for chunk in chunks:
        assert chunk.top is not None
        for token_id, value, top in zip(chunk.ids, chunk.logprobs, chunk.top, strict=True):
            assert len(top) == 3
            assert top[0] == (token_id, pytest.approx(value))
            assert [other for _, other in top] == sorted((other for _, other in top), reverse=True)


async def test_finish_reason_stands_on_the_last_chunk(client: HttpEngine) -> None:
    chunks = await gather_answer(client, BASE, [5, 6, 7], Sampling(max_tokens=5, temperature=0))
    assert [chunk.finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    last = chunks[-1]
    assert last.finish_reason == ("stop" if last.ids[-1] == STOP else "length")


async def test_engine_is_healthy_and_serves_base(client: HttpEngine) -> None:
    assert await client.healthy()
    assert await client.loaded() == {BASE}
