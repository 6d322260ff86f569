"""Does it learn what its user wants, and at what price? Simulated users, ten arms, two paths.

    python -m bench.learn --short                     a look in a quarter of an hour on two cores
    python -m bench.learn --full --jobs 2             everything, for many hours; stop it and start it again at will
    python -m bench.learn --path fast --wishes plain,korean --arms combined,system_prompt --seeds 0,1,2
    python -m bench.learn --full --list               which cells are there, running and missing
    python -m bench.learn --compare                   the fast path beside the real server

Cells lie in bench/results/cells and are not run again for the same code and plan. Figures go to
bench/results/learn.json, plots to docs/img; those of anything but --full go to bench/results/raw.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch and numpy load

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from bench.learn.arms import ARMS, BOTH, FAST
from bench.learn.cells import CELLS, RESULTS, ROOT, Cell, Cells
from bench.learn.figures import all_figures, base_plans
from bench.learn.goals import goals
from bench.learn.plan import (
    COMPARE,
    FULL,
    MARKS,
    ORACLE,
    PRODUCT,
    SHORT,
    SHORT_MARKS,
    Block,
    Plan,
    plans_of,
    unique,
)
from bench.learn.running import run_cells, run_one
from bench.learn.table import print_all, print_cells, print_comparison
from bench.server import machine
from bench.users import NAMES, persona


def chosen(options: argparse.Namespace) -> list[Plan]:
    """The plans that the command line asks for, with the untouched model's cells that they are held against."""
    more: dict[str, Any] = {"marks": options.marks, "repeats": options.repeats, "think_s": options.think,
                            "max_tokens": options.max_tokens, "tasks": options.tasks, "model": options.model,
                            "settings": options.settings}  # fmt: skip
    if options.short:
        blocks: Sequence[Block] = SHORT
    elif options.full:
        blocks = FULL
    elif options.compare and not options.arms:
        blocks = COMPARE
    else:
        arms, users = options.arms or ("system_prompt", "combined"), options.wishes or ("two_sentences",)
        blocks = [Block(path, judge, arms, users) for path in options.path for judge in options.judge]
    if options.seeds:
        blocks = [replace(block, seeds=options.seeds) for block in blocks]
    plans = plans_of(blocks, **more)
    return unique([*base_plans(plans), *plans])


def stored(cells: Cells, plans: Sequence[Plan], *, stale: bool) -> list[Cell]:
    found = [(plan, cells.load(plan)) for plan in plans]
    return [cell for _, cell in found if cell is not None and (stale or cells.is_current(cell))]


def write(
    path: Path, groups: Sequence[dict[str, Any]], reached: Sequence[Any], missing: Sequence[str]
) -> None:
    document = {
        "machine": machine(),
        "figures": groups,
        "goals": [goal.json() for goal in reached],
        "not_run": list(missing),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".tmp")
    draft.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", "utf-8")
    draft.replace(path)


def _names(known: Sequence[str], what: str) -> Any:
    def parse(text: str) -> tuple[str, ...]:
        found = tuple(known) if text == "all" else tuple(text.split(","))
        if unknown := [name for name in found if name not in known]:
            raise argparse.ArgumentTypeError(
                f"no {what} is called {unknown[0]!r}; there are {', '.join(known)}"
            )
        return found

    return parse


def _users(text: str) -> tuple[str, ...]:
    names = NAMES if text == "all" else tuple(text.split(","))
    try:
        return tuple(persona(name).name for name in names)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _whole_numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def options_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "python -m bench.learn", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    size = parser.add_mutually_exclusive_group()
    size.add_argument(
        "--short", action="store_true", help="one wish, 16 interactions, three seeds, fast path"
    )
    size.add_argument("--full", action="store_true", help="every arm, every user, both paths")
    add("--path", type=_names(BOTH, "path"), default=(FAST,), help="fast, api, or both with a comma")
    add(
        "--judge", type=_names((ORACLE, PRODUCT), "judge"), default=(ORACLE,), help="oracle, product, or both"
    )
    add(
        "--wishes", type=_users, help="users, with commas, or 'all'; each may have +noisy or +shows behind it"
    )
    add("--arms", type=_names(tuple(ARMS), "arm"), help="arms, with commas, or 'all'")
    add("--seeds", type=_whole_numbers, help="seeds, with commas; default 0,1,2")
    add("--marks", type=_whole_numbers, default=None, help="interactions after which to measure")
    add("--interactions", type=int, help="drop the marks behind it, and measure there")
    add("--repeats", type=int, help="answers to each held-out question; 2, with --short 1")
    add("--max-tokens", type=int, default=128, help="longest answer")
    add("--think", type=float, default=3.0, help="seconds before each of the user's messages (api path)")
    add("--settings", type=json.loads, default={}, help="training settings as JSON, on top of the arms' own")
    add("--no-tasks", dest="tasks", action="store_false", help="leave the suite of unrelated tasks out")
    add("--model", default="starter", help="as for `instar serve --model`")
    add("--jobs", type=int, help="cells at the same time, a process and a thread each; 1, with --short 2")
    add("--list", action="store_true", help="only say which cells are there, running and missing")
    add("--no-run", action="store_true", help="only show what is there")
    add("--compare", action="store_true", help="show the fast path beside the real server")
    add("--fresh", action="store_true", help="run cells again that are there")
    add("--stale", action="store_true", help="show cells too that older code made")
    add("--keep", type=Path, help="put the cells' data folders here and keep them")
    add("--cells", type=Path, default=CELLS, help="where cells are kept")
    add("--results", type=Path, help="where figures go")
    add("--img", type=Path, help="where plots go")
    options = parser.parse_args(arguments)
    return _with_defaults(options)


def _with_defaults(options: argparse.Namespace) -> argparse.Namespace:
    marks = options.marks or (SHORT_MARKS if options.short else MARKS)
    if options.interactions:
        marks = (*(m for m in marks if m < options.interactions), options.interactions)
    options.marks = tuple(sorted(set(marks)))
    options.repeats = options.repeats or (1 if options.short else 2)
    options.jobs = options.jobs or (min(2, os.cpu_count() or 1) if options.short else 1)
    if options.compare and not options.full:
        options.path = BOTH
    aside = RESULTS / "raw" if options.cells == CELLS else options.cells
    options.results = options.results or (
        RESULTS / "learn.json" if options.full else aside / "learn-figures.json"
    )
    options.img = options.img or (ROOT / "docs" / "img" if options.full else aside / "img")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    options = options_of(arguments)
    plans, cells = chosen(options), Cells.here(options.cells, fresh=options.fresh)
    if options.list:
        print_cells(cells, plans)
        return 0
    if not options.no_run:
        run_cells(cells, plans, options.jobs, partial(run_one, cells, options.keep))
    found = stored(cells, plans, stale=options.stale)
    names = {Plan.of(cell["plan"]).name for cell in found}
    missing = [plan.name for plan in plans if plan.name not in names]
    groups = all_figures(found)
    if options.compare:
        print_comparison(groups)
    else:
        reached = goals(groups)
        print_all(groups, reached)
        write(options.results, groups, reached, missing)
        if groups:
            from bench.learn.plots import draw

            draw(groups, options.img)
        print(f"figures in {options.results}, plots in {options.img}")
    print(f"{len(found)} of {len(plans)} cells; not run: {', '.join(missing) or 'none'}")
    return 0 if found else 1


if __name__ == "__main__":
    sys.exit(main())
