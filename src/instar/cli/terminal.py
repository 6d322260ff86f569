"""Printing, the same way everywhere: facts to stdout, complaints and events to stderr."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
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
    """One line about what the server's house does."""
    err().print(Text(f"{time.strftime('%H:%M:%S')}  {text}", style="dim"))


def print_json(value: Any) -> None:
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))
