"""`/v1/completions` over the real gateway: raw text in, raw text on, recorded and learned from like the rest."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from instar.flow.prompts import ChatTeacherPrompts
from instar.records import Judgement, Source
from tests.kit.live_gateway import Live, live_gateway

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def live(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Live]:
    folder = tmp_path_factory.mktemp("completions")
    async with live_gateway(folder, lambda version, prompt: f"a time, {version} 안녕.") as live:
        yield live


async def ask(live: Live, prompt: Any = "Once upon ", **more: Any) -> Any:
    return await live.http.post("/v1/completions", json={"model": "instar", "prompt": prompt, **more})


async def test_text_is_continued_as_it_is_and_recorded_as_a_users_message(live: Live) -> None:
    answer = await live.openai.completions.create(model="instar", prompt="Once upon ")
    assert answer.choices[0].text == "a time, base 안녕."
    assert answer.choices[0].finish_reason == "stop"
    assert answer.object == "text_completion"
    assert live.engine.prompts[-1] == live.engine.chat.encode("Once upon ")
    turn = live.store.turn(answer.id)
    assert turn is not None
    assert turn.messages == [{"role": "user", "content": "Once upon ", "instar_raw": True}]
    assert turn.answer == {"role": "assistant", "content": "a time, base 안녕."}
    assert (turn.learn, turn.reason, turn.params["api"]) == (True, None, "completions")


async def test_stream_equals_non_stream(live: Live) -> None:
    stream = await live.openai.completions.create(
        model="instar", prompt="Once upon ", stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert "".join(c.choices[0].text for c in chunks if c.choices) == "a time, base 안녕."
    assert [c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason] == [
        "stop"
    ]
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert len({c.id for c in chunks}) == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_thinking_and_calls_in_a_continuation_are_text_like_the_rest(
    live: Live, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    text = '<think>\nno\n</think>\n\n<tool_call>{"name": "ls", "arguments": {}}</tool_call>'
    monkeypatch.setattr(live.engine, "script", lambda version, prompt: text)
    answer = await ask(live, "Thus: ", stream=stream)
    if stream:
        chunks = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
        assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == text
    else:
        assert answer.json()["choices"][0]["text"] == text


async def test_prompt_of_more_tokens_than_the_context_is_refused_unread(live: Live) -> None:
    before = len(live.engine.prompts)
    for prompt in ([5] * 600, "x" * 100_000):
        answer = await ask(live, prompt)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "context_length_exceeded")
    assert len(live.engine.prompts) == before


@pytest.mark.parametrize("listed", [False, True])
async def test_token_ids_are_sampled_from_as_they_came(live: Live, listed: bool) -> None:
    ids = live.engine.chat.encode("<|im_start|>user\nhi<|im_end|>\n")
    answer = await ask(live, [ids] if listed else ids)
    assert answer.status_code == 200
    assert live.engine.prompts[-1] == ids
    turn = live.store.turn(answer.json()["id"])
    assert turn is not None
    assert turn.messages[0]["content"] == "<|im_start|>user\nhi<|im_end|>\n"
    assert turn.prompt_ids == ids


async def test_ids_that_no_text_gives_are_not_encoded_anew(live: Live) -> None:
    half_a_character = live.engine.chat.encode("é")[:1]
    await ask(live, half_a_character)
    assert live.engine.prompts[-1] == half_a_character


async def test_several_answers_and_stop_strings(live: Live) -> None:
    answer = (await ask(live, n=2, stop=[","])).json()
    assert [(c["index"], c["text"], c["finish_reason"]) for c in answer["choices"]] == [
        (0, "a time", "stop"),
        (1, "a time", "stop"),
    ]
    cut = (await ask(live, max_tokens=3)).json()
    assert (cut["choices"][0]["text"], cut["choices"][0]["finish_reason"]) == ("a t", "length")
    assert cut["usage"]["completion_tokens"] == 3


async def test_logprobs_are_parallel_lists(live: Live) -> None:
    whole = (await ask(live, logprobs=0, max_tokens=4)).json()["choices"][0]["logprobs"]
    assert whole["tokens"] == ["a", " ", "t", "i"]
    assert whole["token_logprobs"] == pytest.approx([-0.5, -0.51, -0.52, -0.53])
    assert whole["text_offset"] == [0, 1, 2, 3]
    assert whole["top_logprobs"][2] == {"t": pytest.approx(-0.52)}
    streamed = await ask(live, logprobs=0, max_tokens=4, stream=True)
    lines = [json.loads(x[6:]) for x in streamed.text.split("\n") if x.startswith("data: {")]
    parts = [x["choices"][0]["logprobs"] for x in lines if x["choices"][0]["logprobs"]]
    assert [name for part in parts for name in part["tokens"]] == whole["tokens"]
    assert [at for part in parts for at in part["text_offset"]] == whole["text_offset"]


async def test_offsets_are_those_of_the_text_also_behind_characters_of_several_tokens(live: Live) -> None:
    choice = (await ask(live, logprobs=0)).json()["choices"][0]
    assert choice["text"] == "a time, base 안녕."
    found = choice["logprobs"]
    named = dict(zip(found["tokens"], found["text_offset"], strict=True))
    assert named["."] == choice["text"].index(".")
    assert named["<|im_end|>"] == len(choice["text"])
    assert found["text_offset"][13:19] == [13] * 3 + [14] * 3, "three bytes each"


async def test_feedback_makes_a_sample_whose_hint_stands_before_the_raw_text(live: Live) -> None:
    turn_id = (await ask(live, "Dear diary, ")).json()["id"]
    told = await live.http.post("/v1/feedback", json={"turn": turn_id, "score": -1, "comment": "Be brief."})
    assert told.status_code == 200
    item = next(item for item in live.judge_items() if item.turn.id == turn_id)
    live.store.record_judgement(
        Judgement(turn_id, -1, Source.USER, "explicit", created_at=1.0, hint="Be brief."), item.lease
    )
    sample = next(s for s in live.store.trainable(10, current=0, max_staleness=4) if s.turn_id == turn_id)
    chat = live.engine.chat
    assert sample.prompt_ids == chat.encode("Dear diary, ")
    assert ChatTeacherPrompts(chat).hinted(sample, "Be brief.") == chat.encode("Be brief.\n\nDear diary, ")


async def test_mark_of_raw_text_cannot_be_set_through_a_chat(live: Live) -> None:
    marked = [{"role": "user", "content": "hi", "instar_raw": True}]
    await live.http.post("/v1/chat/completions", json={"model": "instar", "messages": marked})
    assert live.engine.chat.encode("hi") != live.engine.prompts[-1]


@pytest.mark.parametrize(
    "wrong",
    [
        {"prompt": ["one", "two"]},
        {"prompt": []},
        {"prompt": ""},
        {"prompt": None},
        {"prompt": [1, "two"]},
        {"prompt": [-1]},
        {"prompt": [259]},
        {"prompt": [True]},
        {"prompt": {"text": "x"}},
        {"echo": True},
        {"suffix": "end"},
        {"best_of": 3},
        {"logprobs": 50},
        {"max_tokens": 0},
        {"n": 9},
        {"presence_penalty": 1.0},
    ],
    ids=str,
)
async def test_wrong_fields_are_named(live: Live, wrong: dict[str, Any]) -> None:
    answer = await ask(live, **wrong)
    assert answer.status_code == 400
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
    assert next(iter(wrong)) in answer.text
