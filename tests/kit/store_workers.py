"""Processes for the crash tests of the store: `python -m tests.kit.store_workers WORK DATABASE [ARGUMENT]`.

Each prints a line after each thing it was told is durable. They are killed at any moment.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

from instar.records import Judgement, NextKind, NextState, Source
from instar.store import SqlStore, open_store
from tests.kit.store_scenes import make_outcome, make_turn, url_of

PASSES = 2


def say(*words: object) -> None:
    print(*words, flush=True)


def record_turns(store: SqlStore, prefix: str) -> None:
    """A gateway that answers without end. Every answer but the last was replied to, unless nobody talks."""
    n, talks = 0, not prefix.startswith("silent")
    while True:
        turn_id = f"{prefix}{n}"
        history = [{"role": "user", "content": f"line {i}"} for i in range(n % 50)]
        said = [NextState(f"{prefix}{n - 1}", NextKind.USER_REPLY, "no", 1.0, turn_id)] if n and talks else []
        store.open_turns([make_turn(turn_id, session_id=prefix, messages=history)], said)
        store.close_turn(turn_id, make_outcome(turn_id, prompt_ids=list(range(n))))
        say("acked", turn_id)
        n += 1


def judge_turns(store: SqlStore, worker: str) -> None:
    """A judge that works until nothing waits."""
    while items := store.lease_unjudged(worker, 4, 600.0):
        for item in items:
            store.record_judgement(Judgement(item.turn.id, -1, Source.USER, worker, 1.0), item.lease)
            say("judged", item.turn.id)


def train(store: SqlStore, seed: str) -> None:
    """A trainer that takes up what a dead one left, and works until there is nothing to learn from."""
    chance = random.Random(int(seed))
    while True:
        running = store.running_update()
        if running is None:
            batch = [s.turn_id for s in store.trainable(3, current=0, max_staleness=10**6)]
            if not batch:
                return say("nothing left")
            job = json.dumps({"turns": batch, "number": store.next_version_number()})
            update = store.begin_update(batch, store.active_version(), job, passes=PASSES)
        else:
            update, job = running
            say("resumed", update.id)
        known = json.loads(job)
        assert known["turns"] == update.turn_ids
        how = chance.choice(["proposed", "proposed", "rejected", "failed"])
        version = f"v{known['number']}" if how == "proposed" else None
        store.finish_update(
            update.id, status=how, version=version, note=None, activate=how == "proposed",
            documents={"method": {"after": update.id}},
        )  # fmt: skip
        say("finished", update.id, how)


def main() -> None:
    work, path, *more = sys.argv[1:]
    jobs = {"record": record_turns, "judge": judge_turns, "train": train}
    if work == "open":
        open_store(url_of(Path(path))).close()
        return say("opened")
    return jobs[work](open_store(url_of(Path(path))), more[0])


if __name__ == "__main__":
    main()
