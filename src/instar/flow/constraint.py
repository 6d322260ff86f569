"""What an answer must look like, as a grammar that the engine samples under.

    a schema for the answer        the answer obeys it, or calls a tool where tools are offered
    tool_choice required           one call or more, of any tool
    tool_choice {"name": …}        one call of that tool

Everything else is left to the model. Thinking comes before, where the model's template knows it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

from instar.answers import Tool, lark
from instar.chat_format import ChatFormat

ToolChoice = Literal["auto", "none", "required"] | dict[str, str]
"""A dict names the one function to call: `{"name": …}`."""

Grammar = dict[str, Any]
"""The wire contract's `structured_outputs`: `{"json": schema}` or `{"grammar": Lark}`."""


def constraint(
    chat: ChatFormat,
    prompt_ids: Sequence[int],
    *,
    tools: Sequence[Any] | None,
    choice: ToolChoice,
    many: bool,
    schema: dict[str, Any] | None,
) -> Grammar | None:
    """The grammar of an answer; None where it is free. Raises RequestError (400) where it cannot be enforced.

    `many`: whether several calls may be made at once.
    """
    must_call = choice not in ("auto", "none")
    if not must_call and schema is None:
        return None
    if schema is not None and not tools and not chat.tags.native:
        whole = lark.bounded(schema)
        lark.check(f"start: %json {lark.compact(whole)}", "response_format")
        return {"json": whole}
    rules, names = [_start(chat, prompt_ids)], []
    if schema is not None and not must_call:
        names.append("body")
        rules.append(f"body: %json {lark.compact(lark.bounded(schema))}")
    if tools:
        names.append("calls")
        rules.append(_calls(chat, [Tool.of(tool) for tool in tools], choice, many))
    grammar = "\n".join([*rules, f"answer: {' | '.join(names)}"])
    lark.check(grammar, "tools" if must_call else "response_format")
    return {"grammar": grammar}


def _calls(chat: ChatFormat, tools: Sequence[Tool], choice: ToolChoice, many: bool) -> str:
    if not isinstance(choice, dict):
        return chat.tool_format.rules(tools, partial(_mark, chat), many=many)
    named = [tool for tool in tools if tool.name == choice["name"]]
    return chat.tool_format.rules(named, partial(_mark, chat), many=False)


def _mark(chat: ChatFormat, text: str) -> str:
    token_id = chat.added_id(text)
    return lark.quoted(text) if token_id is None else lark.token(token_id)


def _start(chat: ChatFormat, prompt_ids: Sequence[int]) -> str:
    """Rules for what may come before the answer proper."""
    tags = chat.tags
    if not tags.native:
        return "start: answer"
    # A text lexeme ends where a special token begins; where the tag is plain text, the lexeme must find it itself.
    if chat.added_id(tags.close) is not None:
        thought = f"thought: ANYTHING {_mark(chat, tags.close)}\nANYTHING: /(?s:.*)/"
    else:
        close = re.escape(tags.close).replace("/", r"\/")
        thought = f"thought[lazy]: /(?s:.*){close}/"
    thinks = "thought" if chat.is_thinking(prompt_ids) else f"({_mark(chat, tags.open)} thought)?"
    return f"start: {thinks} gap answer\ngap: /\\n{{0,2}}/\n{thought}"
