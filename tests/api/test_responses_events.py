"""The Responses API from turns that are told beforehand, as the SDK reads it in strict mode."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
import pytest_asyncio

from instar.errors import EngineError, EngineUnavailable
from tests.kit.told_turns import AT_ONCE, READ_A, READ_B, THOUGHT, WORDS, ToldGateway, ended, told_gateway

pytestmark = pytest.mark.asyncio(loop_scope="module")

ASK: dict[str, Any] = {"model": "instar", "input": "fix it"}
SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ToldGateway]:
    async with told_gateway(tmp_path_factory.mktemp("told")) as gateway:
        yield gateway


async def raw_events(gateway: ToldGateway, **more: Any) -> list[Any]:
    return [event async for event in await gateway.openai.responses.create(**ASK, **more, stream=True)]


async def test_whole_sequence_of_events(gateway: ToldGateway) -> None:
    gateway.tell(THOUGHT, WORDS, READ_A, READ_B, ended("tool_calls"))
    events = await raw_events(gateway)
    assert [e.sequence_number for e in events] == list(range(len(events)))
    seen = [(e.type.removeprefix("response."), getattr(e, "output_index", None)) for e in events]
    assert seen == [
        ("created", None),
        ("in_progress", None),
        ("output_item.added", 0),
        ("content_part.added", 0),
        ("reasoning_text.delta", 0),
        ("reasoning_text.delta", 0),
        ("reasoning_text.done", 0),
        ("content_part.done", 0),
        ("output_item.done", 0),
        ("output_item.added", 1),
        ("content_part.added", 1),
        ("output_text.delta", 1),
        ("output_text.delta", 1),
        ("output_text.done", 1),
        ("content_part.done", 1),
        ("output_item.done", 1),
        ("output_item.added", 2),
        ("function_call_arguments.delta", 2),
        ("function_call_arguments.delta", 2),
        ("function_call_arguments.done", 2),
        ("output_item.done", 2),
        ("output_item.added", 3),
        ("function_call_arguments.delta", 3),
        ("function_call_arguments.done", 3),
        ("output_item.done", 3),
        ("completed", None),
    ]
    ids = {e.output_index: e.item.id for e in events if e.type == "response.output_item.added"}
    assert len(set(ids.values())) == 4
    assert {e.item_id == ids[e.output_index] for e in events if hasattr(e, "item_id")} == {True}


async def test_stream_adds_up_to_the_response_that_comes_without_it(gateway: ToldGateway) -> None:
    gateway.tell(THOUGHT, WORDS, READ_A, READ_B, ended("tool_calls"))
    whole = await gateway.openai.responses.create(**ASK)
    async with gateway.openai.responses.stream(**ASK) as stream:
        deltas = [e.delta async for e in stream if e.type == "response.output_text.delta"]
        streamed = await stream.get_final_response()
    assert streamed.model_dump(exclude={"output"}) == whole.model_dump(exclude={"output"})
    assert [item.id for item in streamed.output] == [item.id for item in whole.output]
    assert "".join(deltas) == streamed.output_text == whole.output_text == "I shall look."
    thought, words, first, second = whole.output
    assert (thought.type, words.type, first.type, second.type) == (
        "reasoning",
        "message",
        "function_call",
        "function_call",
    )
    assert [part.text for part in thought.content or []] == ["Let me look."]
    assert (first.call_id, first.name, first.arguments) == ("call_a", "read", '{"path": "a"}')
    assert (second.call_id, second.name, second.arguments) == ("call_b", "read", '{"path": "b"}')
    assert {item.status for item in (thought, words, first, second)} == {"completed"}
    assert (whole.status, whole.id) == ("completed", "turn_1")
    assert whole.usage is not None
    assert (whole.usage.input_tokens, whole.usage.output_tokens, whole.usage.total_tokens) == (3, 9, 12)
    assert whole.usage.output_tokens_details.reasoning_tokens == 2


async def test_what_comes_at_once_keeps_its_order(gateway: ToldGateway) -> None:
    gateway.tell(AT_ONCE, ended("tool_calls"))
    whole = await gateway.openai.responses.create(**ASK)
    async with gateway.openai.responses.stream(**ASK) as stream:
        async for _ in stream:
            pass
        streamed = await stream.get_final_response()
    assert [item.id for item in streamed.output] == [item.id for item in whole.output]
    kinds = [item.type for item in whole.output]
    assert kinds == ["reasoning", "message", "function_call", "message", "function_call"]
    assert [item.content[0].text for item in whole.output if item.type == "message"] == ["I shall ", "look."]  # type: ignore[union-attr]
    calls = [item for item in whole.output if item.type == "function_call"]
    assert [(c.call_id, c.name, c.arguments) for c in calls] == [
        (f"call_{name}", "read", f'{{"path": "{name}"}}') for name in "ab"
    ]


async def test_what_comes_back_is_the_message_that_was_recorded(gateway: ToldGateway) -> None:
    gateway.tell(THOUGHT, WORDS, READ_A, READ_B, ended("tool_calls"))
    whole = await gateway.openai.responses.create(**ASK)
    items: list[Any] = [
        {"role": "user", "content": [{"type": "input_text", "text": "fix it"}]},
        *(item.to_dict() for item in whole.output),
        {"type": "function_call_output", "call_id": "call_a", "output": "text of a"},
        {
            "type": "function_call_output",
            "call_id": "call_b",
            "output": [{"type": "input_text", "text": "no such file"}],
        },
        {"role": "user", "content": "go on"},
    ]
    await gateway.openai.responses.create(model="instar", input=items, instructions="Be brief.")
    assert gateway.turns.asked[-1].messages == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "fix it"},
        {
            "role": "assistant",
            "content": "I shall look.",
            "reasoning_content": "Let me look.",
            "tool_calls": [
                {
                    "id": f"call_{name}",
                    "type": "function",
                    "function": {"name": "read", "arguments": f'{{"path": "{name}"}}'},
                }
                for name in "ab"
            ],
        },
        {"role": "tool", "tool_call_id": "call_a", "content": "text of a"},
        {"role": "tool", "tool_call_id": "call_b", "content": "no such file"},
        {"role": "user", "content": "go on"},
    ]


async def test_steps_that_follow_each_other_are_not_merged(gateway: ToldGateway) -> None:
    gateway.tell(WORDS, ended())
    said = [{"role": "assistant", "content": text} for text in ("one", "two")]
    thought = {"type": "reasoning", "id": "rs", "summary": [{"type": "summary_text", "text": "hm"}]}
    items: Any = [{"role": "user", "content": "q"}, *said, thought, said[0], {"role": "user", "content": "r"}]
    await gateway.openai.responses.create(model="instar", input=items)
    assert gateway.turns.asked[-1].messages[1:-1] == [
        {"role": "assistant", "content": "one"},
        {"role": "assistant", "content": "two"},
        {"role": "assistant", "content": "one", "reasoning_content": "hm"},
    ]


async def test_answer_that_was_cut_is_incomplete(gateway: ToldGateway) -> None:
    gateway.tell(WORDS, ended("length"))
    events = await raw_events(gateway, max_output_tokens=9)
    assert events[-1].type == "response.incomplete"
    response = events[-1].response
    assert (response.status, response.output[0].status) == ("incomplete", "incomplete")
    assert response.incomplete_details.reason == "max_output_tokens"
    assert response.max_output_tokens == 9


async def test_failure_in_mid_stream_fails_the_response(gateway: ToldGateway) -> None:
    gateway.tell(WORDS, EngineUnavailable("the connection broke"))
    events = await raw_events(gateway)
    assert events[-1].type == "response.failed"
    response = events[-1].response
    assert response.status == "failed"
    assert response.error.code == "server_error"
    assert "the connection broke" in response.error.message
    assert response.output[0].status == "incomplete"


async def test_failure_at_once_has_a_status_of_its_own(gateway: ToldGateway) -> None:
    gateway.tell(EngineError("queue full", status=429))
    with pytest.raises(openai.RateLimitError):
        await raw_events(gateway)


async def test_empty_answer_is_an_empty_message(gateway: ToldGateway) -> None:
    gateway.tell(ended())
    whole = await gateway.openai.responses.create(**ASK)
    assert [item.type for item in whole.output] == ["message"]
    assert whole.output_text == ""


async def test_silence_is_broken_by_an_event_that_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("instar.gateway.turns.PATIENCE_S", 0.01)
    async with told_gateway(tmp_path, ping_s=0.02) as gateway:
        first_may_come, rest_may_come = asyncio.Event(), asyncio.Event()
        gateway.tell(first_may_come, WORDS[0], rest_may_come, WORDS[1], ended())
        events = []
        async with gateway.openai.responses.stream(**ASK) as stream:
            async for event in stream:
                events.append(event)
                types = [e.type for e in events]
                if types[-2:] == ["response.in_progress"] * 2:
                    (rest_may_come if "response.output_text.delta" in types else first_may_come).set()
            final = await stream.get_final_response()
    assert types[:3] == ["response.created", "response.in_progress", "response.in_progress"]
    assert [e.sequence_number for e in events] == list(range(len(events)))
    assert final.output_text == "I shall look."


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ("auto", "auto"),
        ("required", "required"),
        ("none", "none"),
        ({"type": "function", "name": "read"}, {"name": "read"}),
    ],
    ids=str,
)
async def test_tools_and_their_choice_are_those_of_chats(
    gateway: ToldGateway, choice: Any, expected: Any
) -> None:
    gateway.tell(WORDS, ended())
    tools: Any = [{"type": "function", "name": "read", "parameters": SCHEMA, "strict": True}]
    whole = await gateway.openai.responses.create(
        **ASK, tools=tools, tool_choice=choice, parallel_tool_calls=False
    )
    asked = gateway.turns.asked[-1]
    function = {"name": "read", "parameters": SCHEMA, "strict": True}
    offered = None if choice == "none" else [{"type": "function", "function": function}]
    assert (asked.offered, asked.tool_choice, asked.parallel_tool_calls) == (offered, expected, False)
    assert whole.to_dict()["tools"] == tools
    assert whole.to_dict()["tool_choice"] == choice
    assert whole.parallel_tool_calls is False


@pytest.mark.parametrize(
    ("wanted", "schema"),
    [
        (
            {"type": "json_schema", "name": "file", "schema": SCHEMA, "strict": True},
            {**SCHEMA, "x-guidance": {"lenient": False}},
        ),
        (
            {"type": "json_schema", "name": "file", "schema": SCHEMA},
            {**SCHEMA, "x-guidance": {"lenient": True}},
        ),
        ({"type": "json_object"}, {"type": "object"}),
        ({"type": "text"}, None),
    ],
    ids=lambda value: (value or {}).get("type", ""),
)
async def test_wanted_format_reaches_the_turn_and_is_told_again(
    gateway: ToldGateway, wanted: Any, schema: Any
) -> None:
    gateway.tell(WORDS, ended())
    whole = await gateway.openai.responses.create(**ASK, text={"format": wanted})
    assert gateway.turns.asked[-1].response_schema == schema
    assert whole.to_dict()["text"] == {"format": wanted}
