"""`/v1/messages` over the real gateway: recorded, continued and judged as chat completions are."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from typing import Any

import anthropic
import httpx
import pytest
import pytest_asyncio

from tests.kit.live_gateway import KEY, Live, live_gateway

pytestmark = pytest.mark.asyncio(loop_scope="module")
_count = itertools.count()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def live(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Live]:
    """Every answer is another one, as from a model that samples."""
    folder = tmp_path_factory.mktemp("messages")
    script = lambda version, prompt: f"answer {next(_count)}. The end"  # noqa: E731
    async with live_gateway(folder, script, max_body_bytes=100_000) as live:
        yield live


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sdk(live: Live) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with anthropic.AsyncAnthropic(
        base_url=live.url, api_key=KEY, max_retries=0, _strict_response_validation=True
    ) as sdk:
        yield sdk


def user(content: Any) -> Any:
    return {"role": "user", "content": content}


async def post(live: Live, **body: Any) -> httpx.Response:
    whole = {"model": "instar", "max_tokens": 50, "messages": [user("hi")], **body}
    return await live.http.post("/v1/messages", json=whole)


async def test_message_is_a_turn(live: Live, sdk: anthropic.AsyncAnthropic) -> None:
    raw = await sdk.messages.with_raw_response.create(
        model="instar",
        max_tokens=50,
        system=[{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
        messages=[user([{"type": "text", "text": "one"}, {"type": "text", "text": "two"}])],
    )
    message = await raw.parse()
    assert raw.headers["x-instar-turn"] == message.id
    assert message.content[0].type == "text"
    assert message.stop_reason == "end_turn"
    turn = live.store.turn(message.id)
    assert turn is not None
    assert turn.messages == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "one\n"}, {"type": "text", "text": "two"}]},
    ]
    assert turn.answer == {"role": "assistant", "content": message.content[0].text}
    assert message.usage.input_tokens == len(turn.prompt_ids)
    assert message.usage.output_tokens == len(turn.response_ids)


async def test_streamed_message_is_committed_before_it_stops(
    live: Live, sdk: anthropic.AsyncAnthropic
) -> None:
    async with sdk.messages.stream(model="instar", max_tokens=50, messages=[user("hi")]) as stream:
        async for event in stream:
            if event.type == "message_stop":
                turn = live.store.turn(event.message.id)
                assert turn is not None
                assert turn.status == "done"
        final = await stream.get_final_message()
    assert turn.answer == {"role": "assistant", "content": final.content[0].text}  # type: ignore[union-attr]


async def test_reply_judges_the_message_before_it(live: Live, sdk: anthropic.AsyncAnthropic) -> None:
    first = await sdk.messages.create(model="instar", max_tokens=50, messages=[user("why?")])
    history = [user("why?"), first.to_param(), user("shorter")]
    second = await sdk.messages.create(
        model="instar", max_tokens=50, messages=history, metadata={"user_id": "somebody"}
    )
    turn = live.store.turn(second.id)
    assert turn is not None
    assert turn.parent_id == first.id
    items = {item.turn.id: item.next_states for item in live.judge_items()}
    assert [(s.kind, s.text) for s in items[first.id]] == [("user_reply", "shorter")]


async def test_reminders_of_claude_code_are_neither_a_reply_nor_the_question(live: Live) -> None:
    reminder = {"type": "text", "text": "<system-reminder>\nThe todo list is empty.\n</system-reminder>"}
    asked = [user([reminder, {"type": "text", "text": "Read a.txt"}])]
    first = (await post(live, messages=asked)).json()
    asked.append({"role": "assistant", "content": first["content"]})
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "text of a"}
    second = (await post(live, messages=[*asked, user([result, reminder])])).json()
    rows = {row["id"]: row for row in await live.turns(limit=2)}
    assert rows[first["id"]]["question"] == "Read a.txt"
    assert rows[second["id"]]["kind"] == "tool_step"
    told = [(state["kind"], state["text"]) for state in rows[first["id"]]["next_states"]]
    assert told == [("tool_result", "text of a")]
    asked += [user([result, reminder]), {"role": "assistant", "content": second["content"]}]
    await post(live, messages=[*asked, user([{"type": "text", "text": "Wrong file."}, reminder])])
    rows = {row["id"]: row for row in await live.turns(limit=3)}
    told = [(state["kind"], state["text"].strip()) for state in rows[second["id"]]["next_states"]]
    assert told == [("user_reply", "Wrong file.")]


async def test_metadata_user_id_is_no_session(live: Live) -> None:
    answers = [await post(live, metadata={"user_id": "u1_session_s1"}) for _ in range(2)]
    rows = {row["id"]: row["session_id"] for row in await live.turns()}
    assert rows[answers[0].json()["id"]] != rows[answers[1].json()["id"]]


async def test_feedback_on_a_message(live: Live) -> None:
    turn_id = (await post(live)).json()["id"]
    told = await live.http.post("/v1/feedback", json={"turn": turn_id, "score": -1, "comment": "no"})
    assert told.status_code == 200
    items = {item.turn.id: item.next_states for item in live.judge_items()}
    assert [(s.kind, s.score) for s in items[turn_id]] == [("feedback", -1)]


async def test_stop_sequence_is_named(live: Live) -> None:
    message = (await post(live, stop_sequences=["zzz", ". "])).json()
    assert message["stop_reason"] == "stop_sequence"
    assert message["stop_sequence"] == ". "
    assert message["content"][0]["text"].startswith("answer ")
    assert "The end" not in message["content"][0]["text"]
    whole = (await post(live, stop_sequences=["zzz"])).json()
    assert (whole["stop_reason"], whole["stop_sequence"]) == ("end_turn", None)


async def test_token_limit_is_told(live: Live) -> None:
    message = (await post(live, max_tokens=4)).json()
    assert (message["stop_reason"], message["usage"]["output_tokens"]) == ("max_tokens", 4)


async def test_failed_tool_says_that_it_failed(live: Live) -> None:
    call = {"type": "tool_use", "id": "t1", "name": "read", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "t1", "is_error": True, "content": "no such file"}
    answer = await post(live, messages=[user("q"), {"role": "assistant", "content": [call]}, user([result])])
    turn = live.store.turn(answer.json()["id"])
    assert turn is not None
    assert turn.messages[-1] == {"role": "tool", "tool_call_id": "t1", "content": "Error: no such file"}
    assert turn.kind == "tool_step"


async def test_count_is_that_of_the_prompt_and_records_nothing(
    live: Live, sdk: anthropic.AsyncAnthropic
) -> None:
    asked: Any = {"model": "instar", "system": "Be brief.", "messages": [user("count me")]}
    before = len(await live.turns(limit=1000))
    counted = await sdk.messages.count_tokens(**asked)
    assert len(await live.turns(limit=1000)) == before
    served = await sdk.messages.create(max_tokens=5, **asked)
    assert counted.input_tokens == served.usage.input_tokens > 0


async def test_count_knows_no_version_that_is_not_there(live: Live) -> None:
    for model, status in (("instar@v999", 404), ("instar@base", 200), ("gpt-4", 404)):
        answer = await live.http.post(
            "/v1/messages/count_tokens", json={"model": model, "messages": [user("hi")]}
        )
        assert answer.status_code == status, model


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"max_tokens": None}, "max_tokens"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"messages": []}, "messages"),
    ({"messages": [user(3)]}, "content"),
    ({"messages": [user([{"type": "image", "source": {"type": "url", "url": "x"}}])]}, "type"),
    ({"messages": [user([{"type": "tool_use", "id": "a", "name": "b", "input": {}}])]}, "tool_use"),
    ({"messages": [user([{"type": "tool_result"}])]}, "tool_use_id"),
    (
        {"messages": [user([{"type": "tool_result", "tool_use_id": "a", "content": [{"type": "image"}]}])]},
        "image",
    ),
    ({"messages": [user("q"), {"role": "assistant", "content": "The answer is ("}]}, "last message"),
    ({"messages": [{"role": "wizard", "content": "q"}]}, "role"),
    ({"system": [{"type": "image"}]}, "image"),
    ({"tools": [{"type": "web_search_20260101", "name": "web_search"}]}, "tools"),
    ({"tools": [{"name": "f", "input_schema": {}}] * 2}, "same name"),
    ({"tool_choice": {"type": "tool", "name": "nothing"}}, "tool_choice"),
    ({"tool_choice": {"type": "any"}}, "tool_choice"),
    ({"top_k": 5}, "top_k"),
    ({"temperature": 3}, "temperature"),
    ({"stop_sequences": ["a"] * 17}, "stop_sequences"),
]


@pytest.mark.parametrize(("body", "named"), WRONG, ids=[str(body)[:60] for body, _ in WRONG])
async def test_wrong_fields_are_named_in_anthropics_shape(
    live: Live, body: dict[str, Any], named: str
) -> None:
    answer = await post(live, **body)
    assert answer.status_code == 400
    error = answer.json()
    assert set(error) == {"type", "error"}
    assert (error["type"], error["error"]["type"]) == ("error", "invalid_request_error")
    assert named in error["error"]["message"]


async def test_every_refusal_has_anthropics_shape(live: Live) -> None:
    path = "/v1/messages"
    asked = {"model": "instar", "max_tokens": 5, "messages": [user("hi")]}
    async with httpx.AsyncClient(base_url=live.url, trust_env=False) as stranger:
        answers = [
            (401, "authentication_error", await stranger.post(path, json=asked)),
            (404, "not_found_error", await live.http.post(path, json={**asked, "model": "claude"})),
            (404, "not_found_error", await live.http.post(f"{path}/nothing", json=asked)),
            (405, "invalid_request_error", await live.http.get(path)),
            (413, "request_too_large", await live.http.post(path, content=b" " * 100_001)),
            (400, "invalid_request_error", await live.http.post(path, content=b"{")),
            (400, "invalid_request_error", await post(live, messages=[user("long " * 200)])),
        ]
    for status, kind, answer in answers:
        assert (answer.status_code, answer.json()["error"]["type"]) == (status, kind)
        assert answer.json()["error"]["message"]
