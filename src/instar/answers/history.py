"""Calls and their results in a conversation, as a chat template can take them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from instar.answers.parts import Call, Tool, ToolFormat, dumps, loads
from instar.records import Message

_RESULT, _RESULT_END = "<tool_response>", "</tool_response>"


def with_known_roles(messages: Sequence[Message], *, knows_developer: bool) -> list[Message]:
    """In the roles that templates know: results of functions are those of tools, and what a developer says the system
    says, joined with what it said just before. Templates leave out, or refuse, what they do not know."""
    found: list[Message] = []
    for message in messages:
        role = message.get("role")
        if role == "developer" and not knows_developer:
            before = found.pop() if found and found[-1].get("role") == "system" else {"content": ""}
            text = "\n\n".join(filter(None, [before["content"], message["content"]]))
            message = {**message, **before, "role": "system", "content": text}
        found.append({**message, "role": "tool"} if role == "function" else message)
    return found


def for_template(messages: Sequence[Message]) -> list[Message]:
    """For templates that know tools: arguments as objects, and ids as short as Mistral's template demands.

    The ids count the calls of the conversation: clients rewrite them, and a prompt must not change for that. Where a
    client sends none, a result belongs to the first call that has none yet.
    """
    ids = _Ids()
    return [_with_objects(message, ids) for message in messages]


class _Ids:
    """Short ids of the calls so far, and of those that have no result yet."""

    def __init__(self) -> None:
        self._short: dict[str, str] = {}
        self._waiting: list[str] = []

    def of_call(self, call_id: Any) -> str:
        short = self._known(str(call_id) if call_id else f"no id: {len(self._short)}")
        self._waiting.append(short)
        return short

    def of_result(self, call_id: Any) -> str:
        waiting = self._waiting[0] if self._waiting else None
        short = self._known(call_id) if isinstance(call_id, str) else waiting or self._known("no call")
        if short in self._waiting:
            self._waiting.remove(short)
        return short

    def _known(self, call_id: str) -> str:
        return self._short.setdefault(call_id, f"{len(self._short):09d}")


def _with_objects(message: Message, ids: _Ids) -> Message:
    calls = message.get("tool_calls")
    if isinstance(calls, list) and calls:
        return {**message, "tool_calls": [_with_object(call, ids) for call in calls]}
    if message.get("role") == "tool":
        return {**message, "tool_call_id": ids.of_result(message.get("tool_call_id"))}
    return {name: value for name, value in message.items() if name != "tool_calls"}


def _with_object(call: Any, ids: _Ids) -> Any:
    function = {**call["function"], "arguments": _arguments(call["function"].get("arguments"))}
    return {"type": "function", **call, "id": ids.of_call(call.get("id")), "function": function}


def _arguments(value: Any) -> Any:
    """Arguments as an object; as they are where they are none."""
    if value in (None, ""):
        return {}
    try:
        inner = loads(value) if isinstance(value, str) else value
    except ValueError:
        return value
    return inner if isinstance(inner, dict) else value


def as_text(
    messages: Sequence[Message], form: ToolFormat, tools: Sequence[Tool], *, takes_system: bool
) -> list[Message]:
    """For templates that know no tools: what is offered, called and returned, in words.

    The tools stand in the system message, or before the first words of the user where the template takes none.
    Results are the user's, and neighbours of the user's are one message: many templates want roles to alternate.
    """
    found: list[Message] = []
    joins = False
    for message in messages:
        role = message.get("role")
        if role == "tool":
            text = f"{_RESULT}\n{message['content']}\n{_RESULT_END}"
            _add_user(found, text, joins)
        elif role == "user" and joins:
            _add_user(found, message["content"], joins)
        else:
            found.append(_spoken(message, form))
        joins = role == "tool"
    return _introduced(found, introduction(form, tools), takes_system) if tools else found


def with_calls_written(messages: Sequence[Message], form: ToolFormat) -> list[Message]:
    """For templates that refuse the calls themselves: what the model wrote to make them."""
    return [_spoken(message, form) if message.get("tool_calls") else message for message in messages]


def _add_user(found: list[Message], text: str, joins: bool) -> None:
    if joins:
        found[-1] = {**found[-1], "content": f"{found[-1]['content']}\n{text}"}
    else:
        found.append({"role": "user", "content": text})


def _spoken(message: Message, form: ToolFormat) -> Message:
    calls = message.get("tool_calls")
    said = {name: value for name, value in message.items() if name != "tool_calls"}
    if not isinstance(calls, list) or not calls:
        return said
    written = form.write([_call(call["function"]) for call in calls])
    return {**said, "content": "\n".join(filter(None, [message["content"], written]))}


def _call(function: Any) -> Call:
    return Call(str(function["name"]), _arguments(function.get("arguments")))


def introduction(form: ToolFormat, tools: Sequence[Tool]) -> str:
    """Tells what the tools are and how to call them."""
    listed = [
        dumps(
            {"name": t.name, "description": t.description, "parameters": t.parameters or {"type": "object"}}
        )
        for t in tools
    ]
    return "\n".join(
        [
            "You may call these functions:",
            *listed,
            "",
            form.explain(),
            f"Results come within {_RESULT}{_RESULT_END} tags. Call a function only where you need one.",
        ]
    )


def _introduced(messages: list[Message], text: str, takes_system: bool) -> list[Message]:
    roles = ("system", "developer") if takes_system else ("user",)
    at = next((i for i, m in enumerate(messages) if m.get("role") in roles), None)
    if at is None or (takes_system and at > 0):
        return [{"role": roles[0], "content": text}, *messages]
    parts = [messages[at]["content"], text] if takes_system else [text, messages[at]["content"]]
    joined = {**messages[at], "content": "\n\n".join(filter(None, parts))}
    return [*messages[:at], joined, *messages[at + 1 :]]
