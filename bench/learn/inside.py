"""What stands in for the product's processes when everything runs in this one: the model, its sampler as an engine, and
the trainer without a child."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from bench.learn.arms import Arm
from bench.learn.full_weights import FullWeights, train_all_weights
from instar.errors import EngineError
from instar.ports import TokenChunk
from instar.records import BASE, GateReport, Sampling, UpdateJob, UpdateResult
from instar.registry import FolderRegistry
from instar.trainers.gate import Gate
from instar.trainers.local import Parts, look_ahead, parts_of, run_update
from instar.trainers.policy import Policy, PrefixCache
from instar.trainers.revise import Reviser
from instar.trainers.sampling import sample


@lru_cache(maxsize=1)
def workbench(model_dir: Path, rank: int, alpha: int, revision_tokens: int, full: bool) -> Parts:
    """The trainer's own parts, or the like with all weights to train."""
    if full:
        policy = FullWeights(model_dir)
        reviser = Reviser(policy, max_tokens=revision_tokens)
        return Parts(policy, Gate(policy), reviser, PrefixCache(policy))
    settings = {"rank": rank, "alpha": alpha, "revision_tokens": revision_tokens}
    empty = UpdateJob("none", BASE, None, str(model_dir), "", 0, samples=[], settings=settings)
    return parts_of(empty)


class Carrier:
    """Sees to it that the policy carries the version that is asked for."""

    def __init__(self, policy: Policy, registry: FolderRegistry) -> None:
        self.policy, self._registry = policy, registry
        self._carried: str | None = None

    def carry(self, version: str) -> Policy:
        if version != self._carried:
            if version == BASE:
                self.policy.reset(0)
            else:
                self.policy.load(self._registry.root / version)
            self._carried = version
        return self.policy

    def forget(self) -> None:
        """Somebody else changed the policy."""
        self._carried = None


class BatchEngine:
    """Implements `ports.Engine` as far as `ServeTurn` needs it: waits for `expected` requests and samples them all
    in one batch."""

    def __init__(self, carrier: Carrier, stop_ids: Sequence[int], seed: int) -> None:
        self._carrier, self._stop_ids = carrier, stop_ids
        self._next_seed = seed
        self._waiting: list[tuple[str, list[int], Sampling, asyncio.Future[TokenChunk]]] = []
        self.context_length: int | None = None  # nothing is told: the model's own holds
        self.expected = 0
        self.seed: int | None = None  # of the next batch; None takes the next of the engine's own

    async def sample(
        self, version: str, prompt_ids: Sequence[int], sampling: Sampling, *, priority: int = 0
    ) -> AsyncIterator[TokenChunk]:
        future: asyncio.Future[TokenChunk] = asyncio.get_running_loop().create_future()
        self._waiting.append((version, list(prompt_ids), sampling, future))
        self.run_when_full()
        yield await future

    def run_when_full(self) -> None:
        if not self._waiting or len(self._waiting) < self.expected:
            return
        waiting, self._waiting = self._waiting, []
        version, _, sampling, _ = waiting[0]
        seed = self.seed if self.seed is not None else self._next_seed
        self._next_seed += self.seed is None
        answers = sample(
            self._carrier.carry(version),
            [prompt for _, prompt, _, _ in waiting],
            stop_ids=self._stop_ids,
            max_tokens=max(s.max_tokens for _, _, s, _ in waiting),
            temperature=sampling.temperature,
            seed=seed,
        )
        for (_, _, own, future), answer in zip(waiting, answers, strict=True):
            ids, logprobs = answer.ids[: own.max_tokens], answer.logprobs[: own.max_tokens]
            ended = answer.ended and len(answer.ids) <= own.max_tokens
            future.set_result(TokenChunk(ids, logprobs, "stop" if ended else "length"))


class InProcessTrainer:
    """Implements `ports.Trainer` in this process. `extra` goes into each job's settings as it is; `skip_gate` in it
    saves the gate's time, and everything serves."""

    def __init__(self, bench: Parts, carrier: Carrier, how: Arm, extra: dict[str, Any]) -> None:
        self._bench, self._carrier, self._extra = bench, carrier, extra
        self._skips_gate = bool(extra.get("skip_gate"))
        self._is_gated = how.gated and not self._skips_gate
        bench.prefixes.hold_for("another cell, whose folder may have the same name")
        self.seconds, self.gates = 0.0, list[dict[str, Any]]()

    def run(self, job: UpdateJob) -> UpdateResult:
        began = time.process_time()
        result = self._compute(replace(job, settings={**job.settings, **self._extra}))
        self.seconds += time.process_time() - began
        self._carrier.forget()
        if result.gate is not None:
            self.gates.append(asdict(result.gate))
        if result.taught and not self._is_gated:
            checks = result.gate.checks if result.gate else {}
            result = replace(result, gate=GateReport(True, "nothing is held back in this arm", checks))
        return result

    def _compute(self, job: UpdateJob) -> UpdateResult:
        policy = self._bench.policy
        gate = None if self._skips_gate else self._bench.gate
        if isinstance(policy, FullWeights):
            return train_all_weights(job, policy, gate)
        return run_update(job, policy, gate, self._bench.reviser, self._bench.prefixes)

    @property
    def longest(self) -> int:
        """Whatever the settings allow."""
        return sys.maxsize

    def look_ahead(self, job: UpdateJob) -> None:
        if isinstance(self._bench.policy, FullWeights):
            return
        began = time.process_time()
        look_ahead(job)
        self._carrier.forget()
        self.seconds += time.process_time() - began

    def close(self) -> None:
        pass


@dataclass(slots=True)
class ActiveVersion:
    """Implements `ServeTurn`'s `Versions`: every request is served by the version in force."""

    active: Callable[[], str]

    @asynccontextmanager
    async def lease(self, wanted: str | None) -> AsyncIterator[str]:
        yield wanted or self.active()

    async def reload(self, version: str) -> None:
        raise EngineError(f"the fast path carries no {version}")


async def inline(call: Callable[..., Any], *args: Any) -> Any:
    return call(*args)
