"""`<tool_call><function=name><parameter=key>value</parameter></function></tool_call>`: Qwen3-Coder and its kin.

Values are bare text. What type each is meant to have stands in the tool's schema alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from instar.answers.lark import MORE_CALLS, bounded, compact, object_schema, quoted
from instar.answers.parts import NAME, Call, CallPart, CallReader, Part, Tool, dumps, loads
from instar.answers.search import find_first, held_from

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_FUNCTION, _END = "<function=", "</function>"
_HEAD = re.compile(r"<function=([^>\n]*)>")
_NEWLINE = quoted("\n")
_PARAMETER = re.compile(r"\s*<parameter=([^>\n]+)>(.*?)</parameter>", re.DOTALL)


class Qwen3CoderReader:
    """Implements CallReader. A call is passed on when it is whole: only then is its text JSON."""

    def __init__(self, tools: Sequence[Tool]) -> None:
        self._types = {t.name: (t.parameters or {}).get("properties") or {} for t in tools}
        self._buffer = ""
        self._is_after_call = False
        self.complete = 0

    def push(self, text: str) -> list[Part]:
        self._buffer += text
        return self._read(last=False)

    def finish(self) -> list[Part]:
        return self._read(last=True)

    def _read(self, *, last: bool) -> list[Part]:
        parts: list[Part] = []
        while self._buffer:
            if self._is_after_call:
                self._buffer = self._buffer.lstrip()
            found = find_first(self._buffer, (OPEN, _FUNCTION))
            at = found[0] if found else held_from(self._buffer, (OPEN, _FUNCTION))
            at = len(self._buffer) if last and found is None else at
            said, rest = self._buffer[:at], self._buffer[at:]
            self._is_after_call = self._is_after_call and not said
            if found is None:
                parts += [said] if said else []
                self._buffer = rest
                break
            length, call = self._call(rest, last=last)
            said = said.rstrip() if call else said
            if length == 0:
                kept = len(said.rstrip())
                parts += [said[:kept]] if kept else []
                self._buffer = self._buffer[kept:]
                break
            parts += [said] if said else []
            parts += self._parts(call) if call else [rest[:length]]
            self._buffer, self._is_after_call = rest[length:], call is not None
        return parts

    def _parts(self, call: tuple[str, str]) -> list[Part]:
        self.complete += 1
        index = self.complete - 1
        return [CallPart(index, name=call[0]), CallPart(index, call[1])]

    def _call(self, text: str, *, last: bool) -> tuple[int, tuple[str, str] | None]:
        """Length of the call that `text` begins with (0: not to be told yet) and the call (None: it is text)."""
        inner = text.removeprefix(OPEN)
        opened = len(text) - len(inner)
        inner = inner.lstrip()
        start = len(text) - len(inner)
        if not inner.startswith(_FUNCTION):
            is_open = not last and _FUNCTION.startswith(inner)
            return (0, None) if is_open else (max(opened, 1), None)
        end = inner.find(_END)
        if end < 0:
            return (len(text), None) if last else (0, None)
        length = start + end + len(_END)
        call = self._parsed(inner[:end])
        return self._with_close(text, length, opened > 0, last) if call else length, call

    def _with_close(self, text: str, length: int, opened: bool, last: bool) -> int:
        """The length with the closing tag, if one follows; 0 while that is open."""
        after = text[length:].lstrip()
        if not opened:
            return length
        if after.startswith(CLOSE):
            return len(text) - len(after) + len(CLOSE)
        return 0 if not last and CLOSE.startswith(after) else length

    def _parsed(self, text: str) -> tuple[str, str] | None:
        head = _HEAD.match(text)
        if head is None or not NAME.fullmatch(head[1].strip()):
            return None
        name, at = head[1].strip(), head.end()
        arguments: dict[str, Any] = {}
        while found := _PARAMETER.match(text, at):
            key, at = found[1].strip(), found.end()
            value = found[2].removeprefix("\n").removesuffix("\n")
            arguments[key] = _typed(value, self._types.get(name, {}).get(key))
        return None if text[at:].strip() else (name, dumps(arguments))


def _typed(text: str, schema: Any) -> Any:
    """A value as its schema means it: text where it may be a string, else JSON where it is JSON."""
    kind = schema.get("type") if isinstance(schema, Mapping) else None
    if kind == "string" or (isinstance(kind, list) and "string" in kind):
        return text
    try:
        return loads(text.strip())
    except ValueError:
        return text


class Qwen3Coder:
    name = "qwen3_coder"
    markers = (OPEN, CLOSE)

    def reader(self, tools: Sequence[Tool], *, is_forced: bool) -> CallReader:
        return Qwen3CoderReader(tools)

    def write(self, calls: Sequence[Call]) -> str:
        return "\n".join(map(_written, calls))

    def rules(self, tools: Sequence[Tool], mark: Callable[[str], str], *, many: bool) -> str:
        more = rf' ("\n" call){MORE_CALLS}' if many else ""
        names = " | ".join(f"function_{i}" for i in range(len(tools)))
        lines = [
            f"calls: call{more}",
            f'call: {mark(OPEN)} "\\n" ({names}) {quoted(_END)} "\\n" {mark(CLOSE)}',
            r"text[lazy]: /(?s:.*)\n<\/parameter>\n/",
        ]
        for i, tool in enumerate(tools):
            lines += _function_rules(i, tool)
        return "\n".join(lines)

    def explain(self) -> str:
        return (
            f"To call a function, answer in this form:\n{OPEN}\n<function=name>\n<parameter=key>\nvalue\n"
            f"</parameter>\n</function>\n{CLOSE}"
        )


def _written(call: Call) -> str:
    lines = [OPEN, f"<function={call.name}>"]
    for key, value in call.arguments.items():
        lines += [f"<parameter={key}>", value if isinstance(value, str) else dumps(value), "</parameter>"]
    return "\n".join([*lines, _END, CLOSE])


def _function_rules(number: int, tool: Tool) -> list[str]:
    schema = object_schema(tool)
    properties = schema.get("properties") or {}
    required = schema.get("required") or ()
    fields = [f"p_{number}_{i}{'' if key in required else '?'}" for i, key in enumerate(properties)]
    head = quoted(f"<function={tool.name}>")
    lines = [" ".join([f"function_{number}:", head, _NEWLINE, *fields])]
    definitions: dict[str, Any] = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    for i, (key, value) in enumerate(properties.items()):
        opens = f"{quoted(f'<parameter={key}>')} {_NEWLINE}"
        closes = f"{_NEWLINE} {quoted('</parameter>')} {_NEWLINE}"
        whole = {**(value if isinstance(value, dict) else {}), **definitions}
        rule = _value_rule(bounded(whole, lenient=not tool.strict), closes)
        lines.append(f"p_{number}_{i}: {opens} {rule}")
    return lines


def _value_rule(schema: dict[str, Any], tail: str) -> str:
    kinds, choices = schema.get("type"), schema.get("enum")
    if choices and all(isinstance(choice, str) and choice for choice in choices):
        return f"({' | '.join(map(quoted, choices))}) {tail}"
    if kinds == "string" or (isinstance(kinds, list) and "string" in kinds):
        return "text"
    return f"%json {compact(schema)} {tail}"
