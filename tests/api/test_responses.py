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
from tests.kit import templates
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
    ({"input": "hi", "top_logprobs": 2}, "include"),
    ({"input": "hi", "include": ["message.output_text.logprobs"], "top_logprobs": 21}, "top_logprobs"),
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


LOGPROBS: Any = ["message.output_text.logprobs"]


async def test_logprobs_of_output_text(live: Live, sdk: openai.AsyncOpenAI) -> None:
    whole = await sdk.responses.create(model="instar", input="hi", include=LOGPROBS, top_logprobs=2)
    message = whole.output[0]
    assert message.type == "message"
    part = message.content[0]
    assert part.type == "output_text"
    tokens = part.logprobs or []
    assert bytes(byte for token in tokens for byte in token.bytes).decode() == part.text
    assert [token.logprob for token in tokens[:2]] == pytest.approx([-0.5, -0.51])
    assert [len(token.top_logprobs) for token in tokens] == [2] * len(tokens)
    plain = await sdk.responses.create(model="instar", input="hi")
    assert plain.output[0].content[0].logprobs == []  # type: ignore[union-attr]


async def test_streamed_logprobs_add_up_to_those_of_the_whole(live: Live, sdk: openai.AsyncOpenAI) -> None:
    deltas: list[str] = []
    async for event in await sdk.responses.create(model="instar", input="hi", include=LOGPROBS, stream=True):
        if event.type == "response.output_text.delta":
            deltas += [token.token for token in event.logprobs]
        elif event.type == "response.output_text.done":
            assert [token.token for token in event.logprobs] == deltas
        elif event.type == "response.completed":
            part = event.response.output[0].content[0]  # type: ignore[union-attr]
            assert [token.token for token in part.logprobs or []] == deltas  # type: ignore[union-attr]
            assert "".join(deltas) == event.response.output_text
            return
    pytest.fail("the response never completed")


async def test_response_can_be_had_again(live: Live, sdk: openai.AsyncOpenAI) -> None:
    first = (await post(live, input="why?")).json()
    tool = {"type": "function", "name": "ls", "description": "List.", "parameters": {"type": "object"}}
    asked = {
        "instructions": "Be brief.",
        "previous_response_id": first["id"],
        "tools": [tool],
        "tool_choice": "auto",
        "metadata": {"a": "b"},
        "temperature": 0.5,
        "top_p": 0.9,
        "max_output_tokens": 4,
        "store": False,
        "text": {"format": {"type": "json_object"}},
    }
    for response in (first, (await post(live, input="shorter", **asked)).json()):
        again = await live.http.get(f"/v1/responses/{response['id']}")
        assert (again.status_code, again.json()) == (200, response)
        assert (await sdk.responses.retrieve(response["id"])).output_text == response["output"][0]["content"][
            0
        ]["text"]
    assert response["status"] == "incomplete"


async def test_thought_and_calls_of_a_stored_response_are_those_that_were_sent(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    said = '<think>\nHm.\n</think>\n\nI look.\n<tool_call>\n{"name": "ls", "arguments": {}}\n</tool_call>'
    folder = tmp_path_factory.mktemp("thought")
    async with live_gateway(folder, lambda *_: said, 4096, template=templates.THINKING) as live:
        tools = [{"type": "function", "name": "ls", "parameters": {"type": "object", "properties": {}}}]
        response = (await post(live, input="hi", tools=tools)).json()
        assert [item["type"] for item in response["output"]] == ["reasoning", "message", "function_call"]
        assert response["usage"]["output_tokens_details"]["reasoning_tokens"] > 0
        assert (await live.http.get(f"/v1/responses/{response['id']}")).json() == response


async def test_turn_of_a_chat_can_be_had_as_a_response(live: Live, sdk: openai.AsyncOpenAI) -> None:
    chat = (await live.ask("hi", temperature=0.25)).json()
    response = await sdk.responses.retrieve(chat["id"])
    assert response.output_text == chat["choices"][0]["message"]["content"]
    assert (response.status, response.temperature) == ("completed", 0.25)


async def test_only_ones_own_responses_can_be_had(live: Live, sdk: openai.AsyncOpenAI) -> None:
    mine = live.store.turn((await sdk.responses.create(model="instar", input="mine")).id)
    assert mine is not None
    for turn_id, whose in (("turn_key", {"key_id": "another"}), ("turn_person", {"learner": "proxy/ann"})):
        live.store.open_turns([replace(mine, id=turn_id, status=TurnStatus.OPEN, **whose)], [])  # type: ignore[arg-type]
    for wanted in ("turn_key", "turn_person", "turn_nobody", "%00"):
        answer = await live.http.get(f"/v1/responses/{wanted}")
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")


async def test_what_became_of_an_unfinished_response_is_told(live: Live, sdk: openai.AsyncOpenAI) -> None:
    mine = live.store.turn((await sdk.responses.create(model="instar", input="mine")).id)
    assert mine is not None
    half = {"role": "assistant", "content": "ha"}
    for status, told in ((None, "in_progress"), ("cancelled", "cancelled"), ("failed", "failed")):
        turn_id = f"turn_{told}"
        live.store.open_turns([replace(mine, id=turn_id, status=TurnStatus.OPEN, answer=None)], [])
        if status:
            outcome = TurnOutcome(TurnStatus(status), [1], [2], [-0.1], half, None, None, 1.0, status)
            live.store.close_turn(turn_id, outcome)
        response = await sdk.responses.retrieve(turn_id)
        assert response.status == told
        assert response.output_text == ("ha" if status else "")
        assert (response.error is not None) == (status == "failed")


async def test_deletion_is_refused_by_name(live: Live, sdk: openai.AsyncOpenAI) -> None:
    response = await sdk.responses.create(model="instar", input="keep me")
    answer = await live.http.delete(f"/v1/responses/{response.id}")
    assert (answer.status_code, answer.json()["error"]["code"]) == (405, "not_supported")
    assert "cannot be deleted" in answer.json()["error"]["message"]
    for more in ("stream=true", "include[]=message.output_text.logprobs", "include=x"):
        assert (await live.http.get(f"/v1/responses/{response.id}?{more}")).status_code == 400


async def test_person_behind_a_proxy_has_their_own_responses(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    async with live_gateway(tmp_path_factory.mktemp("proxy"), proxy_key="sk-proxy") as live:
        headers = {"authorization": "Bearer sk-proxy"}
        body = {"input": "hi", "user": "ann"}
        response = (await live.http.post("/v1/responses", json=body, headers=headers)).json()
        for user, status in (("?user=ann", 200), ("?user=bob", 404), ("", 404)):
            got = await live.http.get(f"/v1/responses/{response['id']}{user}", headers=headers)
            assert got.status_code == status
