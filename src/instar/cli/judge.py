"""`instar judge`: how good are those who read reactions?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from instar.cli.serve import nested
from instar.cli.terminal import DataDir, Json, out, print_json, progress_bar
from instar.config import ENGINE_JUDGE, Settings, load_settings
from instar.errors import ConfigError
from instar.workers.state import RunState, load_state

app = typer.Typer(no_args_is_help=True, help="Measure those who read reactions.", rich_markup_mode=None)

COLUMNS = {
    "cases": "cases",
    "accuracy": "right of ±1",
    "wrong_sign": "wrong sign",
    "coverage": "spoke",
    "accuracy_spoken": "right if spoken",
    "alarms": "±1 of 0",
}


@app.callback()
def _group() -> None:
    """Measure those who read reactions."""


@app.command("cases")
def judge_cases(
    file: Annotated[Path, typer.Argument(help="Labelled cases, one JSON object a line (docs/judge.md).")],
    data_dir: DataDir = None,
    each: Annotated[
        bool, typer.Option("--each", help="Ask every judge about every case, not only until one speaks.")
    ] = False,
    settings_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Any setting, such as judge.votes=5."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Run labelled cases through the configured judges and count how often they are right."""
    settings = load_settings(data_dir, nested(settings_ or []))
    from instar import compose  # loads the embedding, which the other commands do not need
    from instar.judges import calibration

    cases = calibration.read_cases(file)
    chain = compose.build_judges(settings, _running(settings))
    try:
        with progress_bar() as progress:
            readings = calibration.judge_cases(chain, cases, each=each, progress=progress)
        found = {"file": str(file), **chain.facts(), **calibration.report(readings)}
    finally:
        chain.close()
    if as_json:
        return print_json(found)
    return print_report(out(), found)


def print_report(console: Console, found: dict[str, Any]) -> None:
    """The table of figures: the chain, each judge on the cases that it was asked, each language and kind."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("")
    for title in COLUMNS.values():
        table.add_column(title, justify="right")
    for title, rows in _groups(found):
        if title:
            table.add_row(Text(title, style="bold"))
        for name, figures in rows.items():
            table.add_row(
                Text(f"  {name}" if title else name), *(_cell(figures[column]) for column in COLUMNS)
            )
    console.print(Text(" → ".join(found["chain"]), style="bold"))
    if found["problem"]:
        console.print(Text(found["problem"], style="yellow"))
    console.print(table)


def _groups(found: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    groups = {
        "": {"the chain": found["all"]},
        "each judge": found["links"],
        "language": found["languages"],
        "kind": found["kinds"],
    }
    return [(title, rows) for title, rows in groups.items() if rows]


def _cell(value: float | int | None) -> str:
    return "–" if value is None else str(value) if isinstance(value, int) else f"{value:.3f}"


def _running(settings: Settings) -> RunState | None:
    """The server that runs on the data folder, where our own engine is the judge and there is one."""
    if settings.judge.url != ENGINE_JUDGE:
        return None
    try:
        return load_state(settings.run_dir / "state.json")[1]
    except ConfigError:
        return None
