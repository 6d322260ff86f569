"""The path through the product's front door: a real server, the openai SDK, POST /v1/feedback."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.learn.plan import Plan
from bench.learn.serving import Asking, Said
from bench.server import Server
from bench.talk import OFF, Answer, Client, Message
from instar.config import TrainSettings
from instar.records import BASE
from instar.trainers.policy import Policy

QUESTIONS_AT_ONCE = 6
"""Held-out questions are asked side by side; a user who talks does one thing at a time."""


class ApiServing:
    """Implements `Serving` over HTTP. Measures that need the model read the served adapter from the data folder."""

    at_once = 1

    def __init__(self, server: Server, plan: Plan) -> None:
        self._server, self._plan = server, plan
        self._clients: dict[Asking, Client] = {}
        self._policy: Policy | None = None

    # ── talking ───────────────────────────────────────────────────────────────────────────────────────────
    def ask(self, talks: Sequence[list[Message]], how: Asking) -> list[Said]:
        client = self._client(how)
        if how.learn:
            return [_said(client.ask(messages)) for messages in talks]
        with ThreadPoolExecutor(QUESTIONS_AT_ONCE) as pool:
            return [_said(answer) for answer in pool.map(client.ask, talks)]

    def _client(self, how: Asking) -> Client:
        if how not in self._clients:
            headers = {} if how.learn else OFF
            self._clients[how] = Client(
                self._server.url, self._server.key, how.max_tokens, how.temperature, headers=headers
            )
        return self._clients[how]

    def feedback(self, turn: str, *, score: int, comment: str, correction: str | None = None) -> None:
        body = {"turn": turn, "score": score, "comment": comment, "correction": correction}
        self._server.post("/v1/feedback", {k: v for k, v in body.items() if v is not None})

    def pause(self) -> None:
        time.sleep(self._plan.think_s)

    def moment(self) -> None:
        """The product learns by itself, beside the talk."""

    def settle(self) -> bool:
        settled = self._server.settle() if self._plan.how.learns else True
        time.sleep(1.0)  # the last version is being loaded
        return settled

    # ── looking ───────────────────────────────────────────────────────────────────────────────────────────
    def version(self) -> str:
        return str(self._server.status()["served_version"])

    def policy(self) -> Policy:
        train = TrainSettings()
        rank, alpha = (int(self._plan.train.get(k, getattr(train, k))) for k in ("rank", "alpha"))
        if self._policy is None:
            self._policy = Policy(self._server.model_dir(), rank=rank, alpha=alpha)
        version = self.version()
        if version == BASE:
            self._policy.reset(0)
        else:
            self._policy.load(self._server.data_dir / "versions" / version)
        return self._policy

    def compute_s(self) -> float:
        """As the versions themselves tell; updates that made no version, and looks ahead, are not in it."""
        names = ("revise_s", "train_s", "gate_s")
        metrics = [v.get("metrics", {}) for v in self._server.versions()]
        return float(sum(m.get(name) or 0.0 for m in metrics for name in names))

    def turns(self) -> list[dict[str, Any]]:
        return self._server.turns()

    def versions(self) -> list[dict[str, Any]]:
        return [v for v in self._server.versions() if v["name"] != BASE]

    def updates(self) -> dict[str, Any]:
        status = self._server.status()
        return {"proposed": status["training"]["updates"], "not_learned": status["counts"].get("reasons", {})}


def _said(answer: Answer) -> Said:
    return Said(answer.text, answer.turn, answer.version, answer.finish_reason == "length", answer.error)


@contextmanager
def served(plan: Plan, folder: Path) -> Iterator[tuple[ApiServing, Path]]:
    """A server on an empty data folder, and the folder of its model."""
    names = {f"INSTAR_TRAIN__{name.upper()}": _as_text(value) for name, value in plan.train.items()}
    with Server(folder / "data", model=plan.model, extra=names) as server:
        yield ApiServing(server, plan), server.model_dir()


def _as_text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
