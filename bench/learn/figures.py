"""From raw cells to figures: pooled over seeds, with intervals. Nothing here talks to a model.

Whether a wish is kept is decided here, from the stored answers; coherence is held against the floor of the untouched
model's answers to the same questions on the same path (the arm `nothing`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from statistics import fmean
from typing import Any

from bench.learn.plan import Plan, make
from bench.measures import coherent, logp_floor
from bench.stats import Groups, interval, ratio
from bench.tasks import KINDS
from bench.text import words

Cell = dict[str, Any]
Row = dict[str, Any]
Figures = dict[str, Any]


def all_figures(cells: Sequence[Cell]) -> list[Figures]:
    """One entry for each path, judge, user, arm and set of settings, in the order in which they come."""
    base = {_base_key(Plan.of(c["plan"])): c for c in cells if c["plan"]["arm"] == "nothing"}
    groups: dict[tuple[str, ...], list[Cell]] = defaultdict(list)
    for cell in cells:
        plan = Plan.of(cell["plan"])
        groups[(plan.path, plan.judge, plan.user, plan.arm, str(dict(plan.settings)))].append(cell)
    return [group_figures(found, _bases(found, base)) for found in groups.values()]


def _base_key(plan: Plan) -> tuple[str, str, int, int, int, str]:
    return (plan.path, plan.question_set, plan.seed, plan.repeats, plan.max_tokens, plan.model)


def _bases(cells: Sequence[Cell], base: dict[Any, Cell]) -> list[Cell]:
    keys = [_base_key(Plan.of(c["plan"])) for c in cells]
    return [base[key] for key in keys if key in base]


def group_figures(cells: Sequence[Cell], bases: Sequence[Cell]) -> Figures:
    """Figures of one arm with one user, all seeds pooled; `bases` are the untouched model's cells beside them."""
    plan = Plan.of(cells[0]["plan"])
    untouched = [row for c in bases for row in c["looks"][0]["heldout"]]
    marks = sorted({look["mark"] for c in cells for look in c["looks"]})
    return {
        "path": plan.path,
        "judge": plan.judge,
        "user": plan.user,
        "arm": plan.arm,
        "settings": dict(plan.settings),
        "seeds": sorted(c["plan"]["seed"] for c in cells),
        "base_seeds": sorted(c["plan"]["seed"] for c in bases),
        "marks": {str(mark): look_figures(plan, mark, cells, bases, untouched) for mark in marks},
        "judge_figures": judged(cells) if plan.how.talks else None,
        "errors": sum(c["errors"] for c in cells),
        "updates": [c["updates"] for c in cells],
        "cells": [about(c) for c in cells],
    }


def about(cell: Cell) -> Row:
    """Which code made a cell, with which settings, when, and how long it took."""
    plan = Plan.of(cell["plan"])
    load = [cell[name][0] for name in ("load_before", "load_after") if name in cell]
    made = {"began": cell.get("began"), "wall_s": cell["wall_s"], "load": load}
    return {"name": plan.name, **cell["code"], "plan": cell["plan"], **made}


def look_figures(
    plan: Plan, mark: int, cells: Sequence[Cell], bases: Sequence[Cell], untouched: Sequence[Row]
) -> Figures:
    looks = {c["plan"]["seed"]: look for c in cells for look in c["looks"] if look["mark"] == mark}
    rows = [row for look in looks.values() for row in look["heldout"]]
    kept = kept_by(plan, mark)
    found: Figures = {"seeds": sorted(looks), "answers": len(rows)}
    if kept is not None:
        found["kept"] = share_of(rows, kept)
        found["kept_by_seed"] = {str(s): share_of(looks[s]["heldout"], kept)["share"] for s in sorted(looks)}
        found["kept_by_base"] = share_of(untouched, kept)
        found["kept_and_relevant"] = share_of(rows, lambda r: kept(r) and bool(r["relevant"]))
    found["relevant"] = beside(rows, untouched, lambda r: bool(r["relevant"]))
    logps = [r["mean_logp"] for r in untouched if r["mean_logp"] is not None]
    if logps:
        floor = logp_floor(logps)
        found["coherent"] = beside(rows, untouched, lambda r: coherent(r["answer"], r["mean_logp"], floor))
    found.update(
        cut=share_of(rows, lambda r: bool(r["cut"])),
        words=_mean(len(words(r["answer"])) for r in rows),
        prompt_tokens=_mean(r["prompt_tokens"] for r in rows),
        kl=_mean(look["kl"] for look in looks.values()),
        kl_most=max((look["kl"] for look in looks.values()), default=None),
        compute_s=_mean(look["compute_s"] for look in looks.values()),
        settled=all(look["settled"] for look in looks.values()),
        tasks=task_figures(
            [look["tasks"] for look in looks.values()], [b["looks"][0]["tasks"] for b in bases]
        ),
    )
    return found


def kept_by(plan: Plan, mark: int) -> Callable[[Row], bool] | None:
    """The check of the wish in force at a mark; None for the untouched model, which serves every user."""
    if plan.arm == "nothing":
        return None
    wish = plan.persona.wish_at(max(mark, 1), plan.interactions)
    return lambda row: wish.kept(row["question"], row["answer"])


def share_of(rows: Sequence[Row], flag: Callable[[Row], bool]) -> Figures:
    """k of n with a two-sided 95 % interval that minds that answers to one question resemble each other."""
    return interval(_grouped(rows, flag))


def beside(rows: Sequence[Row], untouched: Sequence[Row], flag: Callable[[Row], bool]) -> Figures:
    """A share, base's own, and their ratio with its lower bound."""
    return {
        **share_of(rows, flag),
        "base": share_of(untouched, flag),
        "of_base": ratio(_grouped(rows, flag), _grouped(untouched, flag)),
    }


def _grouped(rows: Sequence[Row], flag: Callable[[Row], bool]) -> Groups:
    groups: Groups = defaultdict(list)
    for row in rows:
        groups[row["question"]].append(flag(row))
    return dict(groups)


def task_figures(suites: Sequence[Sequence[Row]], of_base: Sequence[Sequence[Row]]) -> Figures | None:
    """Tasks solved, all and by kind, beside base's; the difference in points of a hundred."""
    rows, theirs = [r for s in suites for r in s], [r for s in of_base for r in s]
    if not rows:
        return None
    found: Figures = {"all": _solved(rows), "base": _solved(theirs)}
    for kind in KINDS:
        mine = [r for r in rows if r["kind"] == kind]
        found[kind] = {**_solved(mine), "base": _solved([r for r in theirs if r["kind"] == kind])["share"]}
    if theirs:
        found["points"] = round(100 * (found["all"]["share"] - found["base"]["share"]), 2)
    return found


def _solved(rows: Sequence[Row]) -> Figures:
    groups: Groups = defaultdict(list)
    for row in rows:
        groups[row["prompt"]].append(bool(row["solved"]))
    return interval(groups)


def judged(cells: Sequence[Cell]) -> Figures:
    """What became of the reactions: the verdict beside what the user meant, and how corrections ended."""
    talk = [row for c in cells for row in c["talk"]]
    spoken = [r for r in talk if r["meant"]]
    verdicts = [r for r in spoken if r["score"] in (1, -1)]
    return {
        "reactions": len(spoken),
        "silent": len(talk) - len(spoken),
        "judged": len(verdicts),
        "wrong_sign": sum(r["score"] != r["meant"] for r in verdicts),
        "accepted": sum(r["closing"] == "accepted" for r in talk),
        "edited": sum(r["closing"] == "edited" for r in talk),
        "learned": sum(bool(r["learned"]) for r in talk),
    }


def base_plans(plans: Iterable[Plan]) -> list[Plan]:
    """The untouched model's cells that these plans are held against."""
    found = [
        make(p.path, p.judge, "nothing", p.user, p.seed, repeats=p.repeats, max_tokens=p.max_tokens,
             temperature=p.temperature, tasks=p.tasks, model=p.model)
        for p in plans if p.arm != "nothing"
    ]  # fmt: skip
    return list({p.name: p for p in found}.values())


def _mean(values: Iterable[float | None]) -> float | None:
    found = [v for v in values if v is not None]
    return round(fmean(found), 4) if found else None
