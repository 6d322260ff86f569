"""How good is the judge's chain on labelled cases? `python bench/judge_cases.py FILE [--json OUT] [--show]`."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from instar.config import JudgeSettings
from instar.judges import build_chain
from instar.judges.calibration import (
    Case,
    as_item,
    by_language,
    by_link,
    figures,
    read_cases,
)
from instar.records import Judgement

COLUMNS = ("cases", "accuracy", "wrong_sign", "coverage", "accuracy_spoken", "alarms")


def measure(cases: list[Case]) -> tuple[list[Judgement], dict[str, Any]]:
    chain = build_chain(JudgeSettings())
    judgements, spent_ms = [], []
    for number, case in enumerate(cases):
        before = time.process_time()
        judgements.append(chain.judge(as_item(case, number), now=0.0))
        spent_ms.append((time.process_time() - before) * 1e3)
    spent_ms.sort()
    return judgements, {
        "notes": chain.notes,
        "all": figures(cases, judgements),
        "links": by_link(cases, judgements),
        "languages": by_language(cases, judgements),
        "cpu_ms_median": round(spent_ms[len(spent_ms) // 2], 2),
        "cpu_ms_max": round(spent_ms[-1], 2),
    }


def table(report: dict[str, Any]) -> str:
    rows = {"all": report["all"], **report["links"], **report["languages"]}
    lines = [f"{'':10}" + "".join(f"{name:>17}" for name in COLUMNS)]
    for name, values in rows.items():
        cells = "".join(f"{_cell(values[column]):>17}" for column in COLUMNS)
        lines.append(f"{name or '–':10}{cells}")
    lines.append(f"label → verdict: {json.dumps(report['all']['confusion'])}")
    lines.append(
        f"processor time a case: median {report['cpu_ms_median']} ms, most {report['cpu_ms_max']} ms"
    )
    return "\n".join([*report["notes"], *lines])


def _cell(value: float | int | None) -> str:
    return "–" if value is None else str(value) if isinstance(value, int) else f"{value:.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--json", type=Path, help="write the figures there")
    parser.add_argument(
        "--show", action="store_true", help="print the cases that were not judged as labelled"
    )
    args = parser.parse_args()
    cases = read_cases(args.file)
    judgements, report = measure(cases)
    print(table(report))
    if args.show:
        for case, judgement in zip(cases, judgements, strict=True):
            if judgement.score != case.label:
                print(f"{case.label:+d} → {judgement.score} ({judgement.link}) {case.next_text[:100]!r}")
    if args.json:
        args.json.write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n", "utf-8")


if __name__ == "__main__":
    main()
