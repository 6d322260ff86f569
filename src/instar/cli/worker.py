"""`instar worker NAME`: one process of the four. Started by the supervisor, not by hand."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Annotated

import structlog
import typer

from instar.config import Settings
from instar.errors import ConfigError
from instar.workers import lifeline
from instar.workers.state import load_state


def set_up_logs(settings: Settings) -> None:
    """One line per event on stderr, which is the log file."""
    level = logging.getLevelNamesMapping()[settings.log_level.upper()]
    logging.basicConfig(
        level=level, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s %(message)s"
    )
    logging.getLogger("httpx").setLevel(logging.WARNING)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.KeyValueRenderer(key_order=["timestamp", "level", "event"]),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )


def worker(
    name: Annotated[str, typer.Argument(help="engine, gateway, judge or trainer")],
    state: Annotated[Path, typer.Option("--state", help="The supervisor's run state.")],
) -> None:
    """Run one process of the server."""
    lifeline.hold()
    from instar import compose  # loads the store and the web server, which the other commands do not need

    settings, run = load_state(state)
    runners = {
        "engine": compose.run_engine,
        "gateway": compose.run_gateway,
        "judge": compose.run_judge,
        "trainer": compose.run_trainer,
    }
    if name not in runners:
        raise ConfigError(f"There is no worker called {name!r}; there are {', '.join(runners)}.")
    set_up_logs(settings)
    runners[name](settings, run)
