"""The parent's side of the compute child. Imports no torch: a light process at normal priority."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from pathlib import Path
from typing import Any

import structlog

from instar.errors import TrainingError
from instar.records import UpdateJob, UpdateResult
from instar.trainers.jobs import result_from, write_job
from instar.trainers.memory import DEFAULT_MIB, memory_for
from instar.trainers.share import Guarantee, can_leave_idle, nice_for

log = structlog.get_logger()

CLOSE_AFTER_S = 5.0


class ProcessTrainer:
    """Implements `ports.Trainer`: one child that keeps the model in memory, started again when it dies."""

    def __init__(
        self,
        model_dir: Path,
        threads: int = 1,
        *,
        idle: bool = True,
        min_share: float = 0.1,
        memory_mib: int = DEFAULT_MIB,
    ) -> None:
        """`idle`: compute only in the time that nobody else wants, but for `min_share` of a core. Where nothing is
        served, there is no need."""
        self._model_dir = str(model_dir)
        self._memory_mib = memory_mib
        way = _way(min_share) if idle else "normal"
        self._min_share = min_share if way == "idle" else 0.0
        self._command = [
            sys.executable,
            "-m",
            "instar.trainers.child",
            str(threads),
            way,
            str(nice_for(min_share)),
        ]
        self._child: subprocess.Popen[str] | None = None
        self._one_at_a_time = threading.Lock()

    @cached_property
    def longest(self) -> int:
        """Tokens of the longest prompt plus response that fits into the memory. Raises TrainingError."""
        return memory_for(Path(self._model_dir), self._memory_mib).longest()

    def run(self, job: UpdateJob) -> UpdateResult:
        """Blocks until the update is computed. Raises TrainingError if it could not be, or the child died."""
        shutil.rmtree(job.out_dir, ignore_errors=True)  # what a killed attempt may have left
        return result_from(self._send("job", job))

    def look_ahead(self, job: UpdateJob) -> None:
        """Let the child do what it can before the batch is full. Raises TrainingError as `run` does."""
        self._send("ahead", job)

    def _send(self, what: str, job: UpdateJob) -> Any:
        if job.model_dir != self._model_dir:
            raise TrainingError(f"the job is for the model in {job.model_dir}, not {self._model_dir}")
        out = Path(job.out_dir)
        folder = out.with_name(f"{out.name}.job")
        write_job(folder, job)
        try:
            with self._one_at_a_time:
                line = self._ask(json.dumps({what: str(folder)}))
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        document = json.loads(line)
        if "error" in document:
            raise TrainingError(document["error"])
        return document["result"]

    def _ask(self, line: str) -> str:
        child = self._alive()
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            child.stdin.write(line + "\n")
            child.stdin.flush()
            with self._guaranteed(child.pid):
                answer = child.stdout.readline()
        except OSError:  # it died before it took the job
            answer = ""
        if not answer.endswith("\n"):
            self._child = None
            code = _end(child)
            raise TrainingError(f"the compute child ended with code {code} in the middle of an update")
        return answer

    def _guaranteed(self, pid: int) -> AbstractContextManager[None]:
        return Guarantee(pid, self._min_share).held() if self._min_share else nullcontext()

    def _alive(self) -> subprocess.Popen[str]:
        if self._child is not None and self._child.poll() is not None:
            log.warning("compute_child_died", code=self._child.returncode)
            _end(self._child)
            self._child = None
        if self._child is None:
            self._child = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                encoding="utf-8",
                start_new_session=True,  # a scheduling group of its own, which it may then put last
            )
        return self._child

    def close(self) -> None:
        """End the child. An update in the middle is lost, and will be computed again."""
        child, self._child = self._child, None
        if child is not None:
            child.kill()
            _end(child)


def _way(min_share: float) -> str:
    """How the child yields: in the idle class, unless it has a share to get there and may not leave it for that."""
    if not hasattr(os, "SCHED_IDLE"):
        return "nice"
    return "idle" if not min_share or can_leave_idle() else "nice"


def _end(child: subprocess.Popen[str]) -> int:
    """Make sure that it is gone, close its pipes, and return its exit code."""
    for pipe in (child.stdin, child.stdout):
        if pipe is not None:
            try:
                pipe.close()
            except OSError:
                log.debug("pipe_already_broken")
    try:
        return child.wait(timeout=CLOSE_AFTER_S)
    except subprocess.TimeoutExpired:
        child.kill()
        return child.wait()
