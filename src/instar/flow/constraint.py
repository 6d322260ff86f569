"""What an answer must look like, as a grammar that the engine samples under.

    a schema for the answer        the answer obeys it, or calls a tool where tools are offered
    tool_choice required           one call or more, of any tool
    tool_choice {"name": …}        one call of that tool

Everything else is left to the model. Thinking comes before, where the model's template knows it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from instar.answers import Tool, lark
from instar.chat_format import ChatFormat
from instar.flow.chat_request import ChatRequest

Grammar = dict[str, Any]
"""The wire contract's `structured_outputs`: `{"json": schema}` or `{"grammar": Lark}`."""


def offered(request: ChatRequest) -> list[Any] | None:
    """The tools that the model is told of."""
    return request.tools or None if request.tool_choice != "none" else None


def constraint(chat: ChatFormat, request: ChatRequest, prompt_ids: Sequence[int]) -> Grammar | None:
    """The grammar of a request; None where the answer is free. RequestError (400) where it cannot be enforced."""
    tools = [Tool.of(tool) for tool in offered(request) or ()]
    must_call = request.tool_choice not in ("auto", "none")
    if not must_call and request.response_schema is None:
        return None
    if not tools and not chat.tags.native and request.response_schema is not None:
        schema = lark.bounded(request.response_schema)
        lark.check(f"start: %json {lark.compact(schema)}", "response_format")
        return {"json": schema}
    rules = [_start(chat, prompt_ids)]
    names = []
    if request.response_schema is not None and not must_call:
        names.append("body")
        rules.append(f"body: %json {lark.compact(lark.bounded(request.response_schema))}")
    if tools:
        names.append("calls")
        many = request.parallel_tool_calls and not isinstance(request.tool_choice, dict)
        rules.append(chat.tool_format.rules(_callable(tools, request), many=many))
    grammar = "\n".join([*rules, f"answer: {' | '.join(names)}"])
    lark.check(grammar, "tools" if must_call else "response_format")
    return {"grammar": grammar}


def _callable(tools: Sequence[Tool], request: ChatRequest) -> list[Tool]:
    if not isinstance(request.tool_choice, dict):
        return list(tools)
    return [tool for tool in tools if tool.name == request.tool_choice["name"]]


def _start(chat: ChatFormat, prompt_ids: Sequence[int]) -> str:
    """Rules for what may come before the answer proper."""
    tags = chat.tags
    if not tags.native:
        return "start: answer"
    # A text lexeme ends where a special token begins; where the tag is plain text, the lexeme must find it itself.
    if chat.is_one_token(tags.close):
        thought = f"thought: ANYTHING {lark.quoted(tags.close)}\nANYTHING: /(?s:.*)/"
    else:
        close = re.escape(tags.close).replace("/", r"\/")
        thought = f"thought[lazy]: /(?s:.*){close}/"
    thinks = "thought" if chat.is_thinking(prompt_ids) else f"({lark.quoted(tags.open)} thought)?"
    return f"start: {thinks} gap answer\ngap: /\\n{{0,2}}/\n{thought}"
