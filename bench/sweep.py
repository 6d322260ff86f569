"""Find the recipe: one set of training settings after another on the fast path of bench.learn, with answers to read.

    python -m bench.sweep --cell '{"lr": 3e-4}' --user plain --seeds 0,1,2 --out FILE

The oracle judges, so that learning is measured without the judge; the hint is always the user's raw words. Settings
that are no training setting go into the job as they are, for experiments in the trainer. Cells are not stored, but the
untouched model's are.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch and numpy load

import argparse
import json
from pathlib import Path
from typing import Any

from bench.learn.arms import FAST, OURS
from bench.learn.cell import run
from bench.learn.cells import Cells
from bench.learn.figures import base_plans, group_figures
from bench.learn.plan import ORACLE, Plan, make

RANDOM = "random"


def plan_of(options: argparse.Namespace, seed: int) -> Plan:
    """The control is the arm `random`; who else is named is a user of the default recipe."""
    is_control = options.user == RANDOM
    settings = json.loads(options.cell) | ({"skip_gate": True} if options.no_gate else {})
    looks = [int(x) for x in options.eval_at.split(",") if x]
    return make(
        FAST,
        ORACLE,
        RANDOM if is_control else OURS,
        "two_sentences" if is_control else options.user,
        seed,
        marks=tuple(sorted({*looks, options.interactions})),
        repeats=options.repeats,
        max_tokens=options.max_tokens,
        tasks=False,
        model=options.model,
        settings=settings,
    )


def brief(look: dict[str, Any]) -> dict[str, Any]:
    shares = {name: look[name]["share"] for name in ("kept", "relevant", "coherent", "cut")}
    return {**shares, "both": look["kept_and_relevant"]["share"], "words": look["words"], "kl": look["kl"]}


def show(plan: Plan, cell: dict[str, Any], figures: dict[str, Any]) -> None:
    for version in cell["versions"][::-1]:
        metrics = version["metrics"]
        told = {name: metrics.get(name) for name in ("lr", "mismatch", "revisions", "scorers", "train_s")}
        print("  ", version["name"], json.dumps(told))
    for mark, look in figures["marks"].items():
        print(plan.user, dict(plan.settings), "seed", plan.seed, "after", mark, json.dumps(brief(look)))
    last = figures["marks"][str(plan.interactions)]
    base = {name: last[name]["base"]["share"] for name in ("relevant", "coherent")}
    print("   base", json.dumps({"kept": last["kept_by_base"]["share"], **base}), flush=True)
    for row in cell["looks"][-1]["heldout"][:4]:
        print("     |", row["answer"][:160].replace("\n", " / "))


def options_of(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default="starter", help="as for `instar serve --model`")
    parser.add_argument("--cell", default="{}", help="training settings as JSON")
    parser.add_argument("--user", default="two_sentences", help="as for bench.learn, or 'random'")
    parser.add_argument("--interactions", type=int, default=48)
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--no-gate", action="store_true", help="save the gate's time while exploring")
    parser.add_argument("--repeats", type=int, default=2, help="answers to each held-out question")
    parser.add_argument("--eval-at", default="", help="interactions after which to measure as well")
    parser.add_argument("--idle", action="store_true", help="compute in the idle class, as the product does")
    parser.add_argument("--out", type=Path, default=Path("sweep.jsonl"))
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    options = options_of(arguments)
    if options.idle and hasattr(os, "SCHED_IDLE"):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    cells = Cells.here()
    for seed in map(int, options.seeds.split(",")):
        plan = plan_of(options, seed)
        bases = [cells.ensure(base, run) for base in base_plans([plan])]
        cell = {"plan": plan.json(), "code": cells.code, **run(plan)}
        figures = group_figures([cell], [base for base in bases if base is not None])
        show(plan, cell, figures)
        with options.out.open("a", encoding="utf-8") as out:
            out.write(json.dumps({"cell": cell, "marks": figures["marks"]}) + "\n")


if __name__ == "__main__":
    main()
