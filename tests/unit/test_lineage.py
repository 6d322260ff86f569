"""Which version came from which."""

from __future__ import annotations

import pytest

from instar.flow.lineage import line, updates_between

PARENTS = {"v1": "base", "v2": "v1", "v3": "v2", "v5": "v1", "v6": "v5", "v8": "lost"}


def test_a_line_goes_from_parent_to_parent_to_base() -> None:
    assert line("v3", PARENTS) == ["v3", "v2", "v1", "base"]
    assert line("base", PARENTS) == ["base"]
    assert line("v8", PARENTS) == ["v8", "lost"]
    assert line("a", {"a": "b", "b": "a"}) == ["a", "b"], "it ends, whatever the record says"


@pytest.mark.parametrize(
    ("one", "other", "apart"),
    [
        ("v3", "v3", 0),
        ("v3", "base", 3),
        ("base", "v3", 3),
        ("v3", "v6", 4),
        ("v6", "v5", 1),
        ("v8", "v3", None),
    ],
)
def test_updates_between_two_versions(one: str, other: str, apart: int | None) -> None:
    assert updates_between(one, other, PARENTS) == apart
