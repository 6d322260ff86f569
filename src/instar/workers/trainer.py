"""The trainer's loop: ask the flow for one step, again and again, and slow down when steps fail."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import structlog

from instar.errors import ArtifactError, EngineError, StoreError, TrainingError
from instar.runtime import Backoff, Clock, SystemClock
from instar.workers.heartbeat import Beats, Heartbeat
from instar.workers.stopping import unwind_on_signals

log = structlog.get_logger()


class StepReport(Protocol):
    """What one step did. `worked` is True after an update, so that the next step follows at once."""

    @property
    def worked(self) -> bool: ...

    @property
    def doing(self) -> str:
        """A word or two for the heartbeat, such as "waiting" or "published v3"."""
        ...

    @property
    def facts(self) -> dict[str, Any]:
        """What else a heartbeat should tell: `have` and `need` of the batch, the last version."""
        ...


@dataclass(slots=True)
class TrainerLoop:
    """`step` is the flow's train_step: it does what there is to do, or raises and changed nothing."""

    step: Callable[[], StepReport]
    heart: Heartbeat
    sleep: Callable[[float], None]
    poll_s: float
    backoff: Backoff = field(default_factory=lambda: Backoff(1.0, 60.0))
    failed: int = 0

    def once(self) -> None:
        """One step and the pause after it.

        Only errors that are raised on purpose are survived: the work is in the store and is taken up again.
        Anything else ends the process, and the supervisor starts a fresh one.
        """
        try:
            report = self.step()
        except (TrainingError, StoreError, EngineError, ArtifactError) as error:
            self.failed += 1
            pause_s = self.backoff.fail()
            log.warning("step_failed", error=str(error), kind=type(error).__name__, pause_s=pause_s)
            told = str(error)
            self.heart.say("waiting after an error", failed=self.failed, error=told, why=told, later=None)
            self.sleep(pause_s)
            return
        self.backoff.reset()
        self.heart.say(report.doing, failed=self.failed, error=None, **report.facts)
        if not report.worked:
            self.sleep(self.poll_s)


def run_trainer_loop(
    store: Beats,
    step: Callable[[], StepReport],
    *,
    poll_s: float,
    clock: Clock | None = None,
) -> None:
    """Train until SIGTERM or SIGINT. Main thread only.

    A step may compute for a minute, so a signal unwinds it where it stands: every step can be killed anywhere
    and resumed, and being told to stop is the kinder case of that. The caller closes trainer and store.
    """
    clock = clock or SystemClock()
    with unwind_on_signals(), Heartbeat(store, "trainer", clock) as heart:
        loop = TrainerLoop(step, heart, time.sleep, poll_s)
        while True:
            loop.once()
