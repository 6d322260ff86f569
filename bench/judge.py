"""How good are those who read reactions, on cases that they were not made from?

    python -m bench.judge                           the files of bench/data that are there
    python -m bench.judge mine.jsonl                these, and one more
    python -m bench.judge --show                    and the cases that were not judged as labelled
    python -m bench.judge --set judge.url=http://localhost:11434/v1 --set judge.model=qwen3:8b

Every judge is asked about every case, so that each has figures of its own; the chain's are those of the first that
speaks. With `--in-order` those behind it are not asked, which spares a model most of the work. `instar judge cases`
does the same for one file.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from rich.console import Console

from bench.server import machine, source
from instar.cli.judge import print_report
from instar.cli.serve import nested
from instar.compose import build_judges
from instar.config import Settings, load_settings
from instar.errors import UserError
from instar.judges import calibration

DATA = Path(__file__).parent / "data"
FILES = ("judge_frozen.jsonl", "reactions_heldout.jsonl")
RESULTS = Path(__file__).parent / "results" / "judge.json"
NO_DATA_DIR = Path(__file__).parent / "cache" / "judge"
"""Settings come from defaults, the environment and `--set`, not from the file of whoever runs this."""


def measure(path: Path, settings: Settings, *, each: bool, show: bool, console: Console) -> dict[str, Any]:
    cases = calibration.read_cases(path)
    with closing(build_judges(settings, None)) as chain:
        readings = calibration.judge_cases(chain, cases, each=each)
        found = {"file": path.name, **chain.facts(), **calibration.report(readings)}
    console.rule(path.name)
    print_report(console, found)
    cpu_ms = found["cpu_ms"]
    console.print(f"processor time a case: median {cpu_ms['median']} ms, most {cpu_ms['max']} ms")
    for reading in readings if show else []:
        if reading.score != reading.case.label:
            told = f"{reading.case.label:+d} → {reading.score} {reading.links}"
            console.print(f"{told} {reading.case.next_text[:100]!r}", markup=False)
    return found


def options_of(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.judge", description=__doc__.split("\n")[0])
    parser.add_argument("files", type=Path, nargs="*", help="more files of cases")
    parser.add_argument("--set", dest="given", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--in-order", action="store_true", help="ask nobody after one that spoke")
    parser.add_argument(
        "--show", action="store_true", help="print the cases that were not judged as labelled"
    )
    parser.add_argument("--results", type=Path, default=RESULTS)
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    options = options_of(arguments)
    console = Console(width=110, highlight=False)
    ours = [DATA / name for name in FILES]
    for path in ours:
        if not path.is_file():
            console.print(f"{path.name} is not there, and is left out")
    document: dict[str, Any] = {
        "source": source(),
        "machine": machine(),
        "began": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "load_before": os.getloadavg(),
    }
    try:
        settings = load_settings(NO_DATA_DIR, nested(options.given))
        document["judge"] = settings.judge.model_dump(mode="json", exclude={"key"})
        document["files"] = [
            measure(path, settings, each=not options.in_order, show=options.show, console=console)
            for path in [*(path for path in ours if path.is_file()), *options.files]
        ]
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    options.results.parent.mkdir(parents=True, exist_ok=True)
    options.results.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", "utf-8")
    print(f"written to {options.results}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
