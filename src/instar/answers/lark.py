"""Grammars in the Lark dialect of llguidance, which engines sample under, and a check of them before they do."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from llguidance import LLMatcher

from instar.answers.parts import Tool
from instar.errors import RequestError

MAX_GRAMMAR_CHARS = 1_000_000

MORE_CALLS = "{0,15}"
"""How many calls may follow the first one: without a bound, small models call for ever."""
_SPACE = r"\n? {0,8}"
"""White space between the parts of JSON: without a bound, small models write line breaks for ever."""
_OPTIONS = "x-guidance"


def quoted(text: str) -> str:
    """A string as a Lark literal."""
    return json.dumps(text, ensure_ascii=False)


def token(token_id: int) -> str:
    """A token that was added to a vocabulary, in Lark. Its text would not do: the library tells the two apart."""
    return f"<[{token_id}]>"


def object_schema(tool: Tool) -> dict[str, Any]:
    """What the arguments of a call must obey: always an object."""
    return {"type": "object", **(tool.parameters or {})}


def bounded(schema: dict[str, Any], *, lenient: bool | None = None) -> dict[str, Any]:
    """The schema with the options of the library: bounded white space, and whether what it does not know is left to
    the model instead of being refused; None: as the schema says."""
    if lenient is None:
        options = schema.get(_OPTIONS)
        lenient = isinstance(options, dict) and options.get("lenient") is True
    return {**schema, _OPTIONS: {"whitespace_pattern": _SPACE, "lenient": lenient}}


def compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def json_call_rules(tools: Sequence[Tool], key: str) -> str:
    """`object`: a call of one of the tools as JSON, the way that templates write it."""
    lines = ["object: " + " | ".join(f"object_{i}" for i in range(len(tools)))]
    for i, tool in enumerate(tools):
        head = f'{{"name": {json.dumps(tool.name)}, "{key}": '
        lines.append(f"object_{i}: {quoted(head)} arguments_{i} {quoted('}')}")
        lines.append(f"arguments_{i}: %json {compact(bounded(object_schema(tool), lenient=not tool.strict))}")
    return "\n".join(lines)


def check(grammar: str, param: str) -> None:
    """Raises RequestError (400) for a grammar that is too large or that cannot be compiled."""
    if len(grammar) > MAX_GRAMMAR_CHARS:
        raise RequestError(
            f"The schemas of this request make a grammar of {len(grammar)} characters; {MAX_GRAMMAR_CHARS} is "
            "the most. Send fewer or smaller ones.",
            param=param,
            code="schema_too_large",
        )
    if wrong := _what_is_wrong(grammar):
        raise RequestError(
            f"This schema cannot be enforced: {' '.join(wrong.split())[:500]}",
            param=param,
            code="invalid_schema",
        )


@lru_cache(maxsize=16)
def _what_is_wrong(grammar: str) -> str:
    """Agents ask with the same tools again and again."""
    failed, said = LLMatcher.validate_grammar_with_warnings(LLMatcher.grammar_from_lark(grammar))
    return " ".join(said) if failed else ""
