"""Many clients at once: does serving feel the training, and does anything get lost under kill -9?"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sqlite3
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx

from bench.prompts import TRAIN
from bench.server import Server
from bench.talk import Answer, Client, interact, shuffled_questions
from bench.users import TWO_SENTENCES, WishUser

SHORT_TOKENS = 16
"""Answer length of the measured requests: all are cut there, so all cost the same."""
TALK_TOKENS = 48
"""Answer length of the users who react: little more than two sentences, so learning hardly changes the load."""


class Ledger:
    """What the clients saw, written by many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.short: list[Answer] = []
        self.talk: list[Answer] = []

    def add(self, answer: Answer, short: bool) -> None:
        with self._lock:
            (self.short if short else self.talk).append(answer)

    def acknowledged(self) -> list[Answer]:
        with self._lock:
            return [a for a in (*self.short, *self.talk) if a.acknowledged and a.turn]


@contextmanager
def clients(server: Server, ledger: Ledger, askers: int, talkers: int, think_s: float) -> Iterator[None]:
    """Users who only ask, and users who ask and react, until the block ends."""
    over = threading.Event()
    client = Client(server.url, server.key, TALK_TOKENS)

    def ask(number: int) -> None:
        for question in shuffled_questions(TRAIN, 100_000, number):
            if over.is_set():
                return
            answer = client.ask([{"role": "user", "content": question}], max_tokens=SHORT_TOKENS)
            ledger.add(answer, short=True)
            over.wait(1.0 if answer.error else 0.05)

    def talk(number: int) -> None:
        user = WishUser(TWO_SENTENCES, number)
        for question in shuffled_questions(TRAIN, 100_000, 500 + number):
            if over.is_set():
                return
            seen = interact(client, user, question, think_s)
            ledger.add(seen.answer, short=False)
            ledger.add(seen.reply, short=False)
            over.wait(think_s + (1.0 if seen.answer.error or seen.reply.error else 0.0))

    jobs = [threading.Thread(target=ask, args=(n,)) for n in range(askers)]
    jobs += [threading.Thread(target=talk, args=(n,)) for n in range(talkers)]
    for job in jobs:
        job.start()
    try:
        yield
    finally:
        over.set()
        for job in jobs:
            job.join(timeout=240)


# ── latency ───────────────────────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True, slots=True)
class LatencyPlan:
    training: bool
    requests: int = 1000
    updates: int = 5
    askers: int = 3
    talkers: int = 2
    think_s: float = 1.0
    limit_s: float = 2400.0
    model: str = "starter"


def run_latency(plan: LatencyPlan) -> dict[str, Any]:
    """Requests of the users who only ask, from start until enough requests and updates were seen."""
    ledger, began = Ledger(), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="instar-bench-") as place:
        extra = {"INSTAR_TRAIN__ENABLED": str(plan.training).lower()}
        with Server(Path(place) / "data", model=plan.model, extra=extra) as server:
            with clients(server, ledger, plan.askers, plan.talkers, plan.think_s):
                _until(lambda: _enough(server, ledger, plan), plan.limit_s)
            status, turns = server.status(), server.turns()
    named = {view["id"]: view["version"] for view in turns}
    seen = [*ledger.short, *ledger.talk]
    return {
        "arm": "latency" if plan.training else "latency-quiet",
        "requests": [_request(a) for a in ledger.short],
        "talk_failures": [a.error for a in ledger.talk if a.error],
        "two_versions": sum(a.error is None and named.get(a.turn or "") != a.version for a in seen),
        "checked_versions": sum(a.error is None for a in seen),
        "status": status,
        "wall_s": round(time.monotonic() - began, 1),
    }


def _request(answer: Answer) -> dict[str, Any]:
    names = ("version", "first_s", "total_s", "error", "asked_at")
    return {name: getattr(answer, name) for name in names}


def _enough(server: Server, ledger: Ledger, plan: LatencyPlan) -> bool:
    if len(ledger.short) < plan.requests:
        return False
    return not plan.training or server.status()["training"]["updates"] >= plan.updates


def _until(true: Callable[[], bool], limit_s: float, every_s: float = 1.0) -> bool:
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        with contextlib.suppress(httpx.HTTPError):
            if true():
                return True
        time.sleep(every_s)
    return False


# ── kills ─────────────────────────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True, slots=True)
class KillPlan:
    seed: int = 0
    kills: int = 5
    askers: int = 2
    talkers: int = 2
    think_s: float = 0.5
    gap_s: float = 12.0
    model: str = "starter"

    def json(self) -> dict[str, Any]:
        return asdict(self)


def run_kills(plan: KillPlan) -> dict[str, Any]:
    """kill -9 of the server and of the trainer, `kills` times each, in random order at random moments, while
    clients talk; every second trainer kill waits for an update to run. Then the audit."""
    rng, ledger, began = random.Random(plan.seed), Ledger(), time.monotonic()
    victims = ["server", "trainer"] * plan.kills
    rng.shuffle(victims)
    kills: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="instar-bench-") as place:
        data_dir = Path(place) / "data"
        with Server(data_dir, model=plan.model) as server:
            with clients(server, ledger, plan.askers, plan.talkers, plan.think_s):
                for number, victim in enumerate(victims):
                    kills.append(_kill(server, victim, rng, plan.gap_s, aim=number % 2 == 0))
                    print(f"[{time.strftime('%H:%M:%S')}] kill {number + 1}: {kills[-1]}", flush=True)
                time.sleep(plan.gap_s)
            settled = server.settle()
            turns, status = server.turns(), server.status()
        audit = {**audit_turns(ledger.acknowledged(), turns), **audit_database(data_dir / "instar.db")}
    return {
        "arm": "kill",
        "seed": plan.seed,
        "kills": kills,
        "audit": audit,
        "settled": settled,
        "status": status,
        "failed_requests": sum(a.error is not None for a in (*ledger.short, *ledger.talk)),
        "wall_s": round(time.monotonic() - began, 1),
    }


def _kill(server: Server, victim: str, rng: random.Random, gap_s: float, aim: bool) -> dict[str, Any]:
    """`aim`: wait (at most two minutes) for an update to run, so that some kills hit one."""
    time.sleep(rng.uniform(1.0, gap_s))
    if aim:
        _until(lambda: bool(server.status()["training"]["running"]), 120.0, every_s=0.3)
        time.sleep(rng.uniform(0.0, 6.0))
    if victim == "trainer":
        _until(lambda: bool(server.status()["loops"]["trainer"].get("alive")), 120.0, every_s=0.3)
    status = server.status()
    running, began = bool(status["training"]["running"]), time.monotonic()
    if victim == "server":
        server.kill()
        server.start()
        return {"who": victim, "update_running": running, "back_s": round(time.monotonic() - began, 2)}
    pid = status["loops"]["trainer"]["pid"]
    os.kill(pid, signal.SIGKILL)
    back = _until(lambda: _replaced(server.status(), pid), 90.0, every_s=0.3)
    took = round(time.monotonic() - began, 2) if back else None
    return {"who": victim, "update_running": running, "back_s": took}


def _replaced(status: dict[str, Any], pid: int) -> bool:
    trainer = status["loops"]["trainer"]
    return bool(trainer.get("alive")) and trainer.get("pid") not in (None, pid)


def audit_turns(acknowledged: list[Answer], turns: list[dict[str, Any]]) -> dict[str, int]:
    """Each acknowledged turn is there once, done, with the text that the client saw."""
    counted = Counter(view["id"] for view in turns)
    views = {view["id"]: view for view in turns}
    there = [a for a in acknowledged if views.get(a.turn or "", {}).get("status") == "done"]
    return {
        "acknowledged": len(acknowledged),
        "lost": len(acknowledged) - len(there),
        "doubled": sum(counted[a.turn or ""] > 1 for a in acknowledged),
        "changed": sum((views[a.turn or ""]["answer"] or "").strip() != a.text.strip() for a in there),
    }


def audit_database(path: Path) -> dict[str, Any]:
    """Read the database itself: whole, and no use of a sample twice."""
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
        whole = db.execute("PRAGMA integrity_check").fetchone()[0]
        uses = db.execute("SELECT count(*) FROM uses").fetchone()[0]
        double = db.execute(
            "SELECT count(*) FROM (SELECT 1 FROM uses GROUP BY turn_id, update_id, pass HAVING count(*) > 1)"
        ).fetchone()[0]
        twice = db.execute(
            "SELECT count(*) FROM (SELECT 1 FROM uses GROUP BY turn_id HAVING count(DISTINCT update_id) > 1)"
        ).fetchone()[0]
    return {"database": whole, "uses": uses, "double_uses": double, "turns_in_two_updates": twice}
