"""One step of the training loop: resume, or collect a batch; weigh, compute, gate, publish.

    trainable samples ─► method: weights ─► job (stored) ─► trainer ─► gate ─► registry ─► one commit

The job is stored before it is computed and is complete in itself, so a step that was killed anywhere is done again
with the same result, and each use of a sample is committed once.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from instar.config import Settings
from instar.errors import TrainingError
from instar.flow.caution import refused_in_a_row, room_left, step_scale, taken_back
from instar.flow.held_back import LIMIT, to_try
from instar.flow.publish import METHOD_STATE, Ending, Publisher
from instar.flow.rollback import Watch
from instar.flow.schedule import why_later
from instar.flow.story import waiting_version
from instar.ports import Method, Registry, Store, TeacherPrompts, Trainer
from instar.records import (
    BASE,
    HeldBackTurn,
    JudgedAnswer,
    Sample,
    Update,
    UpdateJob,
    WeightedSample,
    job_lists,
)
from instar.runtime import Clock

HISTORY = 96
"""Verdicts of a learner, the newest, that an update may use to tell what pleases them."""
WATCH_EVERY_S = 10.0
NEWEST = 20
"""Updates that are looked at for refusals."""


@dataclass(frozen=True, slots=True)
class StepReport:
    """What a step did: waited for more reactions, got ready for them, or finished an update one way or another.

    `later` is what the mode of training waits for, whatever else it waits for.
    """

    did: Literal["waiting", "looked ahead", "left out", "taken back", "failed"] | Ending
    waiting: int
    why: str
    version: str | None = None
    later: str | None = None

    @property
    def worked(self) -> bool:
        """Whether something was done, so that the next step should follow at once."""
        return self.did != "waiting"

    @property
    def doing(self) -> str:
        return f"published {self.version}" if self.did == "proposed" else self.did

    @property
    def facts(self) -> dict[str, Any]:
        return {"waiting": self.waiting, "why": self.why, "later": self.later}


@dataclass(slots=True)
class TrainStep:
    """Call it again and again; each call does at most one update."""

    store: Store
    registry: Registry
    trainer: Trainer
    method: Method
    prompts: TeacherPrompts
    settings: Settings
    model_dir: Path
    publisher: Publisher
    clock: Clock
    looked_at: set[tuple[str, int]] = field(default_factory=set)
    """Turns whose revision the trainer has looked for, with the length of the answer to their correction, which may
    come later; forgotten when they are used."""
    watched_at: float = float("-inf")

    def __call__(self) -> StepReport:
        running = self.store.running_update()
        if running is not None:
            update, document = running
            return self._compute(update, json.loads(document))
        if why := self._watch():
            return StepReport("taken back", 0, why)
        if not self.settings.train.enabled:
            return StepReport("waiting", 0, "learning is switched off (setting train.enabled)")
        if version := waiting_version(self.store.decisions()):
            return StepReport(
                "waiting", 0, f"{version} waits for `instar versions approve {version}`, or reject"
            )
        samples, later = self._collect(), self._later()
        if why := self._why_wait(samples):
            looked = later is None and self._look_ahead(samples)
            return StepReport("looked ahead" if looked else "waiting", len(samples), why, later=later)
        if later:
            return StepReport("waiting", len(samples), f"{_turns(samples)}; {later}", later=later)
        return self._begin(samples[: self.settings.train.batch_size])

    def _later(self) -> str | None:
        """What the mode of training waits for before an update may start."""
        train = self.settings.train
        served_at = self.store.last_served_at() if train.mode == "idle" else None
        return why_later(train, self.clock.now(), served_at)

    def _watch(self) -> str | None:
        """Now and then, whether the version in force must be taken back."""
        now = self.clock.now()
        if not self.settings.gate.auto_rollback or abs(now - self.watched_at) < WATCH_EVERY_S:
            return None
        self.watched_at = now
        return Watch(self.store)()

    def _collect(self) -> list[Sample]:
        train = self.settings.train
        return self.store.trainable(
            train.batch_size,
            current=version_number(self.store.active_version()),
            max_staleness=train.max_staleness,
            held_back=self.settings.gate.held_back,
            longest=self._longest,
        )

    @property
    def _longest(self) -> int:
        """Tokens of prompt and response that an update can hold."""
        return min(self.settings.train.max_tokens, self.trainer.longest)

    def _is_too_long(self, weighted: WeightedSample) -> bool:
        """With the text that the user wants instead, which the store cannot count in tokens."""
        return len(weighted.prompt_ids) + len(weighted.response_ids) > self._longest

    def _why_wait(self, samples: Sequence[Sample]) -> str | None:
        train = self.settings.train
        if len(samples) >= train.batch_size:
            return None
        if len(samples) < train.min_batch:
            return f"{len(samples)} of {train.batch_size} judged turns"
        last = self.store.last_activity_at()
        quiet = abs(self.clock.now() - last) if last is not None else 0.0
        if quiet >= train.quiet_s:
            return None
        return f"{len(samples)} of {train.batch_size} judged turns; fewer will do after {train.quiet_s:.0f} s of quiet"

    def _look_ahead(self, samples: Sequence[Sample]) -> bool:
        """Use the wait: let the trainer do what the coming update needs of one turn alone."""
        waiting = {(s.turn_id, len(s.retry_ids)): s for s in samples}
        self.looked_at &= waiting.keys()
        new = next((key for key in waiting if key not in self.looked_at), None)
        if new is None:
            return False
        self.looked_at.add(new)  # before the work, so that what kills the trainer is not tried again
        weighted, _ = self.method.weigh(
            [waiting[new]], self.prompts, self.store.get_state(METHOD_STATE) or {}
        )
        teaching = [w for w in weighted if w.teaches]
        if teaching:
            self.trainer.look_ahead(self._ahead(teaching))
        return bool(teaching)

    def _ahead(self, samples: list[WeightedSample]) -> UpdateJob:
        parent = self._parent(self.store.active_version())
        return UpdateJob(
            update_id="ahead",
            parent=parent,
            parent_dir=self._folder(parent),
            model_dir=str(self.model_dir),
            out_dir=str(self.settings.work_dir / "ahead"),
            seed=self.settings.train.seed,
            samples=samples,
            settings=self._job_settings(scale=1.0),
        )

    def _begin(self, samples: Sequence[Sample]) -> StepReport:
        state = self.store.get_state(METHOD_STATE) or {}
        weighted, new_state = self.method.weigh(samples, self.prompts, state)
        if long := sorted({w.turn_id for w in weighted if self._is_too_long(w)}):
            self.store.leave_out_long(long)
            return StepReport("left out", 0, f"too long to be learned from: {', '.join(long)}")
        turn_ids = [s.turn_id for s in samples]
        active = self.store.active_version()
        parent = self._parent(active)
        refused = refused_in_a_row(parent, self.store.updates(NEWEST))
        scale = self._scale(parent, refused, turn_ids)
        number = self._next_number()
        job = {
            "number": number,
            "active": active,
            "scale": scale,
            "refused": refused,
            "samples": [asdict(w) for w in weighted],
            "history": [asdict(h) for h in self._history(samples)],
            "held_back": [asdict(t) for t in self._held_back(samples)],
            "method_state": new_state,
            "settings": self._job_settings(scale),
        }
        passes = self.settings.train.passes
        update = self.store.begin_update(turn_ids, parent, json.dumps(job), scale=scale, passes=passes)
        return self._compute(update, job)

    def _scale(self, parent: str, refused: int, turn_ids: Sequence[str]) -> float:
        """What share of a step to take from this version."""
        gate = {} if parent == BASE else self.registry.manifest(parent).gate
        missteps = refused + taken_back(parent, self.store.decisions(), self.store.parents())
        if self.store.rejected_before(turn_ids):
            missteps = max(1, missteps)
        return step_scale(missteps, room_left(gate, self.settings.gate.max_kl))

    def _history(self, samples: Sequence[Sample]) -> list[JudgedAnswer]:
        learners = dict.fromkeys(s.learner for s in samples)
        share = self.settings.gate.held_back
        return [h for name in learners for h in self.store.verdicts(name, HISTORY, held_back=share)]

    def _held_back(self, samples: Sequence[Sample]) -> list[HeldBackTurn]:
        """Turns of the same learners that the new version is tried on."""
        found = [
            self.store.held_back(name, LIMIT, longest=self._longest)
            for name in sorted({s.learner for s in samples})
        ]
        return [to_try(s, self.prompts) for of_learner in found for s in of_learner]

    def _parent(self, active: str) -> str:
        """The version in force; base, if that one was trained from another model than is served now."""
        if active == BASE or self.registry.manifest(active).base_sha256 == self.publisher.base.sha256:
            return active
        return BASE

    def _folder(self, version: str) -> str | None:
        return None if version == BASE else str(self.registry.verify(version))

    def _next_number(self) -> int:
        """Never a number that is on disk: an update may have published, and failed when it was resumed."""
        on_disk = max(map(version_number, self.registry.versions()), default=0)
        return max(self.store.next_version_number(), on_disk + 1)

    def _job_settings(self, scale: float) -> dict[str, Any]:
        train = self.settings.train.model_dump()
        return {**train, "lr": train["lr"] * scale, "gate": self.settings.gate.model_dump()}

    def _compute(self, update: Update, job: dict[str, Any]) -> StepReport:
        version = f"v{job['number']}"
        lists = job_lists({"history": [], "held_back": [], **job})  # an older version stored neither
        if not any(s.teaches for s in lists["samples"]):
            why = "Nothing in these turns says how to change the model."
            self._finish(update, "unused", why, {METHOD_STATE: job["method_state"]})
            return StepReport("unused", 0, why)
        request = self._job(update, lists, job)
        try:
            result = self.trainer.run(request)
        except TrainingError as error:
            self._finish(update, "failed", str(error), {})
            return StepReport("failed", 0, str(error))
        did, why = self.publisher.conclude(update, version, job, result, Path(request.out_dir))
        return StepReport(did, 0, why, version if did in ("proposed", "waits") else None)

    def _job(self, update: Update, lists: dict[str, list[Any]], job: dict[str, Any]) -> UpdateJob:
        return UpdateJob(
            update_id=update.id,
            parent=update.parent,
            parent_dir=self._folder(update.parent),
            model_dir=str(self.model_dir),
            out_dir=str(self.settings.work_dir / update.id),
            seed=self.settings.train.seed + job["number"],
            settings=job["settings"],
            **lists,
        )

    def _finish(self, update: Update, status: str, why: str, documents: dict[str, Any]) -> None:
        self.store.finish_update(
            update.id, status=status, version=None, note=why, activate=False, documents=documents
        )


def _turns(samples: Sequence[Sample]) -> str:
    return "1 judged turn" if len(samples) == 1 else f"{len(samples)} judged turns"


def version_number(version: str) -> int:
    """`v7` → 7; base → 0."""
    return 0 if version == BASE else int(version.removeprefix("v"))
