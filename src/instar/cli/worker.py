"""`instar worker NAME`: one process of the four. Started by the supervisor, not by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from instar.errors import ConfigError
from instar.runtime import raise_file_limit
from instar.workers import lifeline
from instar.workers.state import load_state


def worker(
    name: Annotated[str, typer.Argument(help="engine, gateway, judge or trainer")],
    state: Annotated[Path, typer.Option("--state", help="The supervisor's run state.")],
) -> None:
    """Run one process of the server."""
    lifeline.hold()
    settings, run = load_state(state)
    from instar import compose  # loads the store and the web server, which the other commands do not need

    runners = {
        "engine": compose.run_engine,
        "gateway": compose.run_gateway,
        "judge": compose.run_judge,
        "trainer": compose.run_trainer,
    }
    if name not in runners:
        raise ConfigError(f"There is no worker called {name!r}; there are {', '.join(runners)}.")
    compose.configure_logging(settings)
    raise_file_limit()
    runners[name](settings, run)
