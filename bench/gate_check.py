"""Does the gate see what is broken, and let the rest pass? Forty adapters made from seeds, half of each, in two sets.

    python -m bench.gate_check --model DIR [--set tuned] [--only off] [--keep DIR]

Bad ones answer nothing, never stop, lost the stop token, are far from base, are not finite, speak of something else,
go round in circles, or are noise. Harmless ones are little perturbations, lessons in base's own words, and styles:
short, formal, long, plain. What teaches them are base's own answers to training questions, which are no canaries.
Beside the gate's verdict stands what the gate does not see: the share of held-out questions whose answer is relevant
by the embedding (see `bench.measures`). The cases are in bench/gate_cases.py.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from bench.gate_adapters import Workshop
from bench.gate_cases import SETS, Case
from bench.measures import relevant
from bench.prompts import HELDOUT
from bench.stats import summary
from instar.config import GateSettings
from instar.trainers.gate import Gate

RESULTS = Path(__file__).parent / "results"


def heldout_relevant(workshop: Workshop) -> float:
    answers = workshop.ask(HELDOUT, seed=9000, max_tokens=80)
    flags = [relevant(q, text, HELDOUT) for q, (text, _) in zip(HELDOUT, answers, strict=True)]
    return round(sum(flags) / len(flags), 3)


def commit() -> str:
    found = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    return found.stdout.strip()


def check(workshop: Workshop, gate: Gate, case: Case, keep: Path, heldout: bool) -> dict[str, Any]:
    """Make the adapter (or take the kept one), judge it, say how long that took in processor time."""
    folder = keep / case.name.replace(" ", "_").replace(":", "")
    if folder.is_dir():
        workshop.policy.load(folder)
    else:
        case.make(workshop, folder)
        folder.mkdir(parents=True, exist_ok=True)
        workshop.policy.save(folder)
    began = time.process_time()
    report = gate.judge(GateSettings().model_dump())  # type: ignore[call-arg]
    gate_s = time.process_time() - began
    measured = heldout and report.checks.get("finite")
    return {
        "kind": case.kind,
        "detail": case.detail,
        "bad": case.bad,
        "passed": report.passed,
        "right": report.passed != case.bad,
        "why": report.why,
        "heldout_relevant": heldout_relevant(workshop) if measured else None,
        "gate_cpu_s": round(gate_s, 1),
        "checks": report.checks,
    }


def show(row: dict[str, Any]) -> None:
    mark = "ok   " if row["right"] else "WRONG"
    verdict = "passed" if row["passed"] else "blocked"
    held = "" if row["heldout_relevant"] is None else f"held-out relevant {row['heldout_relevant']:.2f}"
    print(
        f"{mark} {'bad' if row['bad'] else 'harmless':8} {row['kind']:18} {row['detail']:10} {verdict:8}"
        f"{row['gate_cpu_s']:5.1f} s  {held:24} {row['why']}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--set", choices=tuple(SETS), default="fresh", help="default: fresh")
    parser.add_argument("--only", help="cases whose name contains this; the other rows of the results stay")
    parser.add_argument("--keep", type=Path, help="folder where adapters are kept and found again")
    parser.add_argument("--no-heldout", action="store_true", help="leave the held-out questions out")
    parser.add_argument("--out", type=Path, help="default: gate.json or gate_tuned.json in bench/results")
    options = parser.parse_args()
    torch.set_num_threads(1)
    out = options.out or RESULTS / ("gate.json" if options.set == "fresh" else f"gate_{options.set}.json")
    workshop, cases = Workshop(options.model), SETS[options.set]()
    gate = Gate(workshop.policy)
    keep = options.keep or Path(tempfile.mkdtemp(prefix="instar-gate-"))
    rows: dict[str, dict[str, Any]] = {}
    if options.only is not None and out.is_file():
        rows = {f"{r['kind']}: {r['detail']}": r for r in json.loads(out.read_text("utf-8"))["cases"]}
    for case in cases:
        if options.only is None or options.only in case.name:
            rows[case.name] = check(workshop, gate, case, keep, not options.no_heldout)
            show(rows[case.name])
            write(out, [rows[c.name] for c in cases if c.name in rows])
    if len(rows) == len(cases):
        print(
            "blocked {} of {} bad adapters, passed {} of {} harmless ones".format(*tally(list(rows.values())))
        )


def tally(rows: Sequence[dict[str, Any]]) -> tuple[int, int, int, int]:
    """Bad adapters that were blocked, bad ones, harmless ones that passed, harmless ones."""
    bad, harmless = ([r for r in rows if r["bad"] is wanted] for wanted in (True, False))
    return sum(not r["passed"] for r in bad), len(bad), sum(r["passed"] for r in harmless), len(harmless)


def write(out: Path, rows: Sequence[dict[str, Any]]) -> None:
    blocked, bad, passed, harmless = tally(rows)
    facts = {
        "commit": commit(),
        "blocked": [blocked, bad],
        "passed": [passed, harmless],
        "gate_cpu_s": summary([r["gate_cpu_s"] for r in rows]),
        "cases": rows,
    }
    out.write_text(json.dumps(facts, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
