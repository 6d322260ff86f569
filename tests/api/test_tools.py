"""Tools, thinking and schemas through a real gateway: every format, streaming or not, one call or two, every choice."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from instar.answers import FORMATS, Call
from instar.errors import EngineError
from instar.records import Kind, NextKind
from tests.kit import templates
from tests.kit.live_gateway import Live, live_gateway
from tests.kit.tiny_model import TEMPLATE

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city"],
        },
    },
}
LS = {"type": "function", "function": {"name": "ls", "parameters": {"type": "object", "properties": {}}}}
TOOLS = [WEATHER, LS]
CALLS = [Call("get_weather", {"city": "Bonn", "days": 3}), Call("ls", {})]
ASKED = [{"role": "user", "content": "What is there?"}]

MODELS: dict[str, tuple[str, str, tuple[str, ...], dict[str, Any]]] = {
    # what the model writes, its template, its special tokens, settings
    "hermes": ("hermes", templates.HERMES, (), {}),
    "hermes, marks are tokens": ("hermes", templates.HERMES, ("<tool_call>", "</tool_call>"), {}),
    "llama3": ("llama3", templates.LLAMA3, ("<|python_tag|>",), {}),
    "mistral": ("mistral", templates.MISTRAL, ("[TOOL_CALLS]",), {}),
    "qwen3_coder": ("qwen3_coder", templates.QWEN3_CODER, (), {}),
    "no tools in the template": ("hermes", TEMPLATE, (), {}),
    "plain json": ("json", TEMPLATE, (), {"tool_format": "json"}),
}
NAMED = {"type": "function", "function": {"name": "get_weather"}}
CASES: list[tuple[bool, bool | None, Any]] = [
    # streamed, parallel_tool_calls, tool_choice
    (False, None, "auto"),
    (True, None, None),
    (True, False, "auto"),
    (False, True, "required"),
    (True, False, "required"),
    (True, None, NAMED),
    (False, None, "none"),
]


@pytest.fixture
async def live(tmp_path: Path) -> AsyncIterator[Live]:
    async with live_gateway(tmp_path, context_length=4096, template=templates.THINKING) as live:
        yield live


def says(live: Live, text: str) -> None:
    live.engine.script = lambda version, prompt: text


async def ask(
    live: Live, stream: bool, messages: list[dict[str, Any]] = ASKED, **body: Any
) -> dict[str, Any]:
    """The choice, put together from the pieces where it is streamed."""
    request = {"model": "instar", "messages": messages, **body}
    if not stream:
        answer = await live.http.post("/v1/chat/completions", json=request)
        assert answer.status_code == 200, answer.text
        live.engine.last_turn = answer.json()["id"]  # type: ignore[attr-defined]
        (choice,) = answer.json()["choices"]
        assert choice["message"].pop("refusal") is None
        return choice
    chunks = []
    async with live.http.stream("POST", "/v1/chat/completions", json={**request, "stream": True}) as response:
        assert response.status_code == 200, await response.aread()
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                chunks.append(json.loads(line[6:]))
    live.engine.last_turn = chunks[0]["id"]  # type: ignore[attr-defined]
    return assembled(chunks)


def assembled(chunks: list[dict[str, Any]]) -> dict[str, Any]:
    """One message from its deltas, each checked for OpenAI's exact shape."""
    message: dict[str, Any] = {"role": "assistant", "content": ""}
    finish = [c["choices"][0]["finish_reason"] for c in chunks if c["choices"][0]["finish_reason"]]
    assert len(finish) == 1
    assert chunks[-1]["choices"][0]["finish_reason"] == finish[0]
    for delta in (c["choices"][0]["delta"] for c in chunks):
        assert set(delta) <= {"role", "content", "reasoning_content", "tool_calls"}
        message["content"] += delta.get("content") or ""
        if delta.get("reasoning_content"):
            message["reasoning_content"] = message.get("reasoning_content", "") + delta["reasoning_content"]
        for call in delta.get("tool_calls", []):
            made = message.setdefault("tool_calls", [])
            if call["index"] == len(made):
                assert set(call) == {"index", "id", "type", "function"}
                assert set(call["function"]) == {"name", "arguments"}
                made.append({"id": call["id"], "type": call["type"], "function": dict(call["function"])})
            else:
                assert set(call) == {"index", "function"}, "id, type and name come once"
                assert call["index"] == len(made) - 1
                made[-1]["function"]["arguments"] += call["function"]["arguments"]
    if message.get("tool_calls") and not message["content"]:
        message["content"] = None
    return {"index": 0, "message": message, "logprobs": None, "finish_reason": finish[0]}


def said(choice: dict[str, Any]) -> list[Call]:
    calls = choice["message"].get("tool_calls", [])
    assert all(call["id"].startswith("call_") and call["type"] == "function" for call in calls)
    assert len({call["id"] for call in calls}) == len(calls)
    return [Call(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in calls]


@pytest.mark.parametrize("model", MODELS)
async def test_round_trips(tmp_path: Path, model: str) -> None:
    form, template, special, settings = MODELS[model]
    async with live_gateway(
        tmp_path, context_length=4096, template=template, more_special=special, **settings
    ) as live:
        for number, (stream, parallel, choice) in enumerate(CASES):
            asked = [{"role": "user", "content": f"What is there? {number}"}]
            written = CALLS[:1] if isinstance(choice, dict) else CALLS
            text = FORMATS[form].write(written)
            says(live, text)
            body = {"tools": TOOLS, "tool_choice": choice, "parallel_tool_calls": parallel}
            answer = await ask(live, stream, asked, **body)
            grammar = live.engine.samplings[-1].grammar
            assert (grammar is not None) == (choice not in (None, "auto", "none"))
            if choice == "none":
                assert "tool_calls" not in answer["message"]
                assert answer["finish_reason"] == "stop"
                continue
            wanted = written[:1] if parallel is False else written
            assert said(answer) == wanted
            assert answer["message"]["content"] is None
            assert answer["finish_reason"] == "tool_calls"
            turn = live.store.turn(live.engine.last_turn)  # type: ignore[attr-defined]
            assert turn is not None
            assert turn.answer == answer["message"]
            assert turn.finish_reason == "tool_calls"
            assert turn.tools == TOOLS
            await recognised(live, turn.id, [*asked, answer["message"]], body)


async def recognised(live: Live, turn_id: str, said: list[dict[str, Any]], body: dict[str, Any]) -> None:
    """The client sends our answer back with other ids and other JSON, the results behind it."""
    calls = [
        {
            **call,
            "id": call["id"].replace("_", ""),
            "function": {
                **call["function"],
                "arguments": json.dumps(json.loads(call["function"]["arguments"]), indent=1, sort_keys=True),
            },
        }
        for call in said[-1]["tool_calls"]
    ]
    results = [
        {"role": "tool", "tool_call_id": call["id"], "content": f"result of {call['id']}"} for call in calls
    ]
    says(live, "Sunny.")
    next_ = await ask(
        live,
        False,
        [*said[:-1], {"role": "assistant", "content": None, "tool_calls": calls}, *results],
        **body,
    )
    assert next_["message"]["content"] == "Sunny."
    step = live.store.turn(live.engine.last_turn)  # type: ignore[attr-defined]
    assert step is not None
    assert (step.kind, step.parent_id, step.episode_id) == (Kind.TOOL_STEP, turn_id, turn_id)
    (view,) = live.store.turn_views(turn_ids=[turn_id])
    assert [s["text"] for s in view["next_states"] if s["kind"] == NextKind.TOOL_RESULT] == [
        result["content"] for result in results
    ]


async def test_the_sampled_tokens_of_a_call_come_back_as_they_were(live: Live) -> None:
    odd = '<tool_call>{"arguments": {"days": 3,"city":"Bonn"},  "name": "get_weather"}</tool_call>'
    says(live, odd)
    answer = await ask(live, False, tools=TOOLS)
    results = [{"role": "tool", "tool_call_id": "x", "content": "sun"}]
    await ask(live, False, [*ASKED, answer["message"], *results], tools=TOOLS)
    prompt = live.engine.prompts[-1]
    turn = live.store.turn_views()[-1]
    first = live.store.turn(turn["id"])
    assert first is not None
    assert bytes(first.response_ids[:-1]) in bytes(prompt)
    assert odd in live.engine.chat.decode(prompt)


async def test_text_and_call_and_broken_calls(live: Live) -> None:
    says(live, 'Let me look.\n<tool_call>\n{"name": "ls", "arguments": {}}\n</tool_call>')
    for stream in (False, True):
        answer = await ask(live, stream, tools=TOOLS)
        assert answer["message"]["content"] == "Let me look."
        assert said(answer) == [Call("ls")]
    broken = '<tool_call>\n{"name": "ls", "arguments": {oops}\n</tool_call>'
    says(live, broken)
    for stream in (False, True):
        answer = await ask(live, stream, tools=TOOLS)
        assert answer["message"]["content"] == broken
        assert answer["finish_reason"] == "stop"
        assert "tool_calls" not in answer["message"]


async def test_without_tools_a_mark_is_text(live: Live) -> None:
    text = '<tool_call>\n{"name": "ls", "arguments": {}}\n</tool_call>'
    says(live, text)
    assert (await ask(live, True))["message"]["content"] == text


async def test_sampling_ends_behind_the_only_call_that_was_wanted(live: Live) -> None:
    says(live, FORMATS["hermes"].write(CALLS))
    assert said(await ask(live, False, tools=TOOLS, parallel_tool_calls=False)) == CALLS[:1]
    assert live.engine.aborted == 1


async def test_the_openai_sdk_reads_calls(live: Live) -> None:
    says(live, FORMATS["hermes"].write(CALLS))
    asked: Any = {"model": "instar", "messages": ASKED, "tools": TOOLS}
    answer = await live.openai.chat.completions.create(**asked)
    assert [c.function.name for c in answer.choices[0].message.tool_calls or []] == ["get_weather", "ls"]
    async with live.openai.chat.completions.stream(**asked) as stream:
        final = await stream.get_final_completion()
    assert [c.function.name for c in final.choices[0].message.tool_calls or []] == ["get_weather", "ls"]
    assert final.choices[0].finish_reason == "tool_calls"


# ── thinking ──────────────────────────────────────────────────────────────────────────────────────────────
async def test_thinking_is_apart_and_finds_its_way_back(live: Live) -> None:
    thought = "<think>\nFirst the files.\n</think>\n\n"
    says(live, thought + FORMATS["hermes"].write([Call("ls")]))
    others = [{"role": "user", "content": "Once more?"}]
    answers = [await ask(live, False, others, tools=TOOLS), await ask(live, True, tools=TOOLS)]
    for answer in answers:
        assert answer["message"]["reasoning_content"] == "First the files."
        assert said(answer) == [Call("ls")]
        assert answer["message"]["content"] is None
    message = answers[1]["message"]
    results = [{"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "a.txt"}]
    says(live, "<think>\nOne.\n</think>\n\nOne file.")
    echoed = [*ASKED, message, *results]
    await ask(live, False, echoed, tools=TOOLS)
    assert thought in live.engine.chat.decode(live.engine.prompts[-1]), (
        "the template keeps it within the episode"
    )
    silent = [*ASKED, {k: v for k, v in message.items() if k != "reasoning_content"}, *results]
    await ask(live, False, silent, tools=TOOLS)
    assert live.engine.prompts[-1] == live.engine.prompts[-2], "what the client left out is known"
    last = [{"role": "assistant", "content": "One file."}, {"role": "user", "content": "Thanks"}]
    await ask(live, False, [*echoed, *last], tools=TOOLS)
    prompt = live.engine.chat.decode(live.engine.prompts[-1])
    assert "First the files." not in prompt, "and drops it once a person spoke"
    assert "assistant\nOne file.\nuser\nThanks" in prompt


async def test_a_strange_clients_thinking_is_passed_to_the_template(live: Live) -> None:
    says(live, "ok")
    call = {"id": "1", "type": "function", "function": {"name": "ls", "arguments": "{}"}}
    foreign = {"role": "assistant", "content": "", "reasoning_content": "Not ours.", "tool_calls": [call]}
    await ask(
        live, False, [*ASKED, foreign, {"role": "tool", "tool_call_id": "1", "content": "x"}], tools=TOOLS
    )
    assert "<think>\nNot ours.\n</think>" in live.engine.chat.decode(live.engine.prompts[-1])


async def test_a_prompt_that_opens_thinking(tmp_path: Path) -> None:
    async with live_gateway(tmp_path, template=templates.OPENED) as live:
        says(live, "Hm.\n</think>\n\nhello")
        for stream in (False, True):
            message = (await ask(live, stream))["message"]
            assert (message["reasoning_content"], message["content"]) == ("Hm.", "hello")


# ── schemas ───────────────────────────────────────────────────────────────────────────────────────────────
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


def formatted(schema: dict[str, Any], strict: bool | None = None) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "thing", "schema": schema, "strict": strict}}


async def test_schemas_reach_the_engine(tmp_path: Path) -> None:
    async with live_gateway(tmp_path, lambda version, prompt: '{"a": 1}') as live:
        await ask(live, False, response_format={"type": "text"})
        assert live.engine.samplings[-1].grammar is None
        await ask(live, False, response_format={"type": "json_object"})
        assert live.engine.samplings[-1].grammar["json"]["type"] == "object"  # type: ignore[index]
        answer = await ask(live, True, response_format=formatted(SCHEMA, strict=True))
        assert live.engine.samplings[-1].grammar["json"]["properties"] == SCHEMA["properties"]  # type: ignore[index]
        assert answer["message"]["content"] == '{"a": 1}'
        assert answer["finish_reason"] == "stop"
        cut = await ask(live, False, response_format=formatted(SCHEMA), max_tokens=3)
        assert cut["finish_reason"] == "length"
        assert cut["message"]["content"] == '{"a'


async def test_what_a_grammar_decided_is_stored(tmp_path: Path) -> None:
    async with live_gateway(tmp_path, lambda version, prompt: '{"a": 1}') as live:
        await ask(live, False, response_format=formatted(SCHEMA))
        await ask(live, False)
        live.engine.tells_forced = False
        await ask(live, False, response_format=formatted(SCHEMA))
        silent, free, told = (live.store.turn(view["id"]) for view in live.store.turn_views())
        assert told is not None
        assert free is not None
        assert silent is not None
        assert told.forced == [at % 2 == 0 for at in range(len(told.response_ids))]
        assert free.forced == []
        assert silent.forced == [True] * len(silent.response_ids), "nobody says which, so it may be any"


async def test_a_forced_call_that_is_cut_is_a_cut_call(live: Live) -> None:
    text = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Bonn'
    says(live, text)
    for stream in (False, True):
        answer = await ask(live, stream, tools=TOOLS, tool_choice="required", max_tokens=len(text) - 3)
        assert answer["finish_reason"] == "length"
        (call,) = answer["message"]["tool_calls"]
        assert call["function"] == {"name": "get_weather", "arguments": '{"city": "B'}


async def test_forced_arguments_are_streamed_as_they_come(live: Live) -> None:
    text = FORMATS["hermes"].write(CALLS[:1])
    says(live, text)
    live.engine.gate, live.engine.gate_at = asyncio.Event(), text.index("arguments") + 20
    body = {"model": "instar", "messages": ASKED, "tools": TOOLS, "tool_choice": "required", "stream": True}
    pieces: list[str] = []
    async with live.http.stream("POST", "/v1/chat/completions", json=body) as response, asyncio.timeout(60):
        async for line in response.aiter_lines():
            if '"arguments"' in line and '"name"' not in line:
                pieces.append(line)
                live.engine.gate.set()  # the rest of the call is not sampled before its beginning was read
    assert len(pieces) > 10


# ── refusals, before anything is sampled ──────────────────────────────────────────────────────────────────
BIG = {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(9000)}}


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def taking(parameters: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", "parameters": parameters}}


REFUSED: list[tuple[dict[str, Any], str | None, str]] = [
    ({"tools": [named(f"f{i}") for i in range(129)]}, "tools", "128"),
    ({"tools": [named("x" * 129)]}, "tools.0.function.name", "pattern"),
    ({"tools": [named("two words")]}, "tools.0.function.name", "pattern"),
    ({"tools": [named("f"), named("f")]}, None, "same name"),
    ({"tools": [{"type": "web_search"}]}, "tools.0.type", "function"),
    ({"tools": [taking(BIG)]}, None, "64000"),
    ({"tools": [taking({"type": "array"})]}, None, "object"),
    ({"tool_choice": "required"}, None, "no tools"),
    ({"tools": TOOLS, "tool_choice": named("rm")}, None, "not among"),
    ({"tools": TOOLS, "tool_choice": "sometimes"}, None, "tool_choice"),
    ({"response_format": {"type": "yaml"}}, "response_format.type", "json"),
    ({"response_format": {"type": "json_schema"}}, "response_format", "json_schema"),
    ({"response_format": formatted(BIG)}, None, "64000"),
    ({"response_format": formatted({"type": "wat"})}, "response_format", "wat"),
    ({"response_format": formatted({"not": {"type": "string"}}, strict=True)}, "response_format", "not"),
    ({"response_format": formatted({"$ref": "http://example.com/s"})}, "response_format", "enforced"),
    ({"response_format": formatted({"type": "string", "pattern": "(?=x)"})}, "response_format", "look-a"),
    ({"tools": [taking({"properties": {"a": {"type": "wat"}}})], "tool_choice": "required"}, "tools", "wat"),
]


async def test_what_cannot_be_done_is_refused(live: Live) -> None:
    for body, param, word in REFUSED:
        answer = await live.http.post(
            "/v1/chat/completions", json={"model": "instar", "messages": ASKED, **body}
        )
        assert answer.status_code == 400, answer.text
        error = answer.json()["error"]
        assert word in error["message"]
        assert param is None or (error["param"] or "").startswith(param), error
    assert live.engine.samplings == []
    assert await live.turns() == []


async def test_keywords_that_cannot_be_enforced_are_fine_where_nothing_is_strict(live: Live) -> None:
    says(live, '"x"')
    await ask(live, False, response_format=formatted({"type": "string", "not": {"const": "y"}}))


async def test_an_engine_that_cannot_do_grammars_says_so(live: Live) -> None:
    live.engine.refuse = EngineError("'structured_outputs' is not supported.", status=400)
    body = {"model": "instar", "messages": ASKED, "response_format": {"type": "json_object"}}
    answer = await live.http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 400
    assert "structured_outputs" in answer.json()["error"]["message"]


async def test_broken_histories_are_refused_and_odd_ones_taken(live: Live) -> None:
    says(live, "ok")
    call: dict[str, Any] = {"id": "1", "type": "function"}
    for broken in (
        {"tool_calls": [3]},
        {"tool_calls": [call]},
        {"tool_calls": [{"function": {"name": 3}}]},
        {"reasoning_content": {"a": 1}},
    ):
        body = {
            "model": "instar",
            "messages": [*ASKED, {"role": "assistant", "content": None, **broken}, *ASKED],
        }
        assert (await live.http.post("/v1/chat/completions", json=body)).status_code == 400
    for arguments in ("not json", "[1]", "", {"a": 1}, None):
        calls = [{**call, "function": {"name": "ls", "arguments": arguments}}]
        history = [*ASKED, {"role": "assistant", "content": None, "tool_calls": calls}, *ASKED]
        await ask(live, False, history, tools=TOOLS)


@pytest.mark.parametrize("at_once", [1, 7, 10_000])
async def test_text_and_calls_keep_their_order_however_many_tokens_come_at_once(
    live: Live, at_once: int
) -> None:
    live.engine.at_once = at_once
    path = "/" + "long" * 100
    says(live, "Look.\n" + FORMATS["hermes"].write([Call("ls", {"path": path}), Call("ls", {})]) + "\nDone.")
    tools = [{"name": "ls", "input_schema": {"type": "object"}}]
    asked = {"model": "instar", "max_tokens": 2000, "messages": ASKED, "tools": tools, "stream": True}
    blocks: list[dict[str, Any]] = []
    async with live.http.stream("POST", "/v1/messages", json=asked) as response:
        async for line in response.aiter_lines():
            event = json.loads(line[6:]) if line.startswith("data: {") else {}
            if event.get("type") == "content_block_start":
                blocks.append({**event["content_block"], "written": ""})
            elif event.get("type") == "content_block_delta":
                blocks[-1]["written"] += (
                    event["delta"].get("text") or event["delta"].get("partial_json") or ""
                )
    said = [(b["type"], b["written"] if b["type"] == "text" else json.loads(b["written"])) for b in blocks]
    assert said == [("text", "Look."), ("tool_use", {"path": path}), ("tool_use", {}), ("text", "Done.")]
    assert [b["name"] for b in blocks if b["type"] == "tool_use"] == ["ls", "ls"]
