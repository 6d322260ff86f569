"""Reading calls out of text, whatever the pieces it comes in."""

from __future__ import annotations

import functools
import itertools
import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from instar.answers import (
    FORMATS,
    AnswerReader,
    Call,
    CallPart,
    ReasoningSplitter,
    ThinkTags,
    Thought,
    Tool,
    spoken_by,
)
from instar.answers.json_calls import HELD_CHARS

TOOLS = [
    Tool(
        "get_weather",
        "Weather",
        {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
    ),
    Tool(
        "ls",
        "Files",
        {"type": "object", "properties": {"path": {"type": "string"}, "all": {"type": "boolean"}}},
    ),
]
NAMES = sorted(FORMATS)
Item = str | list[str]
"""A text, or name and arguments of a call."""


def read(name: str, pieces: list[str], *, forced: bool = False, opened: bool = False) -> dict[str, Any]:
    ids = iter(f"call_{i}" for i in range(100))
    reader = AnswerReader(
        ReasoningSplitter(ThinkTags(), is_open=opened),
        FORMATS[name].reader(TOOLS, is_forced=forced),
        lambda: next(ids),
    )
    shown = [part for piece in pieces for part in reader.push(piece)] + list(reader.finish())
    message = reader.message()
    assert "".join(part for part in shown if isinstance(part, str)) == (message["content"] or "")
    thought = "".join(part.text for part in shown if isinstance(part, Thought))
    assert thought == message.get("reasoning_content", "")
    built: dict[int, list[str]] = {}
    items: list[Item] = []
    for part in shown:
        if isinstance(part, CallPart) and part.name is not None:
            assert part.index not in built, "a name comes once, and first"
            items.append(built.setdefault(part.index, [part.name, ""]))
        if isinstance(part, CallPart):
            assert items[-1] is built[part.index], "a call is not interrupted"
            items[-1][1] += part.arguments
        elif isinstance(part, str) and items and isinstance(items[-1], str):
            items[-1] += part
        elif isinstance(part, str):
            items.append(part)
    made = [[c["function"]["name"], c["function"]["arguments"]] for c in message.get("tool_calls", [])]
    assert [built[i] for i in sorted(built)] == made, "pieces add up to the message"
    return {**message, "in_order": items}


def calls_of(message: dict[str, Any]) -> list[tuple[str, Any]]:
    return [
        (c["function"]["name"], json.loads(c["function"]["arguments"])) for c in message.get("tool_calls", [])
    ]


def cut(text: str, places: list[int]) -> list[str]:
    edges = [0, *sorted(p % (len(text) + 1) for p in places), len(text)]
    return [text[a:b] for a, b in itertools.pairwise(edges)]


values = st.text(st.characters(codec="utf-8", exclude_characters="<>"), max_size=12)
call = st.one_of(
    st.builds(
        lambda city, days: Call("get_weather", {"city": city, "days": days}), values, st.integers(-9, 99)
    ),
    st.builds(lambda path, all_: Call("ls", {"path": path, "all": all_}), values, st.booleans()),
    st.just(Call("ls", {})),
)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=25, deadline=None)
@given(calls=st.lists(call, min_size=1, max_size=3), places=st.lists(st.integers(0, 999), max_size=12))
def test_what_is_written_is_read_back(name: str, calls: list[Call], places: list[int]) -> None:
    text = FORMATS[name].write(calls)
    message = read(name, cut(text, places))
    wanted = [(c.name, c.arguments) for c in calls]
    if name == "qwen3_coder":  # bare text cannot tell a line break at its end
        wanted = [
            (n, {k: v.strip("\n") if isinstance(v, str) else v for k, v in a.items()}) for n, a in wanted
        ]
        got = [
            (n, {k: v.strip("\n") if isinstance(v, str) else v for k, v in a.items()})
            for n, a in calls_of(message)
        ]
        assert got == wanted
    else:
        assert calls_of(message) == wanted
    assert message["content"] is None


CALL = "a call in the format"
LS = '{"name": "ls", "arguments": {}}'
FLAT = '{"name": "ls", "path": "/"}'
OTHER = '{"name": "Ada", "born": 1815}'
OOPS = '<tool_call>{"name": "ls", "arguments": {oops}</tool_call>'
LIST = '<tool_call>{"name": "ls", "arguments": [1]}</tool_call>'
FRAGMENTS = [
    *(
        "<tool_call>",
        "</tool_call>",
        "[TOOL_CALLS]",
        "<|python_tag|>",
        "<think>",
        "</think>",
        "```json\n",
        "```",
    ),
    *("<function=ls>", "<parameter=path>\n/tmp\n</parameter>", "</function>", "<fun", "<tool"),
    *("\n", " ", "[", "]", ",", ";", "{", "}", '"', ": ", "\\", "é", "Well, ", "x" * 300),
    *(LS, LS.replace("ls", "rm"), '{"name": "ls", "parameters": {"path": "/"}}', '{"a": 1}'),
    '{"name": "ls", "arguments": {"path": "a\nb"}}',
    '{"arguments": {"path": "x"}, "name": "ls"}',
    '{"name": "ls", "arguments": {oops',
    '{"name": "ls", "arguments": {"path": "' + "y" * HELD_CHARS,
    '"}}',
    *(FLAT, OTHER),
]


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=60, deadline=None)
@given(
    parts=st.lists(st.sampled_from([CALL, CALL, *FRAGMENTS]), max_size=9),
    places=st.lists(st.integers(0, 4000), max_size=10),
    forced=st.booleans(),
    opened=st.booleans(),
)
def test_the_pieces_do_not_matter(
    name: str, parts: list[str], places: list[int], forced: bool, opened: bool
) -> None:
    text = "".join(parts).replace(CALL, FORMATS[name].write([Call("ls", {"path": "/"})]))
    whole = read(name, [text], forced=forced, opened=opened)
    assert read(name, cut(text, places), forced=forced, opened=opened) == whole
    assert read(name, list(text), forced=forced, opened=opened) == whole


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=150, deadline=None)
@given(parts=st.lists(st.sampled_from([CALL, *FRAGMENTS]), max_size=8))
def test_nothing_is_lost(name: str, parts: list[str]) -> None:
    """Text without a complete call comes out as it went in; beside calls, all but their marks does, in order."""
    text = "".join(parts).replace("<think>", "").replace("</think>", "")
    text = text.replace(CALL, FORMATS[name].write([Call("ls", {"path": "/"})]))
    message = read(name, list(text))
    if "tool_calls" not in message:
        assert message["content"] == text
    assert accounts_for(text, message["in_order"]), message


MARKS = (
    "<tool_call>",
    "</tool_call>",
    "[TOOL_CALLS]",
    "<|python_tag|>",
    "```json",
    "```",
    "[",
    "]",
    "\n",
    " ",
)


def accounts_for(text: str, items: list[Item]) -> bool:
    """Whether `items` are all that stands in `text`, in order. Beside a call marks may be missing, and between two
    what separates them."""
    calls = ["", *items, ""]

    @functools.cache
    def rest(at: int, item: int) -> bool:
        if at == len(text) and item == len(items):
            return True
        last, now = calls[item], items[item] if item < len(items) else ""
        if isinstance(now, str):
            if now and text.startswith(now, at) and rest(at + len(now), item + 1):
                return True
        elif any(rest(end, item + 1) for end in ends_of_call(text, at, now)):
            return True
        beside = isinstance(last, list) or isinstance(now, list)
        marks = (*MARKS, ",", ";") if isinstance(last, list) and isinstance(now, list) else MARKS
        return beside and any(text.startswith(m, at) and rest(at + len(m), item) for m in marks)

    return rest(0, 0)


def ends_of_call(text: str, at: int, call: list[str]) -> list[int]:
    """Where this call, written at `at`, may end; what stands in it must be all that it says."""
    name = call[0]
    try:
        wanted = json.loads(call[1])
    except ValueError:  # long ones are passed on before they turn out to be broken
        written = call[1].replace("\\u000a", "\n")
        end = text.find(written, at) + len(written)
        return [end, text.find("}", end) + 1] if written in text[at:] else []
    if text.startswith(f"<function={name}>", at):
        ends = [m.end() for m in re.finditer("</function>", text)]
        said = [str(v) for v in wanted.values()]
        return [end for end in ends if end > at and all(v in text[at:end] for v in said)]
    if not text.startswith("{", at):
        return []
    try:
        value, end = json.JSONDecoder(strict=False).raw_decode(text, at)
    except ValueError:
        return []
    value = value.get("function", value)
    given = next((value[key] for key in ("arguments", "parameters") if key in value), None)
    if given is None:
        given = {key: part for key, part in value.items() if key not in ("name", "type", "id")}
    return [end] if value.get("name") == name and given == wanted else []


ONE: list[tuple[str, Any]] = [("ls", {})]
TWO = [*ONE, *ONE]
ALL: list[tuple[str, Any]] = [("ls", {"all": True})]
XML = """Ok.
<tool_call>
<function=get_weather>
<parameter=city>
Bonn
</parameter>
<parameter=days>
3
</parameter>
</function>
</tool_call>"""


@pytest.mark.parametrize(
    ("name", "text", "calls", "content"),
    [
        ("hermes", f"Let me look.\n<tool_call>\n{LS}\n</tool_call>", ONE, "Let me look."),
        ("hermes", '<tool_call>{"name": "ls"}</tool_call>\ndone', ONE, "done"),
        ("hermes", f"\n<tool_call>{LS}</tool_call>\n\n", ONE, None),
        ("hermes", f"<tool_call>[{LS}, {LS}]</tool_call>", TWO, None),
        ("hermes", '<tool_call>{"name": "ls", "arguments": "{\\"all\\": true}"}</tool_call>', ALL, None),
        ("hermes", '<tool_call>{"name": "ls", "arguments": {"a": "x\ny"}}', [("ls", {"a": "x\ny"})], None),
        (
            "hermes",
            '<tool_call>{"name": "ls", "arguments": {"a": "</tool_call>"}}',
            [("ls", {"a": "</tool_call>"})],
            None,
        ),
        ("hermes", OOPS, [], OOPS),
        ("hermes", LIST, [], LIST),
        ("hermes", '<tool_call>{"name": "ls", "argu', [], '<tool_call>{"name": "ls", "argu'),
        ("hermes", f"{OOPS}<tool_call>{LS}</tool_call>", ONE, OOPS),
        ("hermes", LS, ONE, None),
        ("hermes", LS.replace("ls", "Ada"), [], LS.replace("ls", "Ada")),
        ("hermes", f"As JSON: {LS}", [], f"As JSON: {LS}"),
        ("hermes", f"<tool_call>{FLAT}</tool_call>", [("ls", {"path": "/"})], None),
        ("hermes", FLAT, [], FLAT),
        ("json", '{"name": "ls", "size": 3}', [], '{"name": "ls", "size": 3}'),
        ("hermes", f"<tool_call>{OTHER}</tool_call>", [], f"<tool_call>{OTHER}</tool_call>"),
        ("mistral", '[TOOL_CALLS][{"name": "ls", "size": 3}]', [], '[TOOL_CALLS][{"name": "ls", "size": 3}]'),
        ("hermes", f'<tool_call>{LS}</tool_call>\n{{"name": "Ada"}}', ONE, '{"name": "Ada"}'),
        ("hermes", f'<tool_call>{LS}</tool_call>, {{"a": 1}}', ONE, ', {"a": 1}'),
        ("hermes", f"<tool_call>{LS}</tool_call>\n{LS}", ONE, LS),
        ("hermes", f"<tool_call>{LS}\n{LS}</tool_call>", TWO, None),
        ("hermes", f'<tool_call>{LS}, {{"a": 1}}</tool_call>', ONE, ', {"a": 1}</tool_call>'),
        ("llama3", f'{LS}; {{"a": 1}}', ONE, '; {"a": 1}'),
        ("mistral", f'[TOOL_CALLS] [{LS}] {{"name": "Ada"}}', ONE, '{"name": "Ada"}'),
        ("hermes", "a < b and <tool> is no call", [], "a < b and <tool> is no call"),
        ("json", f"```json\n{LS}\n```", ONE, None),
        ("json", "```python\nprint(1)\n```", [], "```python\nprint(1)\n```"),
        ("json", f'{{"type": "function", "function": {LS}}}', ONE, None),
        ("json", f"[{LS}, {LS}]", TWO, None),
        ("json", "[1, 2]", [], "[1, 2]"),
        ("llama3", f"<|python_tag|>{LS}; {LS}", TWO, None),
        ("llama3", '{"type": "function", "name": "ls", "parameters": {"all": true}}', ALL, None),
        ("llama3", "<|python_tag|>print(1)", [], "<|python_tag|>print(1)"),
        ("mistral", f"[TOOL_CALLS][{LS}]", ONE, None),
        ("mistral", f'Well. [TOOL_CALLS] [{LS[:-1]}, "id": "abcdefghi"}}, {LS}]', TWO, "Well."),
        ("qwen3_coder", XML, [("get_weather", {"city": "Bonn", "days": 3})], "Ok."),
        ("qwen3_coder", "<function=ls>\n</function>", ONE, None),
        ("qwen3_coder", "<function=ls>\nrubbish</function>", [], "<function=ls>\nrubbish</function>"),
    ],
)
def test_examples(name: str, text: str, calls: list[tuple[str, Any]], content: str | None) -> None:
    message = read(name, list(text))
    assert calls_of(message) == calls
    assert message["content"] == content


TYPED: list[tuple[Any, str, Any]] = [
    # what a schema says, the text of a value, and what it is
    ({"type": "string"}, "10115", "10115"),
    ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "10115", "10115"),
    ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "None", None),
    ({"type": ["string", "null"]}, "null", None),
    ({"$ref": "#/$defs/zip"}, "10115", "10115"),
    ({"allOf": [{"$ref": "#/$defs/zip"}, {"description": "x"}]}, "10115", "10115"),
    ({"enum": ["1", "2"]}, "1", "1"),
    ({"enum": [1, "2"]}, "1", 1),
    ({"enum": [1, "2"]}, "2", "2"),
    ({"enum": [1, 2]}, "1", 1),
    ({"const": "3"}, "3", "3"),
    ({"type": "boolean"}, "True", True),
    ({"type": "boolean"}, "false", False),
    ({"type": "boolean"}, "maybe", "maybe"),
    ({"type": ["integer", "null"]}, "None", None),
    ({"type": "integer"}, " 7", 7),
    ({"type": "number"}, "1e999", "1e999"),
    ({"type": "array"}, '[1, {"a": null}]', [1, {"a": None}]),
    ({"type": "object"}, "no object", "no object"),
    ({}, "10115", 10115),
    ({}, "True", "True"),
    (None, "text", "text"),
    ({"type": "string"}, "a</parameter>b", "a</parameter>b"),
    ({"type": "string"}, "a</function>b\n</parameter> c", "a</function>b\n</parameter> c"),
]


@pytest.mark.parametrize(("schema", "text", "value"), TYPED, ids=lambda value: str(value)[:30])
def test_bare_values_are_what_their_schema_says(schema: Any, text: str, value: Any) -> None:
    properties = {} if schema is None else {"a": schema}
    tool = Tool("f", "", {"properties": properties, "$defs": {"zip": {"type": "string"}}})
    reader = FORMATS["qwen3_coder"].reader([tool], is_forced=False)
    shown = reader.push(
        f"<tool_call>\n<function=f>\n<parameter=a>\n{text}\n</parameter>\n</function>\n</tool_call>"
    )
    assert [json.loads(part.arguments) for part in shown[1:] if isinstance(part, CallPart)] == [{"a": value}]


def test_under_the_grammar_a_value_ends_where_the_grammar_ends_it() -> None:
    tool = Tool("f", "", {"properties": {"a": {"type": "string"}}})
    reader = FORMATS["qwen3_coder"].reader([tool], is_forced=True)
    text = "</parameter>\n<parameter=b></parameter>\n</function>\n</tool_call>"
    shown = reader.push(
        f"<tool_call>\n<function=f>\n<parameter=a>\n{text}\n</parameter>\n</function>\n</tool_call>"
    )
    assert [json.loads(part.arguments) for part in shown[1:] if isinstance(part, CallPart)] == [{"a": text}]


def test_long_arguments_are_passed_on_before_the_call_ends() -> None:
    reader = FORMATS["hermes"].reader(TOOLS, is_forced=False)
    head = '<tool_call>\n{"name": "ls", "arguments": {"path": "'
    assert reader.push(head + "y" * (HELD_CHARS - 20)) == []
    assert reader.complete == 0
    first = reader.push("y" * 20)
    assert [getattr(part, "name", None) for part in first] == ["ls", None]
    assert reader.push("zz")[0].arguments == "zz"  # type: ignore[union-attr]
    assert reader.push('"}}')[0].arguments == '"}'  # type: ignore[union-attr]
    assert reader.complete == 1


def test_an_answer_in_json_that_is_no_call_is_not_held_back() -> None:
    reader = FORMATS["hermes"].reader(TOOLS, is_forced=False)
    assert "".join(map(str, reader.push('{"title": "x'))) == '{"title": "x'


def test_what_follows_the_last_call_that_was_wanted_is_left_out() -> None:
    splitter, calls = ReasoningSplitter(ThinkTags()), FORMATS["hermes"].reader(TOOLS, is_forced=False)
    reader = AnswerReader(splitter, calls, lambda: "call_1", most_calls=1)
    reader.push(f"<tool_call>{LS}</tool_call><tool_call>{LS}</tool_call>And more.")
    reader.finish()
    assert reader.is_full
    assert len(reader.message()["tool_calls"]) == 1
    assert reader.message()["content"] is None


def test_under_a_grammar_arguments_come_as_they_are_sampled() -> None:
    reader = FORMATS["json"].reader(TOOLS, is_forced=True)
    pieces = [reader.push(c) for c in '{"name": "ls", "arguments": {"path": "/"}}']
    assert sum(bool(p) for p in pieces) > 10


@pytest.mark.parametrize("name", NAMES)
def test_half_a_character_in_arguments_can_be_sent(name: str) -> None:
    message = read(name, [FORMATS[name].write([Call("ls", {"x": {"a": "\ud800"}})])])
    arguments = message["tool_calls"][0]["function"]["arguments"]
    assert json.loads(arguments.encode()) == {"x": {"a": "\ud800"}}


@pytest.mark.parametrize(
    ("text", "opened", "reasoning", "content"),
    [
        ("<think>\nhm\n</think>\n\nyes", False, "hm", "yes"),
        ("  <think>hm</think>yes", False, "hm", "yes"),
        ("hm\n</think>\n\nyes", True, "hm", "yes"),
        ("<think>\nhm\n</think>yes", True, "hm", "yes"),
        ("<think>\n\n</think>\n\nyes", False, None, "yes"),
        ("say <think>hm</think>", False, None, "say <think>hm</think>"),
        ("<think>never ends", False, "never ends", ""),
        ("<thin", False, None, "<thin"),
    ],
)
def test_thinking_is_apart(text: str, opened: bool, reasoning: str | None, content: str) -> None:
    message = read("hermes", list(text), opened=opened)
    assert (message.get("reasoning_content"), message["content"]) == (reasoning, content)


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("… <tool_call>\\n{{ call | tojson }}\\n</tool_call>", "hermes"),
        ("… <tool_call>\\n<function=' + f + '>\\n<parameter=' …", "qwen3_coder"),
        ("… [AVAILABLE_TOOLS] … [TOOL_CALLS] …", "mistral"),
        ("… <|python_tag|> …", "llama3"),
        ("… 'Environment: ipython' … '\"parameters\": dictionary' …", "llama3"),
        ("… [TOOL_CALLS]{{ name }}[ARGS]{{ arguments }} …", None),
        ("… <seed:tool_call>\\n<function=' + f + '>\\n<parameter=' …", None),
        ("… <tool_call>{{ name }}<arg_key> …", None),
        ("{{ message['role'] }}", None),
    ],
)
def test_the_template_tells_the_format(template: str, name: str | None) -> None:
    assert spoken_by(template) == name
