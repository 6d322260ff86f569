"""`[TOOL_CALLS] [{"name": …, "arguments": {…}}, …]`: Mistral 7B v0.3, Nemo, Small and Large to version 7 of its
tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from instar.answers.json_calls import JsonCallReader, Marks
from instar.answers.lark import MORE_CALLS, json_call_rules
from instar.answers.parts import Call, CallReader, Tool

OPEN = "[TOOL_CALLS]"


class Mistral:
    name = "mistral"
    markers = (OPEN,)

    def reader(self, tools: Sequence[Tool], *, is_forced: bool) -> CallReader:
        return JsonCallReader(Marks((OPEN,)), tools, is_forced=is_forced)

    def write(self, calls: Sequence[Call]) -> str:
        return f"{OPEN} [{', '.join(call.as_json() for call in calls)}]"

    def rules(self, tools: Sequence[Tool], mark: Callable[[str], str], *, many: bool) -> str:
        more = f' (", " object){MORE_CALLS}' if many else ""
        return f'calls: {mark(OPEN)} " "? "[" object{more} "]"\n{json_call_rules(tools, "arguments")}'

    def explain(self) -> str:
        return (
            "To call functions, answer with a JSON list of objects that hold their names and arguments: "
            f'{OPEN} [{{"name": <name>, "arguments": <object>}}]'
        )
