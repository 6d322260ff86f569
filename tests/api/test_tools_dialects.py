"""Calls, thinking and schemas through the Responses API and Anthropic's, by their SDKs, over the scripted engine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import openai
import pytest

from instar.answers import FORMATS, Call
from instar.engines.wire import Completion
from instar.records import Kind, NextKind, Turn
from tests.kit import templates
from tests.kit.scripted_gateway import Gateway, scripted_gateway
from tests.kit.tiny_model import byte_tokenizer

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
THOUGHT, CITY, RESULT, WORDS = "I should look.", {"city": "Bonn"}, "rain, 4 degrees", "It rains in Bonn."


def script(request: Completion) -> list[int]:
    """Looks, and says what it saw; under a schema it gives the city."""
    codec = byte_tokenizer()
    asked = codec.decode(list(request.prompt_ids), skip_special_tokens=False)
    if request.grammar is not None and "tool_call" not in request.grammar:
        text = json.dumps(CITY)
    elif RESULT in asked:
        text = WORDS
    else:
        text = f"<think>\n{THOUGHT}\n</think>\n\n" + FORMATS["hermes"].write([Call("weather", CITY)])
    ids: list[int] = codec.encode(text, add_special_tokens=False).ids
    return ids


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    folder = tmp_path_factory.mktemp("dialects")
    with scripted_gateway(folder, script=script, template=templates.THINKING, context_length=4096) as gateway:
        yield gateway


def check_the_turns(gateway: Gateway, first_id: str, second_id: str) -> None:
    """One step with a call, its result as what followed, and a second step that was asked with the sampled ids."""
    first, second = stored(gateway, first_id), stored(gateway, second_id)
    assert first.finish_reason == "tool_calls"
    assert first.answer is not None
    assert first.answer["reasoning_content"] == THOUGHT
    [call] = first.answer["tool_calls"]
    assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == ("weather", CITY)
    assert [tool["function"]["name"] for tool in first.tools] == ["weather"]
    assert (second.kind, second.parent_id) == (Kind.TOOL_STEP, first_id)
    assert second.answer == {"role": "assistant", "content": WORDS}
    [view] = gateway.store.turn_views(turn_ids=[first_id])
    told = [(state["kind"], state["text"]) for state in view["next_states"]]
    assert told == [(NextKind.TOOL_RESULT, RESULT)]
    assert bytes(first.response_ids[:-1]) in bytes(gateway.engine.requests[-1].prompt_ids)


def stored(gateway: Gateway, turn_id: str) -> Turn:
    turn = gateway.store.turn(turn_id)
    assert turn is not None
    return turn


# ── the Responses API ───────────────────────────────────────────────────────────────────────────────────
FUNCTION: Any = {"type": "function", "name": "weather", "parameters": SCHEMA}


@pytest.fixture
def responses(gateway: Gateway) -> Iterator[Any]:
    with openai.OpenAI(
        base_url=f"{gateway.url}/v1", api_key=gateway.key, max_retries=0, _strict_response_validation=True
    ) as sdk:
        yield sdk.responses


def ask_responses(responses: Any, stream: bool, **asked: Any) -> Any:
    if not stream:
        return responses.create(model="instar", tools=[FUNCTION], **asked)
    with responses.stream(model="instar", tools=[FUNCTION], **asked) as events:
        return events.get_final_response()


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("by_id", [False, True], ids=["by history", "by id"])
def test_responses_round_trip(gateway: Gateway, responses: Any, stream: bool, by_id: bool) -> None:
    question: Any = {"role": "user", "content": f"How is the weather? {stream} {by_id}"}
    first = ask_responses(responses, stream, input=[question])
    thought, call = first.output
    assert (thought.type, thought.content[0].text) == ("reasoning", THOUGHT)
    assert (call.type, call.name, json.loads(call.arguments)) == ("function_call", "weather", CITY)

    result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": RESULT}
    if by_id:
        second = ask_responses(responses, stream, input=[result], previous_response_id=first.id)
    else:
        history = [question, *(item.model_dump(exclude_none=True) for item in first.output), result]
        second = ask_responses(responses, stream, input=history)
    assert second.output_text == WORDS
    check_the_turns(gateway, first.id, second.id)


def test_responses_demands_reach_the_engine(gateway: Gateway, responses: Any) -> None:
    responses.create(model="instar", input="Look!", tools=[FUNCTION], tool_choice="required")
    assert "weather" in gateway.engine.requests[-1].grammar
    wanted: Any = {"format": {"type": "json_schema", "name": "city", "schema": SCHEMA, "strict": True}}
    answer = responses.create(model="instar", input="Where?", text=wanted)
    assert json.loads(answer.output_text) == CITY
    assert "city" in gateway.engine.requests[-1].grammar


# ── Anthropic's ─────────────────────────────────────────────────────────────────────────────────────────
TOOL: Any = {"name": "weather", "input_schema": SCHEMA}


@pytest.fixture
def messages(gateway: Gateway) -> Iterator[Any]:
    with anthropic.Anthropic(
        base_url=gateway.url, api_key=gateway.key, max_retries=0, _strict_response_validation=True
    ) as sdk:
        yield sdk.messages


def ask_messages(messages: Any, stream: bool, said: list[Any]) -> Any:
    asked: Any = {"model": "instar", "max_tokens": 400, "tools": [TOOL], "messages": said}
    if not stream:
        return messages.create(**asked)
    with messages.stream(**asked) as events:
        return events.get_final_message()


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_messages_round_trip(gateway: Gateway, messages: Any, stream: bool) -> None:
    question = {"role": "user", "content": f"What about the weather? {stream}"}
    first = ask_messages(messages, stream, [question])
    thought, call = first.content
    assert (thought.type, thought.thinking) == ("thinking", THOUGHT)
    assert (call.type, call.name, call.input) == ("tool_use", "weather", CITY)
    assert first.stop_reason == "tool_use"

    answer = {
        "role": "assistant",
        "content": [block.model_dump(exclude_none=True) for block in first.content],
    }
    result = {"type": "tool_result", "tool_use_id": call.id, "content": RESULT}
    second = ask_messages(messages, stream, [question, answer, {"role": "user", "content": [result]}])
    assert [(block.type, block.text) for block in second.content] == [("text", WORDS)]
    assert second.stop_reason == "end_turn"
    check_the_turns(gateway, first.id, second.id)


def test_messages_demands_reach_the_engine(gateway: Gateway, messages: Any) -> None:
    asked: Any = {"model": "instar", "max_tokens": 400, "messages": [{"role": "user", "content": "Look!"}]}
    messages.create(**asked, tools=[TOOL], tool_choice={"type": "tool", "name": "weather"})
    assert "weather" in gateway.engine.requests[-1].grammar
    wanted: Any = {"format": {"type": "json_schema", "schema": SCHEMA}}
    answer = messages.create(**asked, output_config=wanted)
    assert json.loads(answer.content[0].text) == CITY
    assert "city" in gateway.engine.requests[-1].grammar
