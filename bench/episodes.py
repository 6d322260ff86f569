"""Does a reply to an episode change its first step? The starter model, over a real server.

    python -m bench.episodes [--sessions 40] [--seed 0] [--method binary_rl] [--quick]

A user wants files mended and offers two tools, `read_file` and `write_file`. A call must be made (the starter makes
none by itself), so its first step is a choice between the two; a file that is written unread is spoilt. The client does
what is asked, hands the result back, and the model says something of it. Only then the user reacts: "You should have
read the file first", or thanks. What is measured is how often the first step is `read_file`, for other files, before
and after, with nothing said; and beside it with the wish in front of the request, which is what the model does if it is
told. Writes results/episodes.json.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from openai import OpenAI
from rich.console import Console
from rich.table import Table

from bench.server import Server, machine, source
from bench.stats import wilson
from bench.tool_calls import tool

RESULTS = Path(__file__).parent / "results" / "episodes.json"
MAX_TOKENS = 120
WISH = "You should have read the file first."
CORRECTIONS = (
    f"That is wrong. {WISH}",
    f"No, you overwrote it unseen. {WISH}",
    f"This is not what I wanted. {WISH}",
    f"Bad, my notes are gone! {WISH}",
)
PRAISES = ("Perfect, thank you!", "Great, that is exactly right.", "Thanks, well done.", "Very good, thanks!")
THINGS = (
    *(
        "shopping list",
        "travel plan",
        "recipe",
        "invitation",
        "address list",
        "diary",
        "budget",
        "guest list",
    ),
    *("reading list", "garden plan", "letter", "timetable", "poem", "speech", "song text", "packing list"),
)
WISHES = ("Correct the spelling in {}.", "Make {} shorter.", "Add a title to {}.", "Sort the lines of {}.")


def _texts(*names: str) -> dict[str, Any]:
    """Arguments that are short texts."""
    return {name: {"type": "string", "maxLength": 40} for name in names}


TOOLS = [
    tool("read_file", "Read what is in a file", _texts("path"), ["path"]),
    tool("write_file", "Write a text into a file", _texts("path", "text"), ["path", "text"]),
]


def errands(seed: int) -> tuple[list[str], list[str]]:
    """What is asked for while learning, and what is asked for to measure: other files."""
    draw = random.Random(seed)
    things = list(THINGS)
    draw.shuffle(things)
    half = len(things) // 2
    mine, held_out = (
        [w.format(f"{t.replace(' ', '_')}.txt, my {t}") for w, t in itertools.product(WISHES, part)]
        for part in (things[:half], things[half:])
    )
    draw.shuffle(mine)
    return mine, held_out


class Agent:
    """A client with two tools. `learn` says whether its turns may be learned from."""

    def __init__(self, server: Server, session: str, *, learn: bool) -> None:
        self._client = OpenAI(base_url=f"{server.url}/v1", api_key=server.key, max_retries=0, timeout=3600)
        self._headers = {"X-Session-Id": session} if learn else {"X-Instar-Learn": "off"}
        self.messages: list[dict[str, Any]] = []

    def step(self, choice: str, **more: Any) -> Any:
        """The model's next step, kept in the conversation."""
        reply = self._client.chat.completions.create(
            model="instar", messages=self.messages, tools=TOOLS, tool_choice=choice, parallel_tool_calls=False,
            max_tokens=MAX_TOKENS, extra_headers=self._headers, **more,
        )  # fmt: skip
        message = reply.choices[0].message
        self.messages.append(message.model_dump(exclude_none=True))
        return message

    def first_step(self, errand: str, **more: Any) -> str:
        """The name of the tool that is called first; empty if the call was cut."""
        self.messages = [{"role": "user", "content": errand}]
        calls = self.step("required", **more).tool_calls or []
        return calls[0].function.name if calls else ""

    def session(self, errand: str, number: int) -> str:
        """An errand, what came of it, and the user's reaction. Returns the tool that was called first."""
        called = self.first_step(errand)
        if not called:
            return called
        result = "milk, bred, aples" if called == "read_file" else "1 line written, 34 lines removed"
        call = self.messages[-1]["tool_calls"][0]
        self.messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
        self.step("none")
        said = (PRAISES if called == "read_file" else CORRECTIONS)[number % 4]
        self.messages.append({"role": "user", "content": said})
        self.step("none")
        return called


def look(server: Server, held_out: list[str], repeats: int, told: str = "") -> dict[str, Any]:
    """How often the first step is `read_file`."""
    asked = [f"{told}{errand}" for errand in held_out] * repeats

    def ask(number: int) -> str:
        return Agent(server, "", learn=False).first_step(asked[number], seed=number)

    with ThreadPoolExecutor(4) as pool:
        called = list(pool.map(ask, range(len(asked))))
    reads = called.count("read_file")
    return {
        "asked": len(called),
        "reads": reads,
        "cut": called.count(""),
        "share": round(reads / len(called), 3),
        "interval95": [round(x, 3) for x in wilson(reads, len(called))],
        "version": server.status()["active_version"],
    }


def run(server: Server, options: argparse.Namespace) -> dict[str, Any]:
    mine, held_out = errands(options.seed)
    if options.quick:
        held_out = held_out[:4]
    found: dict[str, Any] = {"before": look(server, held_out, options.repeats)}
    found["told"] = look(server, held_out, 1, told="Read the file first. ")
    called = []
    for number, errand in zip(range(options.sessions), itertools.cycle(mine), strict=False):
        called.append(Agent(server, f"s{number}", learn=True).session(errand, number))
        Console().print(
            f"{number + 1:3} {called[-1] or 'cut':10} {server.status()['active_version']}  {errand}"
        )
    server.settle()
    found.update(sessions=called, after=look(server, held_out, options.repeats), versions=server.versions())
    return found


def show(found: dict[str, Any]) -> None:
    table = Table(box=None, header_style="bold")
    for column in ("first step", "asked", "reads first", "95 %", "version"):
        table.add_column(column)
    for name in ("before", "told", "after"):
        row = found[name]
        low, high = row["interval95"]
        table.add_row(name, str(row["asked"]), f"{row['share']:.2f}", f"{low:.2f}-{high:.2f}", row["version"])
    Console(width=110).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sessions", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--repeats", type=int, default=2, help="times that each held-out errand is given")
    parser.add_argument("--method", default="binary_rl", choices=("binary_rl", "combined"))
    parser.add_argument("--quick", action="store_true", help="a few errands; nothing is written")
    options = parser.parse_args()
    load = os.getloadavg()
    settings = {"INSTAR_TRAIN__METHOD": options.method, "INSTAR_GATE__HELD_BACK": "0"}
    if options.quick:
        options.sessions = min(options.sessions, 4)
    with (
        tempfile.TemporaryDirectory() as folder,
        Server(Path(folder) / "data", extra=settings) as server,
    ):
        found = run(server, options)
    show(found)
    if options.quick:
        return
    written = {"source": source(), "machine": machine(), "load_before": load, "load_after": os.getloadavg(),
               "seed": options.seed, "method": options.method, "figures": found}  # fmt: skip
    RESULTS.write_text(json.dumps(written, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
