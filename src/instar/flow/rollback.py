"""A version whose users are significantly less content than its parent's were is taken back by itself."""

from __future__ import annotations

from dataclasses import dataclass

from instar.errors import ArtifactError
from instar.flow.evidence import LiveComparison, worse_live
from instar.flow.story import newest_about
from instar.ports import Registry, Store
from instar.records import BASE, Fate

LEFT_ALONE = (Fate.CHOSEN, Fate.ROLLED_BACK)
"""A person wanted it to serve, this time or again: figures do not overrule that."""


@dataclass(frozen=True, slots=True)
class Watch:
    """Call it now and then."""

    store: Store
    registry: Registry

    def __call__(self) -> str | None:
        """Take the version in force back if it has to be. Returns the reason, None if all is well."""
        version = self.store.active_version()
        if version == BASE:
            return None
        decided = newest_about(version, self.store.decisions())
        if decided is not None and decided.fate in LEFT_ALONE:
            return None
        try:
            parent = self.registry.manifest(version).parent
        except ArtifactError:
            return None  # the gateway says so, and serves the last good one
        found = worse_live(self.store.live_scores(version), self.store.live_scores(parent))
        if found is None or not found.worse:
            return None
        reason = _sentence(version, parent, found)
        self.store.decide(version, Fate.ROLLED_BACK, reason, activate=parent)
        return reason


def _sentence(version: str, parent: str, found: LiveComparison) -> str:
    return (
        f"{version} was taken back by itself: users were content with {found.good} of {found.judged} of its answers, "
        f"and with {found.good_before} of {found.judged_before} of {parent}'s (p = {found.p_value:.2g})."
    )
