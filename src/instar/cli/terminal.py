"""Printing, the same way everywhere: facts to stdout, complaints and events to stderr."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

DataDir = Annotated[
    Path | None,
    typer.Option("--data-dir", help="Where everything is kept (default: $INSTAR_DATA_DIR, else ~/.instar)."),
]
Url = Annotated[
    str | None, typer.Option("--url", help="Address of the server (default: the one on the data folder).")
]
ApiKey = Annotated[
    str | None, typer.Option("--api-key", help="The server's key (default: the data folder's own).")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]


def out() -> Console:
    """Made on each call, so that a redirected stdout is respected."""
    return Console(file=sys.stdout, highlight=False, soft_wrap=True)


def err() -> Console:
    return Console(file=sys.stderr, highlight=False, soft_wrap=True)


def complain(text: str) -> None:
    """One red line that says what is wrong and what to do."""
    err().print(Text(f"error: {text}", style="red"))


def event(text: str) -> None:
    """One line about what the server's house does. A terminal that was closed must not end the server."""
    with contextlib.suppress(OSError):
        err().print(Text(f"{time.strftime('%H:%M:%S')}  {text}", style="dim"))


def print_json(value: Any) -> None:
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


@contextmanager
def progress_bar() -> Iterator[Callable[[str, float], None]]:
    """A bar that appears only when there is something to wait for; in a log, a line for each new thing."""
    bar = Progress(
        TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"),
        TimeElapsedColumn(), console=err(),
    )  # fmt: skip
    tasks: list[TaskID] = []
    told: set[str] = set()

    def report(what: str, fraction: float) -> None:
        if fraction >= 1.0 and not tasks and not told:
            return  # it was there already
        if not bar.console.is_terminal:
            if what not in told:
                told.add(what)
                event(what)
            return
        if not tasks:
            bar.start()
            tasks.append(bar.add_task(what, total=1.0))
        bar.update(tasks[0], description=what, completed=fraction)

    try:
        yield report
    finally:
        if tasks:
            bar.stop()
