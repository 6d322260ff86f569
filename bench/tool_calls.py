"""Are calls that must be made always valid? The starter model is asked for one again and again, over a real server.

    python -m bench.tool_calls [--count 200] [--model starter] [--at-once 8] [--quick]

Every request offers three tools and demands a call: of any tool, of a named one, of several tools at once; or an answer
that obeys a schema. Streamed and not in turn, at the server's own temperature. *Valid* means that the client
could use it as it came: it is JSON, names a tool that was offered (the named one), and the arguments obey the tool's
schema, checked here in Python by other code than the server's. What the model would do with `tool_choice: auto`,
without a grammar, stands beside it. A small model's *choice* of tool is not judged.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from openai import LengthFinishReasonError, OpenAI
from rich.console import Console
from rich.table import Table

from bench.server import Server, machine, source
from bench.stats import wilson

RESULTS = Path(__file__).parent / "results" / "tool_calls.json"
MAX_TOKENS = 400
"""What a schema allows must fit: eighty characters of a far script take three tokens each."""
CITIES = ("Bonn", "Seoul", "Lima", "Oslo")
ASKED = (
    "What is the weather in {} for the next {} days?",
    "Remind me in {1} hours to call my aunt in {0}.",
    "Find {1} cafés in {0} that are open now.",
)


def tool(name: str, says: str, properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    schema = {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": name, "description": says, "parameters": schema}}


TOOLS = [
    tool(
        "get_weather",
        "The weather of a city",
        {
            "city": {"type": "string", "maxLength": 40},
            "days": {"type": "integer", "minimum": 1, "maximum": 14},
        },
        ["city", "days"],
    ),
    tool(
        "remind",
        "Reminds the user of something",
        {
            "text": {"type": "string", "maxLength": 80},
            "in_hours": {"type": "number"},
            "loud": {"type": "boolean"},
        },
        ["text", "in_hours"],
    ),
    tool(
        "search",
        "Finds places",
        {
            "city": {"enum": list(CITIES)},
            "kinds": {
                "type": "array",
                "items": {"enum": ["café", "park", "museum"]},
                "minItems": 1,
                "maxItems": 3,
            },
        },
        ["city", "kinds"],
    ),
]
NAMED = {"type": "function", "function": {"name": "get_weather"}}
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 30},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
        "pets": {"type": "array", "items": {"enum": ["cat", "dog"]}, "maxItems": 2},
    },
    "required": ["name", "age", "pets"],
    "additionalProperties": False,
}


def _is_whole(value: Any, low: int, high: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def _is_text(value: Any, most: int) -> bool:
    return isinstance(value, str) and len(value) <= most


CHECKS: dict[str, Callable[[dict[str, Any]], bool]] = {
    "get_weather": lambda a: (
        set(a) == {"city", "days"} and _is_text(a["city"], 40) and _is_whole(a["days"], 1, 14)
    ),
    "remind": lambda a: (
        {"text", "in_hours"} <= set(a) <= {"text", "in_hours", "loud"}
        and _is_text(a["text"], 80)
        and isinstance(a["in_hours"], int | float)
        and isinstance(a.get("loud", True), bool)
    ),
    "search": lambda a: (
        set(a) == {"city", "kinds"}
        and a["city"] in CITIES
        and 1 <= len(a["kinds"]) <= 3
        and set(a["kinds"]) <= {"café", "park", "museum"}
    ),
    "person": lambda a: (
        set(a) == {"name", "age", "pets"}
        and _is_text(a["name"], 30)
        and _is_whole(a["age"], 0, 130)
        and len(a["pets"]) <= 2
        and set(a["pets"]) <= {"cat", "dog"}
    ),
}


def problem(name: str, arguments: str, finish: str) -> str | None:
    """What is wrong with a call or an answer; None if nothing is."""
    if finish == "length":
        return "cut"
    try:
        value = json.loads(arguments)
    except ValueError:
        return "no JSON"
    if name not in CHECKS:
        return "unknown tool"
    try:
        return None if CHECKS[name](value) else "does not obey"
    except (TypeError, KeyError):
        return "does not obey"


class Asking:
    """One client that asks in one way."""

    def __init__(self, server: Server, arm: str) -> None:
        self._client = OpenAI(base_url=f"{server.url}/v1", api_key=server.key, max_retries=0, timeout=3600)
        self.arm = arm
        choice: Any = {"named": NAMED, "auto": "auto"}.get(arm, "required")
        schema = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}}
        self._how: dict[str, Any] = (
            {"response_format": schema}
            if arm == "schema"
            else {"tools": TOOLS, "tool_choice": choice, "parallel_tool_calls": arm == "several"}
        )

    def ask(self, number: int) -> str | None:
        """What was wrong with the answer to request `number`."""
        text = "Describe a made-up person." if self.arm == "schema" else ASKED[number % len(ASKED)]
        asked = text.format(CITIES[number % len(CITIES)], 1 + number % 7)
        request: dict[str, Any] = {
            "model": "instar",
            "messages": [{"role": "user", "content": asked}],
            "max_tokens": MAX_TOKENS,
            "seed": number,
            "extra_headers": {"X-Instar-Learn": "off"},
            **self._how,
        }
        if number % 2:
            with self._client.chat.completions.stream(**request) as stream:
                try:
                    choice: Any = stream.get_final_completion().choices[0]
                except LengthFinishReasonError as cut:
                    choice = cut.completion.choices[0]
        else:
            choice = self._client.chat.completions.create(**request).choices[0]
        return self._judge(choice)

    def _judge(self, choice: Any) -> str | None:
        if self.arm == "schema":
            return problem("person", choice.message.content or "", choice.finish_reason)
        calls = choice.message.tool_calls or []
        if not calls:
            return "cut" if choice.finish_reason == "length" else "no call"
        if self.arm == "named" and [call.function.name for call in calls] != ["get_weather"]:
            return "another tool"
        found = (problem(c.function.name, c.function.arguments, choice.finish_reason) for c in calls)
        return next((what for what in found if what), None)


def run(server: Server, arm: str, count: int, at_once: int) -> dict[str, Any]:
    asking, began = Asking(server, arm), time.monotonic()
    with ThreadPoolExecutor(at_once) as pool:
        wrong = Counter(what for what in pool.map(asking.ask, range(count)) if what)
    valid = count - wrong.total()
    return {
        "asked": count,
        "valid": valid,
        "lower95": round(wilson(valid, count)[0], 4),
        "wrong": dict(wrong),
        "seconds": round(time.monotonic() - began, 1),
    }


def show(figures: dict[str, dict[str, Any]]) -> None:
    table = Table(box=None, header_style="bold")
    for column in ("how it was asked", "asked", "valid", "what was wrong", "seconds"):
        table.add_column(column)
    for arm, row in figures.items():
        wrong = ", ".join(f"{what} {times}" for what, times in row["wrong"].items())
        table.add_row(arm, str(row["asked"]), str(row["valid"]), wrong, str(row["seconds"]))
    Console(width=110).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=200, help="requests that demand a call, of each kind")
    parser.add_argument("--model", default="starter")
    parser.add_argument("--at-once", type=int, default=8, help="requests under way at the same time")
    parser.add_argument("--quick", action="store_true", help="a few requests; nothing is written")
    options = parser.parse_args()
    count = 2 if options.quick else options.count
    load = os.getloadavg()
    with tempfile.TemporaryDirectory() as folder:
        settings = {"INSTAR_TRAIN__ENABLED": "false", "INSTAR_ENGINE__THREADS": "1"}
        with Server(Path(folder) / "data", model=options.model, extra=settings) as server:
            few = max(2, count // 10)
            counts = {"required": count, "named": count, "schema": count, "several": few, "auto": few}
            figures = {arm: run(server, arm, of_arm, options.at_once) for arm, of_arm in counts.items()}
    show(figures)
    if options.quick:
        return
    written = {
        "source": source(),
        "machine": machine(),
        "model": options.model,
        "load_before": load,
        "load_after": os.getloadavg(),
        "wanted": "every request of required, named and schema is valid",
        "reached": all(figures[arm]["valid"] == count for arm in ("required", "named", "schema")),
        "figures": figures,
    }
    RESULTS.write_text(json.dumps(written, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
