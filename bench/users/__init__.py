"""Simulated users: each has a wish that can be checked, thanks for an answer that keeps it and corrects one that
does not, in plain words. Only the benchmark knows the wishes; the product never does.
"""

from __future__ import annotations

from bench.text import WORD, first_sentences, sentences, words
from bench.users.people import (
    ChangingUser,
    Closing,
    NoisyUser,
    RandomReactions,
    Reaction,
    ShowingUser,
    User,
    WishUser,
)
from bench.users.personas import NAMES, Persona, persona
from bench.users.wishes import (
    CONDITIONAL,
    CONTRADICTORY,
    LONGER,
    TWO_SENTENCES,
    WISHES,
    AnyWish,
    Conditional,
    Wish,
)

__all__ = [
    "CONDITIONAL",
    "CONTRADICTORY",
    "LONGER",
    "NAMES",
    "TWO_SENTENCES",
    "WISHES",
    "WORD",
    "AnyWish",
    "ChangingUser",
    "Closing",
    "Conditional",
    "NoisyUser",
    "Persona",
    "RandomReactions",
    "Reaction",
    "ShowingUser",
    "User",
    "Wish",
    "WishUser",
    "first_sentences",
    "persona",
    "sentences",
    "words",
]
