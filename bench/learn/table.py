"""What is printed: for each path, judge and user a table of the wish kept over interactions and one of its price."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.learn.arms import ARMS
from bench.learn.cells import Cells
from bench.learn.goals import Goal, short, span
from bench.learn.plan import ORACLE, Plan
from bench.stats import difference

Figures = dict[str, Any]
WIDTH = 150


def console() -> Console:
    return Console(width=WIDTH, highlight=False)


def print_all(groups: Sequence[Figures], reached: Sequence[Goal]) -> None:
    out = console()
    for path, judge, user in dict.fromkeys((g["path"], g["judge"], g["user"]) for g in groups if _talks(g)):
        same = [g for g in groups if (g["path"], g["user"]) == (path, user) and g["judge"] in (judge, "none")]
        out.rule(f"{user} · {path} path · judged by the {'oracle' if judge == ORACLE else 'product'}")
        out.print(_kept_table(same))
        out.print(_price_table(same))
    for goal in reached:
        mark = {True: "reached", False: "[red]missed[/red] ", None: "[dim]not run[/dim]"}[goal.reached]
        out.print(f"{mark}  {goal.text}: {goal.measured}")


def _talks(group: Figures) -> bool:
    return ARMS[group["arm"]].talks


def _label(group: Figures) -> str:
    more = " ".join(f"{k}={v}" for k, v in group["settings"].items())
    return f"{group['arm']} {more}".strip()


def _kept_table(groups: Sequence[Figures]) -> Table:
    """Share of held-out answers that keep the wish, with 95 % intervals."""
    marks = sorted({int(m) for g in groups for m in g["marks"] if int(m)})
    table = _table(["kept after", *map(str, marks), "by seed", "seeds", "answers"])
    table.add_row("(untouched)", _base_of(groups))
    for group in groups:
        only_look = group["marks"].get("0")
        shares = [span((only_look or group["marks"].get(str(m)) or {}).get("kept")) for m in marks]
        last = list(group["marks"].values())[-1]
        by_seed = " ".join(short(v) for v in last.get("kept_by_seed", {}).values())
        table.add_row(_label(group), *shares, by_seed, _seeds(group), str(last["answers"]))
    return table


def _base_of(groups: Sequence[Figures]) -> str:
    found = [look["kept_by_base"] for g in groups for look in g["marks"].values() if "kept_by_base" in look]
    return span(max(found, key=lambda share: share["n"], default=None))


def _seeds(group: Figures) -> str:
    """Which seeds, and how many of them lack the untouched model beside them."""
    lacking = len(set(group["seeds"]) - set(group["base_seeds"]))
    return ",".join(map(str, group["seeds"])) + (f" ({lacking} without base)" if lacking else "")


def _price_table(groups: Sequence[Figures]) -> Table:
    columns = ["at the last mark", "kept & relevant", "coherent (base)", "relevant (base)", "KL", "words", "cut",
               "tasks (points)", "long essays (base)", "compute s", "prompt tokens"]  # fmt: skip
    table = _table(columns)
    for group in groups:
        look = list(group["marks"].values())[-1]
        table.add_row(
            _label(group),
            span(look.get("kept_and_relevant")),
            _beside(look.get("coherent")),
            _beside(look.get("relevant")),
            _number(look["kl"], 3),
            _number(look["words"], 0),
            short(look["cut"]["share"]),
            _points(look["tasks"]),
            _essays(look["tasks"]),
            _number(look["compute_s"], 0),
            _number(look["prompt_tokens"], 0),
        )
    return table


def _table(columns: Sequence[str]) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in columns:
        table.add_column(column, no_wrap=True)
    return table


def _beside(measure: Figures | None) -> str:
    if not measure:
        return "–"
    return f"{short(measure['share'])} ({short(measure['base']['share'])})"


def _points(tasks: Figures | None) -> str:
    if not tasks:
        return "–"
    return (
        f"{short(tasks['all']['share'])} ({tasks['points']:+.1f})"
        if "points" in tasks
        else short(tasks["all"]["share"])
    )


def _essays(tasks: Figures | None) -> str:
    return f"{short(tasks['essay']['share'])} ({short(tasks['essay']['base'])})" if tasks else "–"


def _number(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def print_cells(cells: Cells, plans: Sequence[Plan]) -> None:
    """Which cells are there, and which are not."""
    out, counts = console(), dict[str, int]()
    for plan in plans:
        state = cells.state(plan)
        counts[state] = counts.get(state, 0) + 1
        found = cells.load(plan)
        made = f"commit {found['code']['commit']}, {found['wall_s']:.0f} s" if found else ""
        out.print(f"{state:12} {plan.name}  {made}", soft_wrap=True)
    out.print(", ".join(f"{n} {state}" for state, n in counts.items()) or "no cells")


def print_comparison(groups: Sequence[Figures]) -> None:
    """The fast path beside the front door: same arm, user and judge."""
    out = console()
    table = _table(["arm, user, judge, mark", "", "api", "fast", "api − fast (95 %)", "agree"])
    by_key = {(g["path"], g["judge"], g["user"], g["arm"], str(g["settings"])): g for g in groups}
    for (path, *rest), api in by_key.items():
        fast = by_key.get(("fast", *rest))
        if path == "api" and fast is not None:
            for mark in [m for m in api["marks"] if m in fast["marks"]]:
                for row in _compared(api["marks"][mark], fast["marks"][mark]):
                    table.add_row(f"{api['arm']}, {api['user']}, {api['judge']}, {mark}", *row)
    if not table.row_count:
        out.print("There is nothing to compare: no cell was run on both paths.")
        return
    out.print(table)
    out.print(
        "[dim]agree: the interval of the difference holds 0. With few seeds it is wide: see its ends.[/dim]"
    )


def _compared(api: Figures, fast: Figures) -> list[list[str]]:
    rows = []
    for name in ("kept", "relevant", "coherent", "cut"):
        a, b = api.get(name), fast.get(name)
        if a and b and a["n"] and b["n"]:
            gap, low, high = difference((a["k"], a["n"]), (b["k"], b["n"]))
            agrees = "yes" if low <= 0 <= high else "NO"
            rows.append([name, span(a), span(b), f"{gap:+.2f} ({low:+.2f} to {high:+.2f})", agrees])
    for name, digits in (("kl", 3), ("words", 0), ("compute_s", 0), ("prompt_tokens", 0)):
        rows.append([name, _number(api[name], digits), _number(fast[name], digits), "", ""])
    return rows
