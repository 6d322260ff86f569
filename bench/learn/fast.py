"""The same product without HTTP and processes: its own requests, sessions, judge, training steps and gate, its own
store and folder of versions, in this process; answers are sampled in batches by the trainer's own sampler.

What differs from the front door: nobody waits, so an update is served at once, and no turn is a version old; the
engine's numbers are the trainer's. `python -m bench.learn --compare` shows what that is worth.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any

from bench.learn.inside import (
    ActiveVersion,
    BatchEngine,
    Carrier,
    InProcessTrainer,
    inline,
    workbench,
)
from bench.learn.plan import Plan
from bench.learn.published import Published, TokenDistillation
from bench.learn.serving import Asking, Said
from bench.talk import Message
from instar.chat_format import ChatFormat
from instar.compose import base_facts, build_judges, prepare_model
from instar.config import GateSettings, JudgeSettings, Settings, TrainSettings, load_settings
from instar.errors import RequestError
from instar.flow.exchange import ChatRequest, Ended
from instar.flow.exchange import Serving as Accepted
from instar.flow.prompts import ChatTeacherPrompts
from instar.flow.publish import Publisher
from instar.flow.serve_turn import ServeTurn
from instar.flow.train_step import TrainStep
from instar.methods import get_method
from instar.ports import Method
from instar.records import Caller, NextKind, NextState, Sampling
from instar.registry import FolderRegistry
from instar.runtime import FakeClock
from instar.store import open_store
from instar.trainers.local import Parts
from instar.trainers.policy import Policy

CALLER = Caller("bench", "me")
LEASED = 64
"""Turns judged between two transactions that take them."""


class FastServing:
    """Implements `Serving` in this process."""

    at_once = 8

    def __init__(self, plan: Plan, bench: Parts, chat: ChatFormat, settings: Settings) -> None:
        self.plan, self.chat, self.settings, self.clock = plan, chat, settings, FakeClock()
        settings.data_dir.mkdir(parents=True, exist_ok=True)
        self.store = open_store(self.settings.database_url, clock=self.clock)
        self.registry = FolderRegistry(self.settings.versions_dir)
        self._carrier = Carrier(bench.policy, self.registry)
        self._engine = BatchEngine(self._carrier, chat.stop_ids, 1000 * plan.seed)
        in_force = ActiveVersion(self.store.active_version)
        engine: Any = self._engine
        self._serve = ServeTurn(self.store, engine, chat, in_force, self.clock, inline)
        self._chain = build_judges(settings, None)
        self._trainer = InProcessTrainer(bench, self._carrier, plan.how, extra_settings(plan))
        self._step = self._train_step()

    def _train_step(self) -> TrainStep:
        model_dir = self.chat.model_dir
        return TrainStep(
            store=self.store,
            registry=self.registry,
            trainer=self._trainer,
            method=self._method(),
            prompts=ChatTeacherPrompts(self.chat),
            settings=self.settings,
            model_dir=model_dir,
            publisher=Publisher(self.store, self.registry, base_facts(self.settings, model_dir), self.clock),
            clock=self.clock,
        )

    def _method(self) -> Method:
        train = self.settings.train
        if self.plan.how.method is None:
            return get_method(train.method)
        made = {"published": Published, "token_opd": TokenDistillation}[self.plan.how.method]
        return made(self.policy, self.chat, teacher_is_base=train.teacher == "base")

    # ── talking ───────────────────────────────────────────────────────────────────────────────────────────
    def ask(self, talks: Sequence[list[Message]], how: Asking) -> list[Said]:
        return asyncio.run(self._ask(talks, how)) if talks else []

    async def _ask(self, talks: Sequence[list[Message]], how: Asking) -> list[Said]:
        self._engine.expected, self._engine.seed = len(talks), how.seed
        return list(await asyncio.gather(*(self._one(messages, how) for messages in talks)))

    async def _one(self, messages: list[Message], how: Asking) -> Said:
        sampling = Sampling(max_tokens=how.max_tokens, temperature=how.temperature)
        turn = version = ended = None
        try:
            async for event in self._serve.serve(ChatRequest(messages, sampling, learn=how.learn), CALLER):
                if isinstance(event, Accepted):
                    turn, version = event.turns[0].id, event.version
                elif isinstance(event, Ended):
                    ended = event
        except RequestError as error:  # the others of the batch must not wait for this one
            self._engine.expected -= 1
            self._engine.run_when_full()
            return Said("", turn, version, False, str(error))
        assert ended is not None
        return Said(ended.text, turn, version, ended.finish_reason == "length")

    def feedback(self, turn: str, *, score: int, comment: str, correction: str | None = None) -> None:
        state = NextState(
            turn, NextKind.FEEDBACK, comment, self.clock.now(), score=score, correction=correction
        )
        self.store.add_feedback(state)

    def pause(self) -> None:
        self.clock.advance(self.plan.think_s)

    def moment(self) -> None:
        lease_s = self.settings.judge.lease_s
        while items := self.store.lease_unjudged("bench", LEASED, lease_s):
            for item in items:
                self.store.record_judgement(self._chain.judge(item, self.clock.now()), item.lease)
        while self._step().worked:
            pass

    def settle(self) -> bool:
        self.moment()
        self.clock.advance(self.settings.train.quiet_s + 1)
        self.moment()
        return True

    def close(self) -> None:
        self._chain.close()
        self.store.close()

    # ── looking ───────────────────────────────────────────────────────────────────────────────────────────
    def version(self) -> str:
        active: str = self.store.active_version()
        return active

    def policy(self) -> Policy:
        return self._carrier.carry(self.version())

    def compute_s(self) -> float:
        """Processor seconds of updates and looks ahead."""
        return self._trainer.seconds

    def turns(self) -> list[dict[str, Any]]:
        views: list[dict[str, Any]] = self.store.turn_views(limit=1_000_000)
        return views

    def versions(self) -> list[dict[str, Any]]:
        return [asdict(self.registry.manifest(v)) for v in reversed(self.registry.versions())]

    def updates(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for update in self.store.updates(limit=1000):
            found[update.status] = found.get(update.status, 0) + 1
        return {**found, "not_learned": self.store.counts().get("reasons", {}), "gates": self._trainer.gates}


def extra_settings(plan: Plan) -> dict[str, Any]:
    return {k: v for k, v in plan.train.items() if k not in TrainSettings.model_fields}


def settings_of(plan: Plan, folder: Path, model_dir: Path) -> Settings:
    """The product's settings for this cell: its defaults, and what the plan says about training.

    Nothing is held back: which conversations are, goes by their random names, and a cell must be the same again.
    """
    known = {k: v for k, v in plan.train.items() if k in TrainSettings.model_fields}
    return Settings(
        data_dir=folder,
        model=str(model_dir),
        train=TrainSettings(**known),
        judge=JudgeSettings(),  # type: ignore[call-arg]
        gate=GateSettings(held_back=0.0),  # type: ignore[call-arg]
    )


@contextmanager
def in_process(plan: Plan, folder: Path) -> Iterator[tuple[FastServing, Path]]:
    """The product in this process on an empty folder, and the folder of its model."""
    model_dir = model_folder(plan.model)
    settings = settings_of(plan, folder / "data", model_dir)
    train = settings.train
    bench = workbench(model_dir, train.rank, train.alpha, train.revision_tokens, plan.how.full_weights)
    bench.policy.reset(0)
    serving = FastServing(plan, bench, ChatFormat(model_dir), settings)
    try:
        yield serving, model_dir
    finally:
        serving.close()


@lru_cache(maxsize=4)
def model_folder(model: str) -> Path:
    """The starter's folder, or the one that is named."""
    return prepare_model(load_settings(overrides={"model": model}))
