"""What is thought of a turn, and by whom."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from instar.records.conversation import NextState, Turn

EXPLICIT = "explicit"
"""Name of the judge's link that gives the user's own rating."""


class Source(StrEnum):
    """Whose verdict it is. Tool verdicts never drown the user's."""

    USER = "user"
    TOOL = "tool"


@dataclass(frozen=True, slots=True)
class Judgement:
    """The verdict on one turn: `score` +1, −1, 0, or None where every link of the chain abstained.

    `votes` are the single votes behind it, `link` names who spoke, `hint` is what to do instead, in words.
    `why` is a sentence for a reader. `others` are what other links made of a turn that the user rated: they decide
    nothing, and show how far a link can be trusted.
    """

    turn_id: str
    score: int | None
    source: Source
    link: str
    created_at: float
    votes: tuple[int, ...] = ()
    hint: str | None = None
    correction: str | None = None
    why: str = ""
    others: tuple[Judgement, ...] = ()


@dataclass(frozen=True, slots=True)
class JudgeItem:
    """A turn with its next states, as a judge sees it. `lease` is the token that proves who holds it."""

    turn: Turn
    next_states: list[NextState]
    lease: str


@dataclass(frozen=True, slots=True)
class RatedTurn:
    """A turn that its learner rated outright, with what they said after it. `question` is what was answered."""

    turn_id: str
    question: str
    next_states: list[NextState]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one link of the judge's chain says. A link that cannot tell returns None or an Abstention."""

    score: int
    votes: tuple[int, ...] = ()
    hint: str | None = None
    correction: str | None = None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Abstention:
    """A link that cannot tell, and has something to say about why. One without a reason returns None."""

    why: str
