"""Part d: do those who chat feel the training? Blocks with it and without take turns on one server.

The trainer's compute child is stopped (SIGSTOP) in the blocks without. Users who react go on between blocks, so that
there is always something to learn; they are not measured, and none talks while a block is.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil

from bench.prompts import TRAIN
from bench.server import Server
from bench.serving.goals import Figures, Plan, Row
from bench.serving.houses import Texts, loop_pid, ours
from bench.serving.load import Endpoint, block
from bench.stats import bootstrap_percentile_ratio, percentile
from bench.talk import Client, interact, shuffled_questions
from bench.users import TWO_SENTENCES, WishUser

STREAMS, PROMPT, TOKENS, REQUESTS, BLOCKS = 2, 200, 64, 6, 10
TALKS = 8
"""Interactions before each pair of blocks: a batch."""
BEGINS_S = 120.0
QUANTILES = (50, 95)


def run(plan: Plan) -> Figures:
    blocks, requests = (2, 2) if plan.is_quick else (BLOCKS, REQUESTS)
    texts = Texts(plan.model_dir)
    settings = {"TRAIN__QUIET_S": "0", "ENGINE__THREADS": str(plan.threads), "LOG_LEVEL": "warning"}
    found: list[dict[str, Any]] = []
    with ours(plan.work / "gaps", plan.model_dir, **settings) as server:
        users = _Users(server)
        to = Endpoint("ours", server.url, server.key, "instar")
        for number in range(blocks):
            for trains in (False, True) if number % 2 else (True, False):
                plan.step(f"gaps, pair {number + 1}: users react")
                users.talk(TALKS)
                with contextlib.nullcontext() if trains else stopped(server):
                    begun = _until_training(server) if trains else False
                    plan.step(f"gaps, pair {number + 1}: {'with' if trains else 'without'} training")
                    found.append({"trains": trains, "begun": begun, **_measured(server, to, texts, requests)})
        updates = server.status()["training"]["updates"]
    return {"blocks": found, "updates": updates, "streams": STREAMS, **compared(found)}


class _Users:
    def __init__(self, server: Server) -> None:
        self._client = Client(server.url, server.key, 48)
        self._user = WishUser(TWO_SENTENCES, 0)
        self._questions = iter(shuffled_questions(TRAIN, 10_000, 0))

    def talk(self, count: int) -> None:
        questions = [next(self._questions) for _ in range(count)]
        with ThreadPoolExecutor(4) as pool:
            for seen in pool.map(lambda q: interact(self._client, self._user, q, 0.0), questions):
                if seen.answer.error or seen.reply.error:
                    raise RuntimeError(f"a request failed: {seen.answer.error or seen.reply.error}")


@contextlib.contextmanager
def stopped(server: Server) -> Iterator[None]:
    """What the trainer computes with stands still meanwhile. Its light parent, which holds the store, does not."""
    children = psutil.Process(loop_pid(server, "trainer")).children(recursive=True)
    try:
        for child in children:
            child.suspend()
        yield
    finally:
        for child in children:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.resume()


def _until_training(server: Server) -> bool:
    deadline = time.monotonic() + BEGINS_S
    while time.monotonic() < deadline:
        if server.status()["training"]["running"]:
            return True
        time.sleep(0.2)
    return False


def _measured(server: Server, to: Endpoint, texts: Texts, requests: int) -> dict[str, Any]:
    """Every gap in seconds, and the share of looks at which an update ran."""
    over, looks = threading.Event(), list[bool]()

    def look() -> None:
        while not over.wait(1.0):
            looks.append(bool(server.status()["training"]["running"]))

    watch = threading.Thread(target=look)
    watch.start()
    try:
        replies = block(
            to,
            STREAMS,
            requests,
            lambda _: {"prompt": texts.of(PROMPT), "max_tokens": TOKENS, "temperature": 0},
            headers={"X-Instar-Learn": "off"},
        )
    finally:
        over.set()
        watch.join()
    if failed := [reply.error for reply in replies if reply.error]:
        raise RuntimeError(f"a request failed: {failed[0]}")
    gaps = [round(gap, 5) for reply in replies for gap in reply.gaps_s]
    return {"gaps_s": gaps, "update_ran": round(sum(looks) / max(1, len(looks)), 3)}


def compared(blocks: list[dict[str, Any]]) -> Figures:
    """Percentiles with training by those without; for comparison, of every second quiet block by the others'."""
    loud = [b["gaps_s"] for b in blocks if b["trains"]]
    alone = [b["gaps_s"] for b in blocks if not b["trains"]]
    pairs = {"with by without": (loud, alone), "without by without": (alone[::2], alone[1::2])}
    found: Figures = {}
    for name, (after, before) in pairs.items():
        if after and before:
            for q in QUANTILES:
                value, low, high = bootstrap_percentile_ratio(after, before, q)
                found.setdefault(name, {})[f"p{q}"] = {"ratio": value, "low": low, "high": high}
    everything = [gap for gaps in alone for gap in gaps]
    found["alone_ms"] = {f"p{q}": round(1_000 * percentile(everything, q), 2) for q in QUANTILES}
    return found


def rows(found: Figures) -> list[Row]:
    lines = []
    ran = [b["update_ran"] for b in found["blocks"] if b["trains"]]
    note = f"updates ran {100 * sum(ran) / len(ran):.0f} % of the time, {found['updates']} ended"
    for q in QUANTILES:
        loud = found["with by without"][f"p{q}"]
        what = f"gap p{q}, with training by without: {loud['ratio']:.3f}; upper bound"
        lines.append(Row(what, loud["high"], 1.25, unit="×", note=note))
        if "without by without" in found:
            quiet = found["without by without"][f"p{q}"]
            note = f"{quiet['low']:.3f} to {quiet['high']:.3f}"
            lines.append(Row(f"  gap p{q}, without by without", quiet["ratio"], unit="×", note=note))
        note = ""
    return lines
