"""Which version came from which: the way from one to base, and how far two are apart.

Numbers alone do not tell: after a rollback, or updates that the gate refused, v9 may come straight from v2.
"""

from __future__ import annotations

from collections.abc import Mapping


def line(version: str, parents: Mapping[str, str]) -> list[str]:
    """The version, its parent, and so on, as far as it is known: to base, as a rule."""
    found = [version]
    while (parent := parents.get(found[-1])) is not None and parent not in found:
        found.append(parent)
    return found


def updates_between(one: str, other: str, parents: Mapping[str, str]) -> int | None:
    """Updates on the way from one version to the other, by way of the nearest that both come from.

    None where they have none in common, so far as is known.
    """
    mine, theirs = line(one, parents), line(other, parents)
    shared = next((name for name in mine if name in theirs), None)
    return None if shared is None else mine.index(shared) + theirs.index(shared)
