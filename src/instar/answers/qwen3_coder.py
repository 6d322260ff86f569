"""`<tool_call><function=name><parameter=key>value</parameter></function></tool_call>`: Qwen3-Coder and its kin.

Values are bare text (`bare_values`), which may hold such tags as well.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from instar.answers.bare_values import (
    arguments_schema,
    properties_of,
    required_of,
    typed,
    value_rule,
    written,
)
from instar.answers.lark import MORE_CALLS, check, json_call_rules, quoted
from instar.answers.parts import NAME, Call, CallPart, CallReader, Part, Tool, dumps
from instar.answers.search import find_first, held_from

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_FUNCTION, _END, _PARAMETER = "<function=", "</function>", "<parameter="
_HEAD = re.compile(r"<function=([^>\n]*)>\s*")
_KEY = re.compile(r"<parameter=([^>\n]+)>")
_CLOSING = "\n</parameter>\n"
_NEXT = r"(?=<parameter=|</function>)"
_ENDS_FORCED = re.compile(rf"\n</parameter>\n{_NEXT}")
"""Where a value ends that was written under the grammar."""
_ENDS = re.compile(rf"\n?</parameter>\s*{_NEXT}|(?P<broken></function>\s*</tool_call>)")
"""Where one ends that was not: at the first tag that others follow as they do in a call. A call may also end within."""


class Qwen3CoderReader:
    """Implements CallReader. A call is passed on when it is whole: only then is its text JSON."""

    def __init__(self, tools: Sequence[Tool], *, is_forced: bool = False) -> None:
        self._schemas = {tool.name: arguments_schema(tool) for tool in tools}
        self._ends = _ENDS_FORCED if is_forced else _ENDS
        self._before_value = len("\n") if is_forced else 0  # there always, then, and no part of a closing tag
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
        if not last and _END not in inner:
            return 0, None
        length, call = self._function(inner, last=last)
        if call is None:
            return (start + length if length else 0), None
        return self._with_close(text, start + length, opened > 0, last), call

    def _with_close(self, text: str, length: int, opened: bool, last: bool) -> int:
        """The length with the closing tag, if one follows; 0 while that is open."""
        after = text[length:].lstrip()
        if not opened:
            return length
        if after.startswith(CLOSE):
            return len(text) - len(after) + len(CLOSE)
        return 0 if not last and CLOSE.startswith(after) else length

    def _function(self, text: str, *, last: bool) -> tuple[int, tuple[str, str] | None]:
        """Like `_call`, from the opening tag of the function to its closing one."""
        head = _HEAD.match(text)
        if head is None or not NAME.fullmatch(head[1].strip()):
            return len(_FUNCTION), None
        name, at, values = head[1].strip(), head.end(), dict[str, str]()
        while key := _KEY.match(text, at):
            end = self._ends.search(text, key.end() + self._before_value)
            if end is None:
                return (head.end() if last else 0), None
            if end.lastgroup == "broken":
                return end.end(), None
            values[key[1].strip()] = text[key.end() : end.start()].removeprefix("\n")
            at = end.end()
        rest = text[at:]
        if rest.startswith(_END):
            return at + len(_END), (name, dumps(self._typed(name, values)))
        is_open = rest.startswith(_PARAMETER) and "\n" not in rest and ">" not in rest
        is_open = is_open or _PARAMETER.startswith(rest) or _END.startswith(rest)
        return (0 if is_open and not last else head.end()), None

    def _typed(self, name: str, values: dict[str, str]) -> dict[str, Any]:
        root = self._schemas.get(name, {})
        properties = root.get("properties")
        told = properties if isinstance(properties, dict) else {}
        return {key: typed(text, told.get(key), root) for key, text in values.items()}


class Qwen3Coder:
    name = "qwen3_coder"
    markers = (OPEN, CLOSE)

    def reader(self, tools: Sequence[Tool], *, is_forced: bool) -> CallReader:
        return Qwen3CoderReader(tools, is_forced=is_forced)

    def write(self, calls: Sequence[Call]) -> str:
        return "\n".join(map(_written, calls))

    def rules(self, tools: Sequence[Tool], mark: Callable[[str], str], *, many: bool) -> str:
        check(
            "start: object\n" + json_call_rules(tools, "arguments"), "tools"
        )  # what makes no sense in any format
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
    if isinstance(call.arguments, dict):
        for key, value in call.arguments.items():
            lines += [f"<parameter={key}>", written(value), "</parameter>"]
    else:
        lines.append(written(call.arguments))
    return "\n".join([*lines, _END, CLOSE])


def _function_rules(number: int, tool: Tool) -> list[str]:
    root, properties = arguments_schema(tool), properties_of(tool)
    required = required_of(root)
    fields = [f"p_{number}_{i}{'' if key in required else '?'}" for i, key in enumerate(properties)]
    lines = [" ".join([f"function_{number}:", quoted(f"<function={tool.name}>\n"), *fields])]
    for i, (key, schema) in enumerate(properties.items()):
        rule = value_rule(key, schema, root, tool, _CLOSING)
        lines.append(f"p_{number}_{i}: {quoted(f'<parameter={key}>' + chr(10))} {rule}")
    return lines
