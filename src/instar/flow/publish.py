"""The end of an update: rejected with a reason, or published and active in one commit."""

from __future__ import annotations

import platform
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from instar.flow.caution import repeats
from instar.flow.fidelity import FIDELITY, remembered
from instar.ports import Registry, Store
from instar.records import Manifest, Update, UpdateResult
from instar.runtime import Clock

Ending = Literal["proposed", "waits", "rejected", "unused", "superseded"]

METHOD_STATE = "method"
"""Name of the document that holds the method's memory (running baselines)."""


@dataclass(frozen=True, slots=True)
class BaseModelFacts:
    """Which weights all versions stand on: a name for people, and the sha256 of the weights."""

    name: str
    sha256: str


@dataclass(frozen=True, slots=True)
class Publisher:
    """Takes what the trainer left and makes it a version, or says why not."""

    store: Store
    registry: Registry
    base: BaseModelFacts
    clock: Clock
    approve: bool = False
    """Whether a version that passed waits for a person."""

    def conclude(
        self, update: Update, version: str, job: dict[str, Any], result: UpdateResult, out_dir: Path
    ) -> tuple[Ending, str]:
        """Returns how the update ended, and why. Doing it again after a crash is fine.

        A version that did not pass the gate is kept too, to be looked at; it is never served. One that passed after
        another was put in force is kept, and not served by itself: a rollback must not be undone by the update that
        was being computed.

        The artifact is durable before the commit that names it; a crash between the two leaves a folder that the
        resumed update, being the same, publishes again under the same name.
        """
        compared = remembered(self.store.get_state(FIDELITY), update, result.metrics.get("fidelity"))
        facts = {FIDELITY: compared} if compared else {}
        state = {METHOD_STATE: job["method_state"], **facts}
        gate = result.gate
        if not result.taught:
            why = result.why or nothing_learned(result.metrics)
            return self._end(update, "unused", why, documents=state)
        if not result.ok or gate is None:
            why = result.error or "The update gave no result."
            return self._end(update, "rejected", why, documents=facts)
        self.registry.publish(out_dir, self._manifest(update, version, job, result))
        if not gate.passed:
            why = " ".join(filter(None, [gate.why, repeats(job.get("refused", 0) + 1)]))
            return self._end(update, "rejected", why, version=version, documents=facts)
        ending: Ending = "waits" if self.approve else "proposed"
        active = job.get("active", update.parent)  # a job of an older Instar names none
        return self._end(update, ending, gate.why, version=version, documents=state, if_active=active)

    def _end(
        self,
        update: Update,
        ending: Ending,
        why: str,
        *,
        documents: dict[str, dict[str, Any]],
        version: str | None = None,
        if_active: str | None = None,
    ) -> tuple[Ending, str]:
        ended = self.store.finish_update(
            update.id,
            status="proposed" if ending == "waits" else ending,
            version=version,
            note=why,
            activate=ending == "proposed",
            waits=ending == "waits",
            if_active=if_active,
            documents=documents,
        )
        if ended == "superseded":
            return "superseded", f"{version} is kept, but does not serve: another version was put in force."
        return ending, why

    def _manifest(self, update: Update, version: str, job: dict[str, Any], result: UpdateResult) -> Manifest:
        return Manifest(
            name=version,
            parent=update.parent,
            created_at=self.clock.now(),
            update_id=update.id,
            base_model=self.base.name,
            base_sha256=self.base.sha256,
            files={},
            turn_ids=update.turn_ids,
            settings=job["settings"],
            metrics=result.metrics,
            gate=asdict(result.gate) if result.gate else {},
            runtime={"python": platform.python_version(), "machine": platform.machine()},
        )


def nothing_learned(metrics: dict[str, Any]) -> str:
    """Why an update changed nothing: the reasons for which its corrections found no better answer, each once."""
    refused = metrics.get("revisions", {}).get("refused", {}).values()
    return " ".join(["Nothing was learned.", *dict.fromkeys(refused)])
