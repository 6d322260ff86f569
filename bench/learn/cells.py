"""Stored cells. A cell is run once for the same plan and the same code, by one process at a time.

bench/results/cells/learn-fast-oracle-combined-plain-0.json.gz        a finished cell, kept in the repository
bench/results/cells/learn-fast-oracle-combined-plain-0.json.gz.lock   held while it is run; freed if its runner dies
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from bench.learn.plan import Plan
from bench.server import machine, source

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "bench" / "results"
CELLS = RESULTS / "cells"
PRODUCT = ("src/instar",)
_CELL_MODULES = ("api", "arms", "cell", "fast", "full_weights", "inside", "plan", "probe", "published")
BENCHMARK = (
    "bench/data/wishes.toml",
    *(f"bench/learn/{name}.py" for name in _CELL_MODULES),
    *(f"bench/{name}.py" for name in ("measures", "prompts", "run_code", "talk", "tasks", "text")),
    "bench/users",
)
"""What decides a cell's content beside its plan. The checks of wishes are applied to stored answers anew."""

THERE, STALE, RUNNING, MISSING = "there", "older code", "running", "missing"

Cell = dict[str, Any]


def fingerprint(*places: str, root: Path = ROOT) -> str:
    """12 hex digits of the sha256 over the names and bytes of all source and data files, committed or not."""
    digest = hashlib.sha256()
    for place in places:
        path = root / place
        files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
        for file in files:
            if "__pycache__" not in file.parts:
                digest.update(f"{file.relative_to(root)}\0{file.stat().st_size}\0".encode())
                digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


def code() -> dict[str, str]:
    """The commit, for people, and the fingerprints of what ran."""
    return {
        "commit": source()["commit"],
        "src": fingerprint(*PRODUCT),
        "bench": fingerprint(*BENCHMARK),
    }


@dataclass(frozen=True, slots=True)
class Cells:
    """Cells in a folder. `code` is what runs now; `fresh` runs again what is there."""

    folder: Path
    code: dict[str, str]
    fresh: bool = False

    @staticmethod
    def here(folder: Path = CELLS, *, fresh: bool = False) -> Cells:
        folder.mkdir(parents=True, exist_ok=True)
        return Cells(folder, code(), fresh)

    def path(self, plan: Plan) -> Path:
        return self.folder / f"learn-{plan.name}.json.gz"

    def load(self, plan: Plan) -> Cell | None:
        """The stored cell of this plan, whatever code made it; None if there is none of just this plan."""
        path = self.path(plan)
        if not path.is_file():
            return None
        cell: Cell = json.loads(gzip.decompress(path.read_bytes()))
        return cell if cell.get("plan") == plan.json() else None

    def is_current(self, cell: Cell) -> bool:
        return all(cell["code"][name] == self.code[name] for name in ("src", "bench"))

    def state(self, plan: Plan) -> str:
        if self._is_held(plan):
            return RUNNING
        cell = self.load(plan)
        if cell is None:
            return MISSING
        return THERE if self.is_current(cell) else STALE

    def _is_held(self, plan: Plan) -> bool:
        place = self._lock_path(plan)
        if not place.exists():
            return False
        try:
            with FileLock(place, timeout=0):
                return False
        except Timeout:
            return True

    def _lock_path(self, plan: Plan) -> Path:
        return self.path(plan).with_suffix(".gz.lock")

    def ensure(self, plan: Plan, run: Callable[[Plan], Cell]) -> Cell | None:
        """The stored cell, or a new one. None if another process is running it now."""
        with self._claimed(plan) as mine:
            if not mine:
                return None
            found = self.load(plan)
            if found is not None and self.is_current(found) and not self.fresh:
                return found
            began = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            load = os.getloadavg()
            cell = {"plan": plan.json(), "code": self.code, "machine": machine(), "began": began, **run(plan)}
            cell.update(load_before=load, load_after=os.getloadavg())
            self._write(self.path(plan), cell)
            return cell

    @contextmanager
    def _claimed(self, plan: Plan) -> Iterator[bool]:
        """Hold the cell's lock, which the system frees if this process dies; False if somebody else does."""
        lock = FileLock(self._lock_path(plan), timeout=0)
        try:
            lock.acquire()
        except Timeout:
            yield False
            return
        try:
            yield True
        finally:
            lock.release()

    @staticmethod
    def _write(path: Path, cell: Cell) -> None:
        draft = path.with_suffix(".tmp")
        text = json.dumps(cell, ensure_ascii=False) + "\n"
        draft.write_bytes(gzip.compress(text.encode(), mtime=0))  # the same cell gives the same bytes
        draft.replace(path)
