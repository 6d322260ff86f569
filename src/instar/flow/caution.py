"""How large a step an update takes: a smaller one where the last steps from the same version went wrong.

Else the same step is tried for ever: refused at the same bound, or taken back, retrained and taken back again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from instar.flow.lineage import line
from instar.flow.story import newest_about
from instar.records import Decision, Fate, Update

LEAST = 1 / 8
"""Share of a step that is always taken."""
ROOMY = 0.5
"""Share of the distance to base that may be used up before steps shrink with what is left of it."""


def refused_in_a_row(parent: str, updates: Sequence[Update]) -> int:
    """Updates from this version that the gate refused since one passed. `updates` are newest first."""
    count = 0
    for update in updates:
        if update.status == "proposed":
            break
        count += update.status == "rejected" and update.parent == parent
    return count


def taken_back(parent: str, decisions: Sequence[Decision], parents: Mapping[str, str]) -> int:
    """Versions that came from this one and were taken back. `decisions` are newest first."""
    names = dict.fromkeys(d.version for d in decisions if d.fate is Fate.ROLLED_BACK)
    gone = [name for name in names if _fate(name, decisions) is Fate.ROLLED_BACK]
    return sum(parent in line(name, parents)[1:] for name in gone)


def _fate(version: str, decisions: Sequence[Decision]) -> Fate | None:
    newest = newest_about(version, decisions)
    return newest.fate if newest else None


def room_left(gate: Mapping[str, Any], max_kl: float) -> float:
    """Share of `max_kl` that a version has left, by the report of its gate; 1 where that tells nothing."""
    kl = (gate.get("checks") or {}).get("kl") or {}
    value = kl.get("value")
    return 1.0 if not isinstance(value, int | float) else max(0.0, 1 - value / max_kl)


def step_scale(missteps: int, room: float) -> float:
    """Half a step for each misstep, and less where little room is left; never less than an eighth."""
    return max(LEAST, 0.5**missteps * min(1.0, room / ROOMY))


def repeats(count: int) -> str:
    """What to say of so many refusals in a row; "" of the first."""
    if count < 2:
        return ""
    least = 0.5**count <= LEAST
    what = "as small a step as there is; `instar versions rollback` gives room" if least else "a smaller step"
    return f"{count} updates in a row were refused; the next one takes {what}."
