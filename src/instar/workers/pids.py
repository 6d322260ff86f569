"""The supervisor's public record: which process is which, and how often each was started again."""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path
from typing import Any

import psutil

from instar.workers.state import write_private

FILE_NAME = "pids.json"


def created_at(pid: int) -> float | None:
    """When a process began, in wall seconds; None when there is no such process (or it is a zombie)."""
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        return float(process.create_time())
    except psutil.Error:
        return None


def is_same_process(pid: int, created: float | None) -> bool:
    """Whether `pid` still is the process that was recorded, and not a later one with its number."""
    now = created_at(pid)
    return now is not None and created is not None and abs(now - created) < 1.0


def write_pids(run_dir: Path, record: dict[str, Any]) -> None:
    write_private(run_dir / FILE_NAME, json.dumps(record, indent=1))


def read_pids(run_dir: Path) -> dict[str, Any]:
    """The last record, empty when there is none. Each loop gets `alive`, looked up now."""
    try:
        record = json.loads((run_dir / FILE_NAME).read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    if not isinstance(record, dict):
        return {}
    for loop in record.get("loops", {}).values():
        loop["alive"] = bool(loop.get("pid")) and is_same_process(loop["pid"], loop.get("created"))
    return record


def end_orphans(run_dir: Path, patience_s: float) -> list[str]:
    """End children of an earlier supervisor that was killed. Returns the names of those that had to be.

    They are ending already (their lifeline broke) and get `patience_s` seconds for it: two trainers on one
    store, or an old gateway on our port, would do harm.
    """
    loops = read_pids(run_dir).get("loops", {})
    left = {name: loop for name, loop in loops.items() if loop["alive"]}
    deadline = time.monotonic() + patience_s
    while left and time.monotonic() < deadline:
        time.sleep(0.1)
        left = {name: loop for name, loop in left.items() if is_same_process(loop["pid"], loop["created"])}
    for loop in left.values():
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(loop["pid"])
            process.kill()
            process.wait(timeout=5)
    return sorted(left)
