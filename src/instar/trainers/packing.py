"""Rows of tokens laid out for one pass that computes what they share once.

Turns of an agent begin alike: all of them with the system's text and the tools, those of a session with its history. As
a tree of stretches, each is computed once, and its gradient is the sum over all rows that go through it:

    system + tools ─┬─ history of one session ─┬─ request and answer
                    │                          └─ request and answer
                    └─ request and answer of another

The stretches stand end to end in one sequence. A token has the position that it has in its row, and sees what comes
before it in its row (attention.py). So each row is read exactly as it would be alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

LEAST_SHARED = 32
"""Tokens that rows must share for a stretch of their own: each costs a few calls in every layer."""
PRODUCTS_UP_TO = 512 * 512
"""Queries times keys of a head up to which the matrix of scores may exist: 9.4 MB for nine heads in fp32."""

Row = Sequence[int]
Stretch = tuple[int, int]
"""Places begin:end in the packed sequence."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch, and those that come before it in its rows, first to last."""

    own: Stretch
    past: tuple[Stretch, ...] = ()

    @property
    def path(self) -> tuple[Stretch, ...]:
        return (*self.past, self.own)

    @property
    def steps(self) -> int:
        return self.own[1] - self.own[0]

    @property
    def depth(self) -> int:
        """Position of the first token in its row."""
        return sum(end - begin for begin, end in self.past)


@dataclass(slots=True)
class Pack:
    """A tree of rows in one sequence of N tokens. `paths` says of each row where it stands."""

    ids: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    segments: list[Segment] = field(default_factory=list)
    paths: dict[int, tuple[Stretch, ...]] = field(default_factory=dict)

    @property
    def scores(self) -> int:
        """Weights of a head that exist as matrices (attention.py)."""
        sizes = (s.steps * (s.depth + s.steps) for s in self.segments)
        return sum(size for size in sizes if size <= PRODUCTS_UP_TO)

    def places(self, row: int, begin: int = 0) -> list[int]:
        """Places of a row's tokens from `begin` on."""
        return [place for stretch in self.paths[row] for place in range(*stretch)][begin:]

    def add(self, row: Row, begin: int, end: int, past: tuple[Stretch, ...]) -> tuple[Stretch, ...]:
        """Lay tokens begin:end of a row down, behind `past`. Returns the path to their end."""
        segment = Segment((len(self.ids), len(self.ids) + end - begin), past)
        self.ids += row[begin:end]
        self.positions += range(begin, end)
        self.segments.append(segment)
        return segment.path


def pack(rows: Sequence[Row]) -> Pack:
    """The tree of these rows."""
    found = Pack()
    ordered = sorted(range(len(rows)), key=lambda i: list(rows[i]))
    _grow(found, rows, ordered, 0, ())
    return found


def _grow(into: Pack, rows: Sequence[Row], members: list[int], depth: int, past: tuple[Stretch, ...]) -> None:
    """Lay down what comes after the first `depth` tokens, which all members share; they are in order."""
    into.paths.update({i: past for i in members if len(rows[i]) == depth})
    longer = [i for i in members if len(rows[i]) > depth]
    for family in _families(rows, longer, depth + LEAST_SHARED):
        first, last = rows[family[0]], rows[family[-1]]
        end = common(first, last)  # of neighbours in order, the outermost share least
        _grow(into, rows, family, end, into.add(first, depth, end, past))


def _families(rows: Sequence[Row], members: list[int], least: int) -> Iterator[list[int]]:
    """Runs of neighbours that share their first `least` tokens."""
    family = members[:1]
    for before, after in pairwise(members):
        if common(rows[before], rows[after]) < least:
            yield family
            family = []
        family.append(after)
    if family:
        yield family


def common(a: Row, b: Row) -> int:
    """Length of the common beginning."""
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return i
    return min(len(a), len(b))
