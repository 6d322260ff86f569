"""How fast it serves, what the gateway adds, and what learning costs those who chat.

    python -m bench.serve [--parts speed,turns,…] [--vllm PATH] [--threads 1] [--rounds 3] [--quick]

a, speed    tokens a second and time to the first token over HTTP at 1, 4 and 8 streams, with prompts of 200 and 2,000
            tokens, greedy and sampled with log-probs, a version active; beside `vllm serve` with the same adapter and
            with none, where --vllm names its executable
b, turns    the second turn of sessions of 2,000 and 11,000 tokens, and the first turn after a swap
c, gateway  what the gateway adds before an engine that answers by the clock, and 2,000 sessions that nobody closes
d, gaps     serving while updates run against serving alone, in ten pairs of blocks
e, memory   all processes together, with four streams

Arms take turns within a run, since a machine may be shared; ratios are made within a round. Figures go to
bench/results/serve.json by part, and a table is printed with what is to be reached. `--quick` is a smoke run whose
figures mean nothing; they go to bench/results/raw, which is not kept.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from bench.first_light import write_json
from bench.server import machine, source
from bench.serving import gaps, gateway, memory, speed, turns
from bench.serving.goals import Plan, Row
from instar.config import models_dir
from instar.engines.starter import ensure_model

RESULTS = Path(__file__).parent / "results" / "serve.json"
PARTS: dict[str, ModuleType] = {
    "speed": speed, "turns": turns, "gateway": gateway, "gaps": gaps, "memory": memory,
}  # fmt: skip


def measured(part: str, plan: Plan) -> dict[str, Any]:
    """One part's figures, with what they were measured on."""
    began, load, clock = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), os.getloadavg(), time.monotonic()
    figures: dict[str, Any] = PARTS[part].run(plan)
    about = {
        "began": began, "load_before": load, "load_after": os.getloadavg(), "threads": plan.threads,
        "rounds": plan.rounds, "quick": plan.is_quick, "machine": machine(), "source": source(),
    }  # fmt: skip
    return {"figures": figures, "wall_s": round(time.monotonic() - clock, 1), **about}


def merge(path: Path, part: str, cell: dict[str, Any]) -> None:
    """Put one part into the file; the others stay as they are."""
    document = json.loads(path.read_text("utf-8")) if path.is_file() else {"parts": {}}
    document["parts"][part] = cell
    write_json(path, document)


def table_of(part: str, lines: list[Row]) -> Table:
    table = Table(title=part, title_justify="left", box=None, header_style="bold")
    for column in ("figure", "measured", "to reach", "", "beside it"):
        table.add_column(column, overflow="fold")
    for row in lines:
        verdict = {None: "", True: "[green]reached[/green]", False: "[red]missed[/red]"}[row.reached]
        table.add_row(row.what, row.shown, row.goal, verdict, row.note)
    return table


def options_of(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.serve", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--parts", default=",".join(PARTS), help=f"of {', '.join(PARTS)}")
    parser.add_argument("--vllm", type=Path, help="executable of vLLM, to compare with; else it is left out")
    parser.add_argument("--model", default="starter", help="'starter' or a folder")
    parser.add_argument("--threads", type=int, default=1, help="compute threads of each engine")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="a smoke run; its figures mean nothing")
    parser.add_argument("--results", type=Path)
    options = parser.parse_args(arguments)
    letters = dict(zip("abcde", PARTS, strict=True))
    options.parts = [letters.get(part.strip(), part.strip()) for part in options.parts.split(",")]
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"there is no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    if options.vllm is not None and not os.access(options.vllm, os.X_OK):
        parser.error(f"{options.vllm} cannot be started")
    if options.quick:
        options.rounds = 1
    if options.results is None:
        options.results = RESULTS.parent / "raw" / "serve_quick.json" if options.quick else RESULTS
    return options


def run(options: argparse.Namespace, console: Console) -> None:
    model_dir = ensure_model(options.model, models_dir())
    for part in options.parts:
        with tempfile.TemporaryDirectory(prefix="instar-bench-") as work, _progress(console, part) as tell:
            plan = Plan(
                model_dir, Path(work), options.threads, options.rounds, options.quick, tell, options.vllm
            )
            cell = measured(part, plan)
        merge(options.results, part, cell)
        console.print(table_of(part, PARTS[part].rows(cell["figures"])))
    console.print(f"written to {options.results}")


class _progress:  # noqa: N801 - used as a function
    """A line that says what is being done; every step as a line of its own where no terminal is."""

    def __init__(self, console: Console, part: str) -> None:
        columns = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
        self._bar = Progress(*columns, console=console, transient=True)
        self._console, self._task = console, self._bar.add_task(part, total=None)

    def __enter__(self) -> Callable[[str], None]:
        if self._console.is_terminal:
            self._bar.start()
        return self._tell

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def _tell(self, text: str) -> None:
        if self._console.is_terminal:
            self._bar.update(self._task, description=text)
        else:
            self._console.print(f"[{time.strftime('%H:%M:%S')}] {text}", markup=False, highlight=False)


def main(arguments: list[str] | None = None) -> None:
    run(options_of(arguments), Console(width=140))


if __name__ == "__main__":
    main()
