"""The compute child: another process, restarted when it dies, gone when its parent is, no torch in the parent."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from instar.errors import TrainingError
from instar.records import GateReport, JudgedAnswer, UpdateResult
from instar.trainers import child, process
from instar.trainers.jobs import read_job, result_document, result_from, write_job
from instar.trainers.policy import ADAPTER_FILE
from instar.trainers.process import ProcessTrainer
from tests.kit.samples import job, weighted
from tests.kit.tiny_model import write_tiny_model

LESSON = {"distill_T": [0.25] * 4, "teacher_prompt_ids": [30, 40, 50, 90]}


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny"))


def test_a_job_survives_the_way_to_the_child(tmp_path: Path) -> None:
    sent = job(tmp_path, tmp_path / "out", [weighted(**LESSON), weighted("b", abstained={"pg": "no_score"})])
    sent = replace(sent, history=[JudgedAnswer("ann", "Why?", "So.", -1, "longer")])
    file = write_job(tmp_path / "job", sent)
    assert read_job(tmp_path / "job") == sent
    assert file.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("text", [None, "", "{", "[]", "{}", '{"samples": [{"turn_id": 1}]}'])
def test_a_damaged_job_is_an_error_with_its_path(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "job.json").write_text(text, "utf-8")
    with pytest.raises(TrainingError, match=r"job\.json is no job"):
        read_job(tmp_path)


@pytest.mark.parametrize("gate", [None, GateReport(False, "kl is 3, the bound is 0.5", {"kl": {"value": 3}})])
def test_a_result_survives_the_way_back(gate: GateReport | None) -> None:
    result = UpdateResult("u1", ok=True, metrics={"lr": 1e-4}, gate=gate)
    assert result_from(json.loads(json.dumps(result_document(result)))) == result


def test_what_is_no_result_is_an_error() -> None:
    with pytest.raises(TrainingError, match="no result"):
        result_from({"gate": None, "surprise": 1})


def test_the_parents_side_imports_no_torch() -> None:
    code = "import sys, instar.trainers.process; sys.exit(any(m in sys.modules for m in ('torch', 'peft')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.timeout(200)
def test_the_child_computes_refuses_dies_and_comes_back(model_dir: Path, tmp_path: Path) -> None:
    """One test for one child's life: starting it costs seconds."""
    trainer = ProcessTrainer(model_dir, idle=False)
    try:
        first = job(model_dir, tmp_path / "v1", [weighted(**LESSON)])
        trainer.look_ahead(first)
        assert list(tmp_path.iterdir()) == []
        result = trainer.run(first)
        assert result.ok
        assert result.gate is not None
        bytes_before = (tmp_path / "v1" / ADAPTER_FILE).read_bytes()
        assert sorted(p.name for p in tmp_path.iterdir()) == ["v1"]  # the job's folder is gone

        running = psutil.Process(trainer._child.pid)  # type: ignore[union-attr]
        with pytest.raises(TrainingError, match="more than max_tokens"):
            trainer.run(job(model_dir, tmp_path / "v2", [weighted(prompt_ids=[5] * 900)]))
        assert running.is_running()

        running.send_signal(signal.SIGKILL)
        running.wait(10)
        assert trainer.run(first).ok
        assert (tmp_path / "v1" / ADAPTER_FILE).read_bytes() == bytes_before
    finally:
        trainer.close()
    assert trainer._child is None


@pytest.mark.timeout(100)
def test_a_child_that_dies_in_the_middle_is_a_training_error(model_dir: Path, tmp_path: Path) -> None:
    trainer = ProcessTrainer(model_dir)
    trainer._command = [sys.executable, "-c", "import sys; sys.stdin.readline(); sys.exit(7)"]
    with pytest.raises(TrainingError, match="ended with code 7"):
        trainer.run(job(model_dir, tmp_path / "v1", [weighted(**LESSON)]))
    trainer._command = [sys.executable, "-c", 'print(\'{"error": "no memory"}\', flush=True); input()']
    with pytest.raises(TrainingError, match="no memory"):
        trainer.run(job(model_dir, tmp_path / "v1", [weighted(**LESSON)]))
    trainer.close()


@pytest.mark.parametrize(("way", "policy", "nice"), [("idle", "SCHED_IDLE", 0), ("nice", "SCHED_OTHER", 13)])
@pytest.mark.skipif(not hasattr(os, "SCHED_IDLE"), reason="the idle class is Linux's")
def test_the_child_takes_only_the_time_that_nobody_wants(way: str, policy: str, nice: int) -> None:
    code = (
        f"import os, instar.trainers.child as c; before = os.nice(0); c.yield_to_others({way!r}, 13);"
        f"print(os.sched_getscheduler(0) == os.{policy}, os.nice(0) == min(19, before + {nice}))"
    )
    told = subprocess.run(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        start_new_session=True,  # it puts its whole session last, and the tests' own must not be that
    )
    assert told.stdout.split() == ["True", "True"]


@pytest.mark.parametrize(
    ("may", "share", "expected"),
    [
        (True, 0.1, ["idle", "10"]),
        (True, 0.05, ["idle", "13"]),
        (False, 0.1, ["nice", "10"]),  # once in the idle class it could never be helped out of it
        (False, 0.0, ["idle", "19"]),
    ],
)
@pytest.mark.skipif(not hasattr(os, "SCHED_IDLE"), reason="the idle class is Linux's")
def test_how_the_child_yields_depends_on_what_it_is_guaranteed(
    monkeypatch: pytest.MonkeyPatch, may: bool, share: float, expected: list[str]
) -> None:
    monkeypatch.setattr(process, "can_leave_idle", lambda: may)
    trainer = ProcessTrainer(Path("m"), min_share=share)
    assert trainer._command[-2:] == expected
    assert trainer._min_share == (share if may else 0.0)
    assert ProcessTrainer(Path("m"), idle=False)._command[-2:-1] == ["normal"]


def test_every_library_is_told_how_many_threads_it_may_have(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    for name in names:
        monkeypatch.setenv(name, "64")
    child.bound_threads(2)
    assert [os.environ[name] for name in names] == ["2"] * 3


def test_a_job_for_another_model_is_refused(model_dir: Path, tmp_path: Path) -> None:
    trainer = ProcessTrainer(model_dir)
    wrong = replace(job(model_dir, tmp_path / "v1", [weighted(**LESSON)]), model_dir="/somewhere/else")
    with pytest.raises(TrainingError, match="not"):
        trainer.run(wrong)


@pytest.mark.timeout(100)
def test_the_child_goes_when_its_parent_does(model_dir: Path) -> None:
    code = (
        "import os, sys, subprocess\n"
        "child = subprocess.Popen([sys.executable, '-m', 'instar.trainers.child', '1', 'normal', '0'],"
        " stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)\n"
        "print(child.pid, flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    told = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=False, timeout=60)
    pid = int(told.stdout)
    deadline = time.monotonic() + 60
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline, "the child outlived its parent"
        time.sleep(0.1)
