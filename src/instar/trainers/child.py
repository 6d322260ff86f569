"""The compute child: `python -m instar.trainers.child THREADS normal|idle|nice NICE`.

It reads one JSON line per job from stdin (`{"job": FOLDER}`) and answers each with one line on stdout
(`{"result": {...}}` or `{"error": "..."}`); a job sent as `{"ahead": FOLDER}` is only looked at ahead of time
(`{"result": null}`). It lives in the idle scheduling class, so that it computes in the time which serving leaves
(trainers/share.py keeps it from starving); it never opens the store, since an idle process that holds the write lock
would stall every chat. When its stdin ends, its parent is gone and it ends at once.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import sys
import threading
from pathlib import Path
from typing import IO

from instar.errors import InstarError
from instar.trainers.heap import keep_freed


def yield_to_others(way: str, nice: int) -> None:
    """Take only the time that nobody else wants (`way` is "idle"), or hardly more (`nice`).

    Linux with autogroups shares the processor between sessions first: an idle process alone in its session would
    get as much as the engine in another. So the session is made `nice` too: 10 means about a tenth of what a busy
    session at 0 gets, too little to be felt and enough not to starve. Needs a session of our own.
    """
    if way == "idle":
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    else:
        os.nice(nice)
    with contextlib.suppress(OSError):  # no such file: a kernel without autogroups
        Path("/proc/self/autogroup").write_text(str(nice))


def bound_threads(threads: int) -> None:
    """For the libraries that count cores when they are loaded. torch is told on its own."""
    os.environ.update(
        dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), str(threads))
    )


def read_jobs(source: IO[str], jobs: queue.SimpleQueue[str]) -> None:
    """Pass lines on; at the end of the stream the parent is gone, and nothing computed would find a reader."""
    for line in source:
        jobs.put(line)
    os._exit(0)


def claim_stdout() -> IO[str]:
    """The protocol's own stream. Whatever a library prints goes to stderr from now on."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)
    return answers


def answer(line: str) -> dict[str, object]:
    """Compute one job. Errors raised on purpose are answers; anything else ends the child."""
    from instar.trainers.jobs import read_job, result_document
    from instar.trainers.local import compute, look_ahead

    ((what, folder),) = json.loads(line).items()
    try:
        job = read_job(Path(folder))
        if what == "ahead":
            look_ahead(job)
            return {"result": None}
        return {"result": result_document(compute(job))}
    except InstarError as error:
        return {"error": str(error)}


def main(arguments: list[str]) -> None:
    threads, way, nice = int(arguments[0]), arguments[1], int(arguments[2])
    answers = claim_stdout()
    if way != "normal":
        yield_to_others(way, nice)
    bound_threads(threads)
    keep_freed()
    jobs: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=read_jobs, args=(sys.stdin, jobs), name="lifeline", daemon=True).start()
    import torch

    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(True)
    while True:
        answers.write(json.dumps(answer(jobs.get())) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
