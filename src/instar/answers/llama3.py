"""`{"name": …, "parameters": {…}}`, perhaps behind `<|python_tag|>`; several with `;` between: Llama 3.1 to 3.3."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from instar.answers.json_calls import JsonCallReader, Marks
from instar.answers.lark import MORE_CALLS, json_call_rules
from instar.answers.parts import Call, CallReader, Tool

TAG = "<|python_tag|>"


class Llama3:
    name = "llama3"
    markers = (TAG,)

    def reader(self, tools: Sequence[Tool], *, is_forced: bool) -> CallReader:
        return JsonCallReader(Marks((TAG,), (), ";,"), tools, is_forced=is_forced)

    def write(self, calls: Sequence[Call]) -> str:
        return "; ".join(call.as_json("parameters") for call in calls)

    def rules(self, tools: Sequence[Tool], mark: Callable[[str], str], *, many: bool) -> str:
        more = f' ("; " object){MORE_CALLS}' if many else ""
        return f"calls: {mark(TAG)}? object{more}\n{json_call_rules(tools, 'parameters')}"

    def explain(self) -> str:
        return (
            "To call a function, answer with nothing but a JSON object that holds its name and its parameters: "
            '{"name": <name>, "parameters": <object>}. Several calls are separated by "; ".'
        )
