"""Anthropic's stream and message, from turns that are told beforehand, as the SDK reads them in strict mode."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import pytest
import pytest_asyncio

from instar.answers import CallPart
from instar.errors import EngineError, EngineUnavailable
from instar.flow.exchange import Piece
from tests.kit.live_gateway import KEY
from tests.kit.told_turns import AT_ONCE, READ_A, READ_B, THOUGHT, WORDS, ToldGateway, ended, told_gateway

ASK: dict[str, Any] = {
    "model": "instar",
    "max_tokens": 100,
    "messages": [{"role": "user", "content": "fix it"}],
}


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ToldGateway]:
    async with told_gateway(tmp_path_factory.mktemp("told")) as gateway:
        yield gateway


async def raw_events(gateway: ToldGateway) -> list[Any]:
    return [event async for event in await gateway.anthropic.messages.create(**ASK, stream=True)]


async def test_blocks_follow_each_other_and_each_is_opened_and_closed_once(gateway: ToldGateway) -> None:
    gateway.tell(THOUGHT, WORDS, READ_A, READ_B, ended("tool_calls"))
    seen = []
    for event in await raw_events(gateway):
        kind = event.type.removeprefix("content_block_")
        what = event.content_block.type if kind == "start" else event.delta.type if kind == "delta" else ""
        seen.append((kind, getattr(event, "index", None), what))
    assert seen == [
        ("message_start", None, ""),
        ("start", 0, "thinking"),
        ("delta", 0, "thinking_delta"),
        ("delta", 0, "thinking_delta"),
        ("delta", 0, "signature_delta"),
        ("stop", 0, ""),
        ("start", 1, "text"),
        ("delta", 1, "text_delta"),
        ("delta", 1, "text_delta"),
        ("stop", 1, ""),
        ("start", 2, "tool_use"),
        ("delta", 2, "input_json_delta"),
        ("delta", 2, "input_json_delta"),
        ("stop", 2, ""),
        ("start", 3, "tool_use"),
        ("delta", 3, "input_json_delta"),
        ("stop", 3, ""),
        ("message_delta", None, ""),
        ("message_stop", None, ""),
    ]


async def test_stream_adds_up_to_the_message_that_comes_without_it(gateway: ToldGateway) -> None:
    gateway.tell(THOUGHT, WORDS, READ_A, READ_B, ended("tool_calls"))
    whole = await gateway.anthropic.messages.create(**ASK)
    async with gateway.anthropic.messages.stream(**ASK) as stream:
        streamed = await stream.get_final_message()
    assert streamed.to_dict(exclude_none=True) == whole.to_dict(exclude_none=True)
    thought, words, first, second = whole.content
    assert (thought.type, words.type) == ("thinking", "text")
    assert (thought.thinking, words.text) == ("Let me look.", "I shall look.")
    assert thought.signature
    assert (first.id, first.name, first.input) == ("call_a", "read", {"path": "a"})
    assert (second.id, second.name, second.input) == ("call_b", "read", {"path": "b"})
    assert whole.stop_reason == "tool_use"
    assert (whole.usage.input_tokens, whole.usage.output_tokens) == (3, 9)


async def test_what_comes_at_once_keeps_its_order(gateway: ToldGateway) -> None:
    gateway.tell(AT_ONCE, ended("tool_calls"))
    whole = await gateway.anthropic.messages.create(**ASK)
    async with gateway.anthropic.messages.stream(**ASK) as stream:
        streamed = await stream.get_final_message()
    assert streamed.to_dict(exclude_none=True) == whole.to_dict(exclude_none=True)
    thought, before, first, after, second = whole.content
    assert (thought.type, before.type, after.type) == ("thinking", "text", "text")
    assert (before.text, after.text) == ("I shall ", "look.")
    assert [(c.type, c.id, c.name, c.input) for c in (first, second)] == [  # type: ignore[union-attr]
        ("tool_use", f"call_{name}", "read", {"path": name}) for name in "ab"
    ]


async def test_what_comes_back_is_the_message_that_was_recorded(gateway: ToldGateway) -> None:
    gateway.tell(THOUGHT, WORDS, READ_A, READ_B, ended("tool_calls"))
    whole = await gateway.anthropic.messages.create(**ASK)
    results = [
        {"type": "tool_result", "tool_use_id": "call_a", "content": "text of a"},
        {
            "type": "tool_result",
            "tool_use_id": "call_b",
            "content": [{"type": "text", "text": "no such file"}],
        },
        {"type": "text", "text": "go on"},
    ]
    messages = [*ASK["messages"], whole.to_param(), {"role": "user", "content": results}]
    await gateway.anthropic.messages.create(**{**ASK, "messages": messages})  # type: ignore[arg-type]
    assert gateway.turns.asked[-1].messages == [
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


async def test_thinking_is_left_out_where_the_client_says_so(gateway: ToldGateway) -> None:
    gateway.tell(THOUGHT, WORDS, ended())
    whole = await gateway.anthropic.messages.create(**ASK, thinking={"type": "disabled"})
    assert [block.type for block in whole.content] == ["text"]


@pytest.mark.parametrize(
    ("finish", "reason"), [("stop", "end_turn"), ("length", "max_tokens"), ("tool_calls", "tool_use")]
)
async def test_stop_reasons(gateway: ToldGateway, finish: str, reason: str) -> None:
    gateway.tell(WORDS, ended(finish))
    assert (await gateway.anthropic.messages.create(**ASK)).stop_reason == reason


async def test_arguments_that_were_cut_are_handed_on_as_text(gateway: ToldGateway) -> None:
    gateway.tell(READ_A[:2], ended("length"))
    whole = await gateway.anthropic.messages.create(**ASK)
    assert whole.content[0].input == {"arguments": '{"path": '}  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "arguments", [r'{"x": "\ud800"}', '{"x": 1e999}', '{"x": [-1e999]}', "[1]", "9" * 5000]
)
async def test_arguments_that_could_not_be_sent_are_handed_on_as_text(
    gateway: ToldGateway, arguments: str
) -> None:
    gateway.tell(Piece(0, (CallPart(0, arguments, "call_a", "read"),), [1], [-0.1]), ended("tool_calls"))
    whole = await gateway.anthropic.messages.create(**ASK)
    assert whole.content[0].input == {"arguments": arguments}  # type: ignore[union-attr]


async def test_failure_in_mid_stream_is_an_error_of_anthropics_kind(gateway: ToldGateway) -> None:
    gateway.tell(WORDS, EngineUnavailable("the connection broke"))
    with pytest.raises(anthropic.APIStatusError) as caught:
        await raw_events(gateway)
    assert caught.value.body == {
        "type": "error",
        "error": {
            "type": "overloaded_error",
            "message": "The engine does not answer; it is restarted by itself. (the connection broke)",
        },
    }


async def test_failure_at_once_has_a_status_of_its_own(gateway: ToldGateway) -> None:
    gateway.tell(EngineError("queue full", status=429))
    with pytest.raises(anthropic.RateLimitError):
        await raw_events(gateway)


async def test_silence_is_broken_by_pings_after_the_message_has_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("instar.gateway.turns.PATIENCE_S", 0.01)
    async with told_gateway(tmp_path, ping_s=0.02) as gateway:
        answer_may_come = asyncio.Event()
        gateway.tell(answer_may_come, WORDS, ended())
        seen = []
        async with (
            httpx.AsyncClient(trust_env=False, headers={"x-api-key": KEY}) as http,
            http.stream("POST", f"{gateway.url}/v1/messages", json={**ASK, "stream": True}) as response,
        ):
            async for line in response.aiter_lines():
                if line.startswith("event: "):
                    seen.append(line.removeprefix("event: "))
                if seen.count("ping") == 2:
                    answer_may_come.set()
        assert seen[:3] == ["message_start", "ping", "ping"]
        assert seen[-1] == "message_stop"


@pytest.mark.parametrize(
    ("choice", "expected", "parallel"),
    [
        ({"type": "auto"}, "auto", True),
        ({"type": "any", "disable_parallel_tool_use": True}, "required", False),
        ({"type": "tool", "name": "read"}, {"name": "read"}, True),
        ({"type": "none"}, "none", True),
    ],
    ids=lambda value: str(value)[:40],
)
async def test_tools_and_their_choice_are_those_of_chats(
    gateway: ToldGateway, choice: Any, expected: Any, parallel: bool
) -> None:
    gateway.tell(WORDS, ended())
    schema = {"type": "object", "properties": {"path": {"type": "string"}}}
    tools: Any = [{"name": "read", "description": "reads a file", "input_schema": schema}]
    await gateway.anthropic.messages.create(**ASK, tools=tools, tool_choice=choice)
    asked = gateway.turns.asked[-1]
    function = {"name": "read", "description": "reads a file", "parameters": schema}
    offered = None if choice["type"] == "none" else [{"type": "function", "function": function}]
    assert (asked.offered, asked.tool_choice, asked.parallel_tool_calls) == (offered, expected, parallel)


async def test_wanted_schema_reaches_the_turn(gateway: ToldGateway) -> None:
    gateway.tell(WORDS, ended())
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    await gateway.anthropic.messages.create(
        **ASK, output_config={"format": {"type": "json_schema", "schema": schema}}
    )
    assert gateway.turns.asked[-1].response_schema == schema | {"x-guidance": {"lenient": False}}
