"""Running cells: one after another, or several at a time in processes of their own."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from bench.learn.cells import THERE, Cells
from bench.learn.plan import Plan


def run_cells(cells: Cells, plans: Sequence[Plan], jobs: int, work: Callable[[Plan], bool]) -> None:
    """Run what is missing, `jobs` at a time. A cell that fails is told of and does not stop the others."""
    todo = [p for p in plans if cells.fresh or cells.state(p) != THERE]
    if not todo:
        return
    print(f"{len(todo)} of {len(plans)} cells are to be run", flush=True)
    if jobs == 1:
        for plan in todo:
            _report(plan, partial(work, plan))
        return
    with ProcessPoolExecutor(jobs, get_context("spawn"), _end_with, (os.getpid(),)) as pool:
        waiting = {pool.submit(work, plan): plan for plan in todo}
        for done in as_completed(waiting):
            _report(waiting[done], done.result)


def _end_with(parent: int) -> None:
    """A worker whose parent was killed would finish its cell and then wait for ever."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def run_one(cells: Cells, keep: Path | None, plan: Plan) -> bool:
    """In a process of its own, or in this one. False if somebody else is running this cell."""
    from bench.learn.cell import run  # torch: only where cells are run

    return cells.ensure(plan, partial(run, say=_say, keep=keep)) is not None


def _say(text: str) -> None:
    print(f"[{time.strftime('%H:%M:%S')}] {text}", flush=True)


def _report(plan: Plan, result: Callable[[], bool]) -> None:
    try:
        if not result():
            _say(f"{plan.name}: another process is at it")
    except Exception as error:  # noqa: BLE001 – one cell must not take the others with it
        _say(f"{plan.name} FAILED: {type(error).__name__}: {error}")
