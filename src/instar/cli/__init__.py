"""The command line: serve, chat, connect, status, versions, judge."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from instar import __version__
from instar.cli import chat, connect, judge, serve, status, versions, worker
from instar.cli.client import NoServer
from instar.cli.terminal import complain
from instar.config import debug_wanted
from instar.errors import InstarError

app = typer.Typer(
    name="instar",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"instar {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Serve your own model through the OpenAI API and let it learn from every correction."""


app.command("serve")(serve.serve)
app.command("chat")(chat.chat)
app.command("connect")(connect.connect)
app.command("status")(status.status)
app.add_typer(versions.app, name="versions")
app.add_typer(judge.app, name="judge")
app.command("worker", hidden=True)(worker.worker)


def main() -> None:
    """Run the command line. What a person can mend is one line and status 2; no server is status 1."""
    try:
        app()
    except InstarError as error:
        if debug_wanted():
            raise
        complain(str(error))
        sys.exit(1 if isinstance(error, NoServer) else 2)
    except BrokenPipeError:  # `instar status | head`
        sys.stderr.close()
        sys.exit(0)
