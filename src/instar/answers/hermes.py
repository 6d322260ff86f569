"""`<tool_call>{"name": …, "arguments": {…}}</tool_call>`: Hermes, Qwen 2.5 and 3, SmolLM2 and 3, and many others."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from instar.answers.json_calls import JsonCallReader, Marks
from instar.answers.lark import MORE_CALLS, json_call_rules
from instar.answers.parts import Call, CallReader, Tool

OPEN, CLOSE = "<tool_call>", "</tool_call>"


class Hermes:
    name = "hermes"
    markers = (OPEN, CLOSE)

    def reader(self, tools: Sequence[Tool], *, is_forced: bool) -> CallReader:
        return JsonCallReader(Marks((OPEN,), (CLOSE,)), tools, is_forced=is_forced)

    def write(self, calls: Sequence[Call]) -> str:
        return "\n".join(f"{OPEN}\n{call.as_json()}\n{CLOSE}" for call in calls)

    def rules(self, tools: Sequence[Tool], mark: Callable[[str], str], *, many: bool) -> str:
        more = rf' ("\n" call){MORE_CALLS}' if many else ""
        head = f'calls: call{more}\ncall: {mark(OPEN)} "\\n" object "\\n" {mark(CLOSE)}'
        return f"{head}\n{json_call_rules(tools, 'arguments')}"

    def explain(self) -> str:
        return (
            "To call a function, answer with a JSON object that holds its name and its arguments, within "
            f'{OPEN}{CLOSE} tags:\n{OPEN}\n{{"name": <name>, "arguments": <object>}}\n{CLOSE}'
        )
