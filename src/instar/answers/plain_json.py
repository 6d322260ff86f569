"""`{"name": …, "arguments": {…}}` and nothing else, or a list of them: for models that know no marks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from instar.answers.json_calls import JsonCallReader, Marks
from instar.answers.lark import MORE_CALLS, json_call_rules
from instar.answers.parts import Call, CallReader, Tool


class PlainJson:
    name = "json"
    markers: tuple[str, ...] = ()

    def reader(self, tools: Sequence[Tool], *, is_forced: bool) -> CallReader:
        return JsonCallReader(Marks(), tools, is_forced=is_forced)

    def write(self, calls: Sequence[Call]) -> str:
        written = [call.as_json() for call in calls]
        return written[0] if len(written) == 1 else f"[{', '.join(written)}]"

    def rules(self, tools: Sequence[Tool], mark: Callable[[str], str], *, many: bool) -> str:
        several = f' | "[" object (", " object){MORE_CALLS} "]"' if many else ""
        return f"calls: object{several}\n{json_call_rules(tools, 'arguments')}"

    def explain(self) -> str:
        return (
            "To call a function, answer with nothing but a JSON object that holds its name and its arguments: "
            '{"name": <name>, "arguments": <object>}. For several calls, answer with a list of such objects.'
        )
