"""A version since which users are significantly less content is taken back by itself, with all that came from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from instar.flow.evidence import LiveComparison, to_blame
from instar.flow.lineage import line
from instar.flow.story import newest_about
from instar.ports import Store
from instar.records import Decision, Fate

LEFT_ALONE = (Fate.CHOSEN, Fate.ROLLED_BACK)
"""A person wanted it to serve, this time or again: figures do not overrule that."""
MOST = 400
"""Judged answers, the newest of a line, that are looked at."""
SEEN = "watch"
"""Name of the document that says, by version, how many scores were known at the last rollback of this kind.

Those count no more. If users want something else, every version is disliked; with the praise of older days in the
balance it would walk back from version to version. What serves after a rollback is held against what came after it.
"""


@dataclass(frozen=True, slots=True)
class Watch:
    """Call it now and then."""

    store: Store

    def __call__(self) -> str | None:
        """Take the version in force back if it has to be. Returns the reason, None if all is well."""
        active = self.store.active_version()
        names = line(active, self.store.parents())
        blamed = to_blame(self._scores(names), _examined(names, self.store.decisions()))
        if blamed is None:
            return None
        place, found = blamed
        to = names[place + 1]
        reason = _sentence(active, names[place], to, found)
        documents = {SEEN: {name: len(self.store.live_scores(name)) for name in names}}
        self.store.decide(active, Fate.ROLLED_BACK, reason, activate=to, documents=documents)
        return reason

    def _scores(self, names: Sequence[str]) -> list[list[int]]:
        """Of each version of the line, as far back as there is anything to learn from it."""
        seen, scores = self.store.get_state(SEEN) or {}, []
        for name in names:
            scores.append(self.store.live_scores(name)[seen.get(name, 0) :])
            if sum(map(len, scores)) >= MOST:
                break
        return scores


def _examined(names: Sequence[str], decisions: Sequence[Decision]) -> int:
    """How many of the line may be blamed: none that a person wanted, and none that such a one came from."""
    newest = (newest_about(name, decisions) for name in names)
    wanted = (decided is not None and decided.fate in LEFT_ALONE for decided in newest)
    return next((place for place, stays in enumerate(wanted) if stays), len(names))


def _sentence(active: str, blamed: str, to: str, found: LiveComparison) -> str:
    return (
        f"{active} was taken back by itself, to {to}: users were content with {found.good} of {found.judged} answers "
        f"since {blamed}, and with {found.good_before} of {found.judged_before} before (p = {found.p_value:.2g})."
    )
