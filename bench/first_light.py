"""The first light of Instar, measured from outside: real server, real client, simulated users.

    python -m bench.first_light                           every arm (about two hours on two cores)
    python -m bench.first_light --arm learn --seeds 1     one arm, one seed
    python -m bench.first_light --quick                   a smoke run of a few minutes; its figures mean nothing

Figures go to bench/results/first_light.json by arm. Each finished cell lies in bench/results/raw/ and is not run
again for the same code and plan (`--fresh` runs it anyway), so an interrupted run goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from bench.figures import kill_figures, latency_figures, learning_figures, serving_times
from bench.learning_arm import LearnPlan, run_learning
from bench.load_arms import KillPlan, LatencyPlan, run_kills, run_latency
from bench.report import print_arm
from bench.server import machine, source
from bench.stats import summary

ARMS = ("learn", "random", "latency", "longprompt", "agentprompt", "kill")
RESULTS = Path(__file__).parent / "results" / "first_light.json"
LONG_PROMPT_TOKENS = 2100


class Results:
    """The results file and the raw cells beside it. Writing is atomic."""

    def __init__(self, path: Path, fresh: bool) -> None:
        self.path, self._fresh, self._source = path, fresh, source()

    def cell(self, name: str, plan: dict[str, Any], run: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """A stored cell of the same code and plan, or a new one."""
        place = self.path.parent / "raw" / f"{self.path.stem}-{name}.json"
        if not self._fresh and place.is_file():
            found: dict[str, Any] = json.loads(place.read_text("utf-8"))
            if found.get("plan") == plan and found["source"]["src"] == self._source["src"]:
                print(f"{name}: taken from {place}", flush=True)
                return found
        began = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        load = os.getloadavg()
        cell = run()
        facts = {"plan": plan, "source": self._source, "machine": machine(), "began": began}
        cell.update(facts, load_before=load, load_after=os.getloadavg())
        write_json(place, cell)
        return cell

    def merge(self, arm: str, cells: list[dict[str, Any]], figures: dict[str, Any]) -> None:
        """Put one arm's figures into the file; other arms stay as they are."""
        document = json.loads(self.path.read_text("utf-8")) if self.path.is_file() else {"arms": {}}
        about = ("plan", "source", "machine", "began", "load_before", "load_after", "wall_s")
        runs = [{name: cell.get(name) for name in about} for cell in cells]
        document["arms"][arm] = {"figures": figures, "runs": runs}
        write_json(self.path, document)


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Atomically: a file is whole or was not written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".tmp")
    draft.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", "utf-8")
    draft.replace(path)


# ── the arms ──────────────────────────────────────────────────────────────────────────────────────────
def learn(results: Results, options: argparse.Namespace, arm: str) -> None:
    """Also the control (`arm` random): the same questions, reactions that mean nothing."""
    cells = []
    for seed in options.seed:
        plan = LearnPlan(
            arm, seed, options.interactions, options.think, wish=options.wish, model=options.model
        )
        plan = replace(plan, prompts=20, repeats=1, interactions=9) if options.quick else plan
        name = f"{arm}-{seed}" if options.wish == "two_sentences" else f"{arm}-{options.wish}-{seed}"
        cells.append(results.cell(name, plan.json(), lambda p=plan: run_learning(p, options.keep)))
        shown = arm if options.wish == "two_sentences" else f"{arm}-{options.wish}"
        figures = learning_figures(cells, options.wish)
        results.merge(shown, cells, figures)
    print_arm(shown, figures)


def longprompt(results: Results, options: argparse.Namespace, arm: str) -> None:
    """How long an update takes when every prompt has 2,100 tokens, its own ones, or (arm `agentprompt`) those of one
    system message. Nothing is evaluated."""
    count = 9 if options.quick else 20
    plan = LearnPlan(arm, 0, count, options.think, note_tokens=LONG_PROMPT_TOKENS, model=options.model)
    plan = replace(plan, shared_notes=arm == "agentprompt")
    plan = replace(plan, repeats=0)
    cell = results.cell(arm, plan.json(), lambda: run_learning(plan, options.keep))
    times = serving_times(cell)
    figures = {
        "prompt_tokens": summary([float(t["prompt_tokens"]) for t in cell["talk"] if t["prompt_tokens"]]),
        "seconds_to_serve": times,
        "full_batches": summary([t["seconds"] for t in times if t["full"]]),
        "failed_requests": cell["failed_requests"],
    }
    results.merge(arm, [cell], figures)
    print_arm(arm, figures)


def latency(results: Results, options: argparse.Namespace, arm: str) -> None:
    """The same clients with training and without."""
    cells = []
    for training in (True, False):
        plan = LatencyPlan(training, model=options.model)
        plan = replace(plan, requests=40, updates=1, limit_s=300.0) if options.quick else plan
        name = arm if training else f"{arm}-quiet"
        cells.append(results.cell(name, asdict(plan), lambda p=plan: run_latency(p)))
    figures = latency_figures(*cells)
    results.merge(arm, cells, figures)
    print_arm(arm, figures)


def kill(results: Results, options: argparse.Namespace, arm: str) -> None:
    plan = KillPlan(seed=options.seed[0], kills=1 if options.quick else 5, model=options.model)
    cell = results.cell(arm, plan.json(), lambda: run_kills(plan))
    figures = kill_figures([cell])
    results.merge(arm, [cell], figures)
    print_arm(arm, figures)


RUN: dict[str, Callable[[Results, argparse.Namespace, str], None]] = {
    "learn": learn,
    "random": learn,
    "latency": latency,
    "longprompt": longprompt,
    "agentprompt": longprompt,
    "kill": kill,
}


def options_of(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.first_light", description=__doc__.split("\n")[0])
    parser.add_argument("--arm", choices=("all", *ARMS), default="all")
    parser.add_argument("--seeds", type=int, default=3, help="how many seeds (0, 1, …)")
    parser.add_argument("--seed", type=int, action="append", help="this seed only; may be given again")
    parser.add_argument("--interactions", type=int, default=48)
    parser.add_argument("--think", type=float, default=3.0, help="seconds between a user's messages")
    parser.add_argument("--wish", default="two_sentences", help="another wish of bench/users, for learn")
    parser.add_argument("--model", default="starter", help="as for `instar serve --model`")
    parser.add_argument("--quick", action="store_true", help="a smoke run, written beside the real results")
    parser.add_argument("--fresh", action="store_true", help="run cells again that are stored already")
    parser.add_argument(
        "--keep", type=Path, help="put the data folders of learn and random here and keep them"
    )
    parser.add_argument("--results", type=Path, help=f"default: {RESULTS.name} in bench/results")
    options = parser.parse_args(arguments)
    options.seed = options.seed or list(range(options.seeds))
    if options.quick:
        options.seed, options.think = options.seed[:1], min(options.think, 0.5)
    if options.results is None:
        options.results = RESULTS.with_name("quick.json") if options.quick else RESULTS
    return options


def main(arguments: list[str] | None = None) -> None:
    options = options_of(arguments)
    results = Results(options.results, options.fresh)
    for arm in ARMS if options.arm == "all" else (options.arm,):
        RUN[arm](results, options, arm)
    print(f"\nwritten to {options.results}")


if __name__ == "__main__":
    main()
