"""Grammars of calls and of answers, tried with a model that knows nothing: any token that is allowed, by lot.

Whatever comes out must be read back as calls that obey their schema, or as JSON that does.
"""

from __future__ import annotations

import contextlib
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from instar.answers import FORMATS, Call, FormatName
from instar.chat_format import ChatFormat
from instar.engines.grammar import Grammars, parse_grammar
from instar.errors import RequestError
from instar.flow.constraint import constraint
from tests.kit import templates
from tests.kit.tiny_model import TEMPLATE, write_chat_files

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "book",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "enum": ["Bonn", "Köln"]},
                    "days": {"type": "integer", "minimum": 1, "maximum": 9},
                    "who": {"$ref": "#/$defs/person"},
                },
                "required": ["city", "who"],
                "additionalProperties": False,
                "$defs": {"person": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2}},
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": "ls",
            "parameters": {"type": "object", "properties": {}, "additionalProperties": False},
        },
    },
    {
        "type": "function",
        "function": {
            "name": "note",
            "parameters": {
                "$ref": "#/$defs/note",
                "$defs": {
                    "note": {
                        "type": "object",
                        "properties": {
                            "code": {"enum": ["1", "2", "null"]},
                            "level": {"anyOf": [{"enum": [1, "high"]}, {"type": "null"}]},
                            "due": {"anyOf": [{"type": "string", "maxLength": 3}, {"type": "null"}]},
                            "done": {"type": ["boolean", "null"]},
                            "empty": {"const": ""},
                        },
                        "required": ["code", "level", "due", "done", "empty"],
                        "additionalProperties": False,
                    }
                },
            },
        },
    },
]
SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}},
    "required": ["ok"],
    "additionalProperties": False,
}
MODELS: dict[str, tuple[str, tuple[str, ...], FormatName | None]] = {
    "hermes": (templates.HERMES, (), None),
    "hermes, marks are tokens": (templates.HERMES, ("<tool_call>", "</tool_call>"), None),
    "thinking": (templates.THINKING, (), None),
    "thinking, tags are tokens": (templates.THINKING, ("<think>", "</think>"), None),
    "thinking, tags are tokens but not special": (templates.THINKING, ("<think>!", "</think>!"), None),
    "opened": (templates.OPENED, (), None),
    "llama3": (templates.LLAMA3, ("<|python_tag|>",), None),
    "mistral": (templates.MISTRAL, ("[TOOL_CALLS]",), None),
    "qwen3_coder": (templates.QWEN3_CODER, (), None),
    "plain json": (TEMPLATE, (), "json"),
}
STOP = 2


class Lot:
    """A model's folder, and answers drawn by lot under a grammar."""

    def __init__(self, folder: Path, model: str) -> None:
        template, special, form = MODELS[model]
        self.chat = ChatFormat(write_chat_files(folder, 512, template, special), form)
        self.grammars = Grammars(folder / "tokenizer.json", 259 + len(special))
        self.prompt = self.chat.encode_prompt([{"role": "user", "content": "hi"}])

    def grammar(self, **wanted: Any) -> dict[str, Any] | None:
        values: dict[str, Any] = {"tools": TOOLS, "choice": "auto", "many": True, "schema": None}
        return constraint(self.chat, self.prompt, **{**values, **wanted})

    def draw(self, grammar: dict[str, Any] | None, seed: int, **read: Any) -> dict[str, Any]:
        matcher = self.grammars.matcher(parse_grammar(grammar) or "", [STOP])
        chance, ids = random.Random(seed), [0]
        while ids[-1] != STOP:
            allowed = np.flatnonzero(matcher.allowed_V()).tolist()
            # what knows nothing would think and call for ever: an ending is taken where one is, most of the time
            endings = [i for i in (STOP, *self.closing(ids)) if i in allowed]
            ids.append(endings[0] if endings and chance.random() < 0.8 else chance.choice(allowed))
            matcher.take(ids[-1])
            assert len(ids) < 2000, "no end in sight"
        decoder = self.chat.decoder(with_calls=True)
        reader = self.chat.answer_reader(self.prompt, TOOLS, lambda: "call_x", is_forced=True)
        for token_id in ids[1:]:
            reader.push(decoder.push([token_id]))
        reader.push(decoder.finish())
        reader.finish()
        return reader.message()

    def closing(self, ids: list[int]) -> list[int]:
        """Tokens that end the thinking or a bare text, or go on with the text of the tag that does."""
        tag = "</think>" if self.chat.tags.native else "\n</parameter>\n"
        whole = self.chat.added_id(tag)
        text = self.chat.read_back(ids[-16:])
        return [whole if whole is not None else self.chat.encode(tag[begun(text, tag)])[0]]


def begun(text: str, tag: str) -> int:
    """How much of the tag stands at the end of the text."""
    return max((size for size in range(len(tag)) if text.endswith(tag[:size])), default=0)


def obeys(call: dict[str, Any]) -> bool:
    function, arguments = call["function"], json.loads(call["function"]["arguments"])
    if function["name"] == "ls":
        return arguments == {}
    if function["name"] == "note":
        return is_note(arguments)
    return (
        function["name"] == "book"
        and set(arguments) <= {"city", "days", "who"}
        and arguments["city"] in ("Bonn", "Köln")
        and arguments.get("days", 1) in range(1, 10)
        and len(arguments["who"]) <= 2
        and all(isinstance(one, bool) for one in arguments["who"])
    )


def is_note(arguments: dict[str, Any], longest: int | None = None) -> bool:
    due = arguments["due"]
    return (
        set(arguments) == {"code", "level", "due", "done", "empty"}
        and arguments["code"] in ("1", "2", "null")
        and (arguments["level"] in (1, "high", None) and arguments["level"] is not True)
        and (due is None or (isinstance(due, str) and (longest is None or len(due) <= longest)))
        and (arguments["done"] is None or isinstance(arguments["done"], bool))
        and arguments["empty"] == ""
    )


@pytest.mark.parametrize("model", MODELS)
def test_whatever_the_grammar_allows_is_a_call(tmp_path: Path, model: str) -> None:
    lot = Lot(tmp_path, model)
    for seed in range(3):
        message = lot.draw(lot.grammar(choice="required"), seed)
        assert message["tool_calls"], message
        assert message["content"] is None, message
        assert all(map(obeys, message["tool_calls"])), message
        (call,) = lot.draw(lot.grammar(choice={"name": "book"}), seed)["tool_calls"]
        assert call["function"]["name"] == "book"
        (call,) = lot.draw(lot.grammar(choice={"name": "note"}), seed)["tool_calls"]
        # how long a text is cannot be enforced where it stands bare
        assert is_note(json.loads(call["function"]["arguments"]), None if model == "qwen3_coder" else 3)
        assert len(lot.draw(lot.grammar(choice="required", many=False), seed)["tool_calls"]) == 1


@pytest.mark.parametrize("model", MODELS)
def test_an_answer_obeys_its_schema_or_calls_a_tool(tmp_path: Path, model: str) -> None:
    lot = Lot(tmp_path, model)
    kinds = set()
    for seed in range(6):
        message = lot.draw(lot.grammar(schema=SCHEMA), seed)
        kinds.add("tool_calls" in message)
        if "tool_calls" in message:
            assert all(map(obeys, message["tool_calls"]))
        else:
            assert json.loads(message["content"]) in ({"ok": True}, {"ok": False})
        assert json.loads(lot.draw(lot.grammar(tools=None, schema=SCHEMA), seed)["content"])
    assert kinds == {True, False}


def test_a_free_answer_has_no_grammar(tmp_path: Path) -> None:
    lot = Lot(tmp_path, "hermes")
    assert lot.grammar() is None
    assert lot.grammar(tools=None, choice="none") is None


def test_without_thinking_a_schema_is_passed_on_as_one(tmp_path: Path) -> None:
    lot = Lot(tmp_path, "hermes")
    grammar = lot.grammar(tools=None, schema=SCHEMA)
    assert grammar is not None
    assert list(grammar) == ["json"]


@pytest.mark.parametrize("form", sorted(FORMATS))
def test_what_cannot_be_enforced_is_refused_where_it_is_strict(tmp_path: Path, form: FormatName) -> None:
    chat = ChatFormat(write_chat_files(tmp_path), form)
    impossible = {"type": "object", "properties": {"a": {"type": "integer", "not": {"const": 3}}}}

    def ask(strict: bool) -> None:
        tool = {"type": "function", "function": {"name": "f", "parameters": impossible, "strict": strict}}
        constraint(chat, [1], tools=[tool], choice="required", many=True, schema=None)

    ask(False)
    with pytest.raises(RequestError, match="not"):
        ask(True)


CANNOT = {
    "anyOf": {"anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
    "minProperties": {"minProperties": 1},
    "pattern": {"properties": {"a": {"type": "string", "pattern": "^x"}}},
    "minLength": {"properties": {"a": {"anyOf": [{"type": "string", "minLength": 1}, {"type": "null"}]}}},
    "format of a reference": {
        "properties": {"a": {"$ref": "#/$defs/day"}},
        "$defs": {"day": {"type": "string", "format": "date"}},
    },
}


def call_of_f(chat: ChatFormat, parameters: Any, *, strict: bool, choice: Any = "required") -> str:
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters, "strict": strict}}
    made = constraint(chat, [1], tools=[tool], choice=choice, many=False, schema=None)
    return str((made or {}).get("grammar"))


@pytest.mark.parametrize("schema", CANNOT.values(), ids=CANNOT)
def test_what_bare_text_cannot_be_held_to_is_refused_where_it_is_strict(
    tmp_path: Path, schema: dict[str, Any]
) -> None:
    chat = ChatFormat(write_chat_files(tmp_path), "qwen3_coder")
    assert call_of_f(chat, {"type": "object", **schema}, strict=False)
    with pytest.raises(RequestError, match="bare text"):
        call_of_f(chat, {"type": "object", **schema}, strict=True)
    with pytest.raises(RequestError, match="strict"):
        call_of_f(
            chat, {"$ref": "#/$defs/top", "$defs": {"top": schema, **schema.get("$defs", {})}}, strict=True
        )


def test_bare_text_may_be_strict_where_any_text_will_do(tmp_path: Path) -> None:
    chat = ChatFormat(write_chat_files(tmp_path), "qwen3_coder")
    fine = {
        "a": {"type": ["string", "null"]},
        "b": {"anyOf": [{"type": "string"}, {"type": "integer"}]},
        "c": {},
    }
    assert "<parameter=d>" in call_of_f(chat, {"properties": fine, "required": ["d"]}, strict=True)


ODD: dict[str, Any] = {
    "properties is a list": {"properties": ["a"]},
    "required is a number": {"required": 5},
    "enum is a number": {"properties": {"a": {"enum": 5}}},
    "type is a number": {"properties": {"a": {"type": 5}}},
    "a property is a number": {"properties": {"a": 5}},
    "anyOf is a text": {"properties": {"a": {"anyOf": "b"}}},
    "allOf is a number": {"allOf": 5},
    "a reference is a number": {"$ref": 5},
    "a reference to nothing": {"properties": {"a": {"$ref": "#/$defs/b"}}},
    "references in a circle": {
        "properties": {"a": {"$ref": "#/$defs/b"}},
        "$defs": {"b": {"$ref": "#/$defs/b"}},
    },
    "alternatives without end": {
        "properties": {"a": {"$ref": "#/$defs/b"}},
        "$defs": {"b": {"anyOf": [{"$ref": "#/$defs/b"}] * 9}},
    },
}


@pytest.mark.parametrize("form", sorted(FORMATS))
@pytest.mark.parametrize("schema", ODD.values(), ids=ODD)
def test_an_odd_schema_is_refused_or_left_to_the_model(tmp_path: Path, form: FormatName, schema: Any) -> None:
    chat = ChatFormat(write_chat_files(tmp_path), form)
    with contextlib.suppress(RequestError):
        call_of_f(chat, schema, strict=False)
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    reader = chat.answer_reader([1], [tool], lambda: "call_x")
    reader.push(FORMATS[form].write([Call("f", {"a": "x"})]))
    reader.finish()
    assert json.loads(reader.message()["tool_calls"][0]["function"]["arguments"]) == {"a": "x"}


def test_white_space_is_bounded(tmp_path: Path) -> None:
    lot = Lot(tmp_path, "hermes")
    matcher = lot.grammars.matcher(parse_grammar(lot.grammar(tools=None, schema=SCHEMA)) or "", [STOP])
    space = lot.chat.encode(" ")[0]
    for token_id in lot.chat.encode("{\n" + 8 * " "):
        matcher.take(token_id)
    assert not matcher.allowed_V()[space]
    assert np.flatnonzero(matcher.allowed_V()).tolist() == lot.chat.encode('"')
