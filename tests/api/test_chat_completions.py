from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from instar.errors import EngineError
from tests.kit.live_gateway import Live, live_gateway


@pytest.fixture
async def live(tmp_path: Path) -> AsyncIterator[Live]:
    async with live_gateway(tmp_path, lambda version, prompt: f"I am {version}. 안녕!") as live:
        yield live


async def test_answer_has_the_openai_shape(live: Live) -> None:
    answer = await live.openai.chat.completions.create(
        model="instar", messages=[{"role": "user", "content": "hi"}]
    )
    assert answer.choices[0].message.content == "I am base. 안녕!"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.id.startswith("turn_")


async def test_stream_equals_non_stream_and_names_its_turn(live: Live) -> None:
    raw = await live.openai.chat.completions.with_raw_response.create(
        model="instar",
        messages=[{"role": "user", "content": "hi"}],
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = [chunk async for chunk in raw.parse()]
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == "I am base. 안녕!"
    assert raw.headers["x-instar-turn"] == chunks[0].id
    assert raw.headers["x-instar-version"] == "base"
    reasons = [c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason]
    assert reasons == ["stop"]
    assert chunks[-1].usage is not None
    assert chunks[-1].choices == []
    assert len([c for c in chunks if c.choices and c.choices[0].delta.content]) > 5, "the stream is real"


async def test_turn_is_committed_before_the_stream_ends(live: Live) -> None:
    async with live.http.stream(
        "POST",
        "/v1/chat/completions",
        json={"model": "instar", "messages": [{"role": "user", "content": "hi"}], "stream": True},
    ) as response:
        async for line in response.aiter_lines():
            if '"finish_reason": "stop"' in line:
                turn = live.store.turn(response.headers["x-instar-turn"])
                assert turn is not None
                assert turn.status == "done"
                assert turn.answer == {"role": "assistant", "content": "I am base. 안녕!"}
                return
    pytest.fail("no finish reason was seen")


async def test_recorded_ids_and_logprobs_are_the_sampled_ones(live: Live) -> None:
    answer = await live.ask("hi")
    turn = live.store.turn(answer.json()["id"])
    assert turn is not None
    assert turn.response_ids == live.engine.chat.encode_answer("I am base. 안녕!")
    assert turn.logprobs == pytest.approx([-0.5 - i / 100 for i in range(len(turn.response_ids))])
    assert turn.prompt_ids == live.engine.prompts[0]
    assert turn.version == "base"
    assert (turn.params["api"], turn.params["temperature"], turn.params["seed"]) == ("chat", 0.7, None)


async def test_stop_string_ends_text_and_sampling(live: Live) -> None:
    answer = await live.ask("hi", stop=[". "])
    assert answer.json()["choices"][0]["message"]["content"] == "I am base"
    assert answer.json()["choices"][0]["finish_reason"] == "stop"
    assert live.engine.aborted == 1


async def test_token_limit_is_told(live: Live) -> None:
    answer = await live.ask("hi", max_tokens=4)
    assert answer.json()["choices"][0]["finish_reason"] == "length"
    assert answer.json()["usage"]["completion_tokens"] == 4


async def test_n_gives_several_choices_each_a_turn(live: Live) -> None:
    answer = await live.ask("hi", n=3)
    assert [c["index"] for c in answer.json()["choices"]] == [0, 1, 2]
    assert len(answer.headers["x-instar-turn"].split(",")) == 3
    assert len(await live.turns()) == 3
    streamed = await live.ask("hi", n=2, stream=True)
    lines = [json.loads(x[6:]) for x in streamed.text.split("\n") if x.startswith("data: {")]
    for index in (0, 1):
        mine = [x["choices"][0] for x in lines if x["choices"][0]["index"] == index]
        assert "".join(c["delta"].get("content", "") for c in mine) == "I am base. 안녕!"
        assert [c["finish_reason"] for c in mine if c["finish_reason"]] == ["stop"]


async def test_logprobs_cover_every_sampled_token(live: Live) -> None:
    answer = await live.openai.chat.completions.create(
        model="instar", messages=[{"role": "user", "content": "hi"}], logprobs=True
    )
    content = answer.choices[0].logprobs.content  # type: ignore[union-attr]
    assert content is not None
    assert answer.usage is not None
    assert len(content) == answer.usage.completion_tokens
    assert b"".join(bytes(t.bytes or []) for t in content[:4]).decode() == "I am"


async def test_client_that_leaves_cancels_its_turn(live: Live) -> None:
    live.engine.gate = asyncio.Event()
    async with live.http.stream(
        "POST",
        "/v1/chat/completions",
        json={"model": "instar", "messages": [{"role": "user", "content": "hi"}], "stream": True},
    ) as response:
        turn_id = response.headers["x-instar-turn"]
        await anext(response.aiter_lines())
    for _ in range(200):
        turn = live.store.turn(turn_id)
        assert turn is not None
        if turn.status != "open":
            break
        await asyncio.sleep(0.02)
    assert turn.status == "cancelled"
    assert turn.reason == "cancelled"
    assert live.engine.sampling == 0
    assert live.judge_items() == []


@pytest.mark.parametrize("stream", [False, True])
async def test_client_that_leaves_before_the_first_token_cancels_too(live: Live, stream: bool) -> None:
    live.engine.prefill = asyncio.Event()
    asking = asyncio.create_task(live.ask("hi", stream=stream))
    while not live.engine.sampling:
        await asyncio.sleep(0.01)
    asking.cancel()
    for _ in range(200):
        if live.engine.sampling == 0 and (await live.turns())[0]["status"] == "cancelled":
            return
        await asyncio.sleep(0.02)
    pytest.fail("the turn went on without its client")


async def test_engine_failure_before_the_first_token_has_its_status(live: Live) -> None:
    live.engine.refuse = EngineError("queue full", status=429)
    answer = await live.ask("hi", stream=True)
    assert answer.status_code == 429
    assert answer.headers["retry-after"]
    assert answer.json()["error"]["type"] == "rate_limit_error"
    assert (await live.turns())[0]["status"] == "failed"


async def test_engine_failure_in_mid_stream_is_an_error_event_without_done(live: Live) -> None:
    live.engine.fail_after = 3
    answer = await live.ask("hi", stream=True)
    assert answer.status_code == 200
    assert "[DONE]" not in answer.text
    assert '"code": "engine_unavailable"' in answer.text
    turn = (await live.turns())[0]
    assert (turn["status"], turn["reason"]) == ("failed", "failed")


async def test_engine_that_forgot_its_versions_is_given_them_again(live: Live) -> None:
    live.publish("v1")
    await live.http.post("/v1/versions/v1/activate")
    live.engine.versions.discard("v1")
    answer = await live.ask("hi")
    assert answer.json()["choices"][0]["message"]["content"] == "I am v1. 안녕!"


async def test_later_turns_splice_in_what_was_sampled(tmp_path: Path) -> None:
    async with live_gateway(tmp_path) as live:
        first = await live.ask("hi")
        said = first.json()["choices"][0]["message"]["content"]
        turn = live.store.turn(first.json()["id"])
        assert turn is not None
        await live.ask("hi", said, "more")
        sent = live.engine.prompts[1]
        ids = turn.response_ids[:-1]
        assert any(sent[i : i + len(ids)] == ids for i in range(len(sent)))


@pytest.mark.parametrize("stream", [False, True])
async def test_bytes_of_all_tokens_are_the_text(live: Live, stream: bool) -> None:
    """A character of another script takes several tokens, none of which is text by itself."""
    answer = await live.ask("hi", logprobs=True, top_logprobs=2, stream=stream)
    if stream:
        lines = [json.loads(x[6:]) for x in answer.text.split("\n") if x.startswith("data: {")]
        parts = [x["choices"][0]["logprobs"] for x in lines if x["choices"][0]["logprobs"]]
        tokens = [token for part in parts for token in part["content"]]
    else:
        tokens = answer.json()["choices"][0]["logprobs"]["content"]
    assert bytes(byte for token in tokens for byte in token["bytes"] or []).decode() == "I am base. 안녕!"
    assert (tokens[-1]["token"], tokens[-1]["bytes"]) == ("<|im_end|>", None)
    assert [len(token["top_logprobs"]) for token in tokens] == [2] * len(tokens)
    assert tokens[0]["top_logprobs"][0]["bytes"] == list(b"I")
