"""`/v1/responses` over the real gateway: recorded, continued and judged as chat completions are."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import httpx
import openai
import pytest
import pytest_asyncio
from pydantic import BaseModel

from instar.records import TurnOutcome, TurnStatus
from tests.kit.live_gateway import KEY, Live, live_gateway

pytestmark = pytest.mark.asyncio(loop_scope="module")
_count = itertools.count()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def live(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Live]:
    """Every answer is another one, as from a model that samples."""
    folder = tmp_path_factory.mktemp("responses")
    async with live_gateway(folder, lambda version, prompt: f"answer {next(_count)}") as live:
        yield live


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sdk(live: Live) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(
        base_url=f"{live.url}/v1", api_key=KEY, max_retries=0, _strict_response_validation=True
    ) as sdk:
        yield sdk


async def post(live: Live, **body: Any) -> httpx.Response:
    return await live.http.post("/v1/responses", json={"model": "instar", **body})


def said_of(live: Live, turn_id: str) -> list[tuple[str, str]]:
    """What followed a turn. Leases all that waits to be judged, so ask once."""
    items = {item.turn.id: item for item in live.judge_items()}
    return [(s.kind.value, s.text) for s in items[turn_id].next_states] if turn_id in items else []


async def test_response_is_a_turn(live: Live, sdk: openai.AsyncOpenAI) -> None:
    raw = await sdk.responses.with_raw_response.create(
        model="instar", input="hi", instructions="Be brief.", metadata={"a": "b"}, store=False
    )
    response = raw.parse()
    assert raw.headers["x-instar-turn"] == response.id
    assert raw.headers["x-instar-version"] == "base"
    assert response.output_text.startswith("answer ")
    assert (response.status, response.instructions, response.metadata) == (
        "completed",
        "Be brief.",
        {"a": "b"},
    )
    turn = live.store.turn(response.id)
    assert turn is not None
    assert turn.messages == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "hi"},
    ]
    assert turn.answer == {"role": "assistant", "content": response.output_text}
    assert response.usage is not None
    assert response.usage.input_tokens == len(turn.prompt_ids)
    assert response.usage.output_tokens == len(turn.response_ids)


async def test_streamed_response_is_committed_before_it_completes(
    live: Live, sdk: openai.AsyncOpenAI
) -> None:
    async for event in await sdk.responses.create(model="instar", input="hi", stream=True):
        if event.type == "response.completed":
            turn = live.store.turn(event.response.id)
            assert turn is not None
            assert turn.status == "done"
            assert turn.answer == {"role": "assistant", "content": event.response.output_text}
            return
    pytest.fail("the response never completed")


async def test_reply_by_the_previous_response_judges_it(live: Live, sdk: openai.AsyncOpenAI) -> None:
    first = await sdk.responses.create(model="instar", input="why?", instructions="Be brief.")
    second = await sdk.responses.create(model="instar", input="shorter", previous_response_id=first.id)
    turn = live.store.turn(second.id)
    assert turn is not None
    assert turn.parent_id == first.id
    assert turn.messages == [
        {"role": "user", "content": "why?"},
        {"role": "assistant", "content": first.output_text},
        {"role": "user", "content": "shorter"},
    ], "instructions hold for one response"
    assert second.previous_response_id == first.id
    assert said_of(live, first.id) == [("user_reply", "shorter")]


async def test_history_sent_as_items_is_known_again(live: Live, sdk: openai.AsyncOpenAI) -> None:
    first = await sdk.responses.create(model="instar", input="what?")
    items: Any = [{"role": "user", "content": "what?"}, *first.output, {"role": "user", "content": "longer"}]
    second = await sdk.responses.create(model="instar", input=items)
    turn = live.store.turn(second.id)
    assert turn is not None
    assert turn.parent_id == first.id
    assert said_of(live, first.id) == [("user_reply", "longer")]


async def test_turn_of_a_chat_can_be_continued_and_the_other_way_round(
    live: Live, sdk: openai.AsyncOpenAI
) -> None:
    first = (await live.ask("in a chat")).json()
    second = await sdk.responses.create(model="instar", input="here", previous_response_id=first["id"])
    third = await live.ask(
        "in a chat", first["choices"][0]["message"]["content"], "here", second.output_text, "there"
    )
    turn = live.store.turn(third.json()["id"])
    assert turn is not None
    assert turn.parent_id == second.id


async def test_feedback_on_a_response(live: Live, sdk: openai.AsyncOpenAI) -> None:
    response = await sdk.responses.create(model="instar", input="rate me")
    told = await live.http.post("/v1/feedback", json={"turn": response.id, "score": 1, "comment": "fine"})
    assert told.status_code == 200
    assert said_of(live, response.id) == [("feedback", "fine")]


async def test_sessions_and_learning_are_chosen_as_in_chats(live: Live) -> None:
    await post(live, input="a", prompt_cache_key="keyed")
    assert len(await live.turns(session="keyed")) == 1
    off = await post(live, input="b", metadata={"instar_learn": "off", "session_id": "named"})
    (row,) = await live.turns(session="named")
    assert (row["id"], row["reason"]) == (off.json()["id"], "opted_out")
    side = await live.http.post(
        "/v1/responses", json={"input": "c"}, headers={"X-Turn-Type": "side", "X-Session-Id": "aside"}
    )
    (row,) = await live.turns(session="aside")
    assert (row["id"], row["reason"]) == (side.json()["id"], "side")


async def test_wanted_type_is_parsed_by_the_sdk(tmp_path_factory: pytest.TempPathFactory) -> None:
    class Moult(BaseModel):
        days: int

    folder = tmp_path_factory.mktemp("typed")
    async with live_gateway(folder, lambda version, prompt: '{"days": 3}') as live:
        parsed = await live.openai.responses.parse(model="instar", input="how long?", text_format=Moult)
    assert parsed.output_parsed == Moult(days=3)


@pytest.mark.parametrize("wanted", ["turn_nobody", "resp_123", "x" * 100])
async def test_unknown_previous_response(live: Live, wanted: str) -> None:
    before = len(await live.turns(limit=1000))
    answer = await post(live, input="hi", previous_response_id=wanted)
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "previous_response_not_found"
    assert answer.json()["error"]["param"] == "previous_response_id"
    assert len(await live.turns(limit=1000)) == before


WRONG: list[tuple[dict[str, Any], str]] = [
    ({}, "input"),
    ({"input": []}, "input"),
    ({"input": 3}, "input"),
    ({"input": [{"type": "web_search_call", "id": "x"}]}, "type"),
    ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input_image"),
    ({"input": [{"type": "function_call", "name": "f"}]}, "call_id"),
    ({"input": [{"type": "function_call_output", "call_id": "x"}]}, "output"),
    ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "type"),
    ({"input": [{"role": "user"}]}, "content"),
    ({"input": "hi", "tools": [{"type": "web_search"}]}, "tools"),
    ({"input": "hi", "tools": [{"type": "function", "name": "a b"}]}, "name"),
    ({"input": "hi", "tools": [{"type": "function", "name": "f"}] * 2}, "same name"),
    ({"input": "hi", "tools": [{"type": "function", "name": "f"}] * 129}, "tools"),
    (
        {"input": "hi", "tools": [{"type": "function", "name": "f", "parameters": {"a": "x" * 100_001}}]},
        "64000",
    ),
    ({"input": "hi", "tool_choice": {"type": "function", "name": "f"}}, "tool_choice"),
    ({"input": "hi", "tool_choice": "required"}, "tool_choice"),
    ({"input": "hi", "text": {"format": {"type": "json_schema", "name": "x"}}}, "schema"),
    ({"input": "hi", "background": True}, "background"),
    ({"input": "hi", "conversation": "conv_1"}, "conversation"),
    ({"input": "hi", "prompt": {"id": "pmpt_1"}}, "prompt"),
    ({"input": "hi", "top_logprobs": 2}, "top_logprobs"),
    ({"input": "hi", "max_output_tokens": 0}, "max_output_tokens"),
    ({"input": "hi", "temperature": "warm"}, "temperature"),
]


@pytest.mark.parametrize(("body", "named"), WRONG, ids=[str(body)[:60] for body, _ in WRONG])
async def test_wrong_fields_are_named(live: Live, body: dict[str, Any], named: str) -> None:
    answer = await post(live, **body)
    assert answer.status_code == 400
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
    assert named in answer.json()["error"]["message"]


async def test_only_finished_turns_of_the_same_key_can_be_continued(
    live: Live, sdk: openai.AsyncOpenAI
) -> None:
    mine = live.store.turn((await sdk.responses.create(model="instar", input="mine")).id)
    assert mine is not None
    again = {"status": TurnStatus.OPEN, "session_id": "another"}
    live.store.open_turns([replace(mine, id="turn_theirs", key_id="another", **again)], [])
    live.store.open_turns([replace(mine, id="turn_open", **again)], [])
    outcome = TurnOutcome(
        TurnStatus.DONE, [1], [2], [-0.1], {"role": "assistant", "content": "x"}, "h", "stop", 1.0
    )
    live.store.close_turn("turn_theirs", outcome)
    for turn_id in ("turn_theirs", "turn_open"):
        assert (await post(live, input="hi", previous_response_id=turn_id)).status_code == 404
    assert (await post(live, input="hi", previous_response_id=mine.id)).status_code == 200
