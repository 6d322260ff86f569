"""Part e: memory of all processes together, the judge's included, while four streams hold 8,192 tokens."""

from __future__ import annotations

import threading
import time
from typing import Any

import psutil

from bench.server import Server
from bench.serving.goals import Figures, Plan, Row
from bench.serving.houses import Texts, ours, pss_bytes, tree
from bench.serving.load import Endpoint, block

STREAMS, PROMPT, TOKENS, MINUTES = 4, 1_920, 128, 5.0
EVERY_S = 2.0


def run(plan: Plan) -> Figures:
    texts = Texts(plan.model_dir)
    minutes, prompt = (0.3, 200) if plan.is_quick else (MINUTES, PROMPT)
    with ours(plan.work / "memory", plan.model_dir, LOG_LEVEL="warning") as server:
        to = Endpoint("ours", server.url, server.key, "instar")
        samples: list[dict[str, int]] = []
        over = threading.Event()
        watch = threading.Thread(target=_watch, args=(server, over, samples))
        watch.start()
        try:
            deadline = time.monotonic() + 60 * minutes
            while time.monotonic() < deadline:
                plan.step(f"memory: {deadline - time.monotonic():.0f} s to go")
                replies = block(
                    to,
                    STREAMS,
                    1,
                    lambda _: {"prompt": texts.of(prompt), "max_tokens": TOKENS, "temperature": 0.7},
                )
                if failed := [reply.error for reply in replies if reply.error]:
                    raise RuntimeError(f"a request failed: {failed[0]}")
        finally:
            over.set()
            watch.join()
    return {"streams": STREAMS, "minutes": minutes, **summary(samples)}


def _watch(server: Server, over: threading.Event, samples: list[dict[str, int]]) -> None:
    names = {fact["pid"]: name for name, fact in server.status()["loops"].items() if fact.get("pid")}
    while not over.wait(EVERY_S):
        found: dict[str, int] = {}
        for process in tree(server.pid):
            try:
                name = names.get(process.pid) or names.get(process.ppid(), "supervisor")
                found[name] = found.get(name, 0) + pss_bytes(process.pid)
            except psutil.Error:
                continue  # it ended between two looks
        samples.append(found)


def summary(samples: list[dict[str, int]]) -> dict[str, Any]:
    """Peaks in MiB; growth is the mean of the last third of the run by that of the second."""
    sums = [sum(sample.values()) for sample in samples]
    third = len(sums) // 3
    middle, last = sums[third : 2 * third], sums[2 * third :]
    names = sorted({name for sample in samples for name in sample})
    return {
        "peak_mib": round(max(sums) / 2**20),
        "by_process_mib": {n: round(max(s.get(n, 0) for s in samples) / 2**20) for n in names},
        "growth": round(sum(last) / len(last) / (sum(middle) / len(middle)) - 1, 4) if third else None,
    }


def rows(found: Figures) -> list[Row]:
    parts = ", ".join(f"{name} {size}" for name, size in found["by_process_mib"].items())
    return [
        Row("memory of all processes, PSS", found["peak_mib"], 3 * 1024, unit=" MiB", note=parts),
        Row(f"memory: growth within {found['minutes']:g} minutes", found["growth"]),
    ]
