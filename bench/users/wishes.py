"""What one user wants of every answer, and how that user speaks when it is kept or broken.

The words lie in bench/data/wishes.toml. A wish may depend on the question (`Conditional`): `of` says which one holds.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from bench.prompts import KINDS, STORY, kind_of
from bench.users import checks

DATA = Path(__file__).parents[1] / "data" / "wishes.toml"

Check = Callable[[str], bool]
Mend = Callable[[str], str]


@dataclass(frozen=True, slots=True)
class Wish:
    """`mend` rewrites an answer so that it keeps the wish, for a user who shows what was meant; None where a
    person would not take that trouble."""

    name: str
    check: Check
    corrections: tuple[str, ...]
    praises: tuple[str, ...]
    mend: Mend | None = None

    def of(self, question: str) -> Wish:
        """The wish that holds for this question."""
        return self

    def kept(self, question: str, answer: str) -> bool:
        return self.of(question).check(answer)

    def shown(self, question: str, answer: str) -> str | None:
        """The answer as this user would have written it, or None if it cannot be had by a small edit."""
        wish = self.of(question)
        text = wish.mend(answer) if wish.mend else ""
        return text if wish.check(text) else None


@dataclass(frozen=True, slots=True)
class Conditional:
    """One wish for each kind of question. Speaks and checks as the one that holds."""

    name: str
    by_kind: Mapping[str, Wish]

    def of(self, question: str) -> Wish:
        return self.by_kind[kind_of(question)]

    def kept(self, question: str, answer: str) -> bool:
        return self.of(question).check(answer)

    def shown(self, question: str, answer: str) -> str | None:
        return self.of(question).shown(question, answer)


AnyWish = Wish | Conditional

with DATA.open("rb") as _file:
    _WORDS: dict[str, dict[str, list[str]]] = tomllib.load(_file)

BEFORE_A_CORRECTION = tuple(_WORDS["carrying_thanks"]["before_a_correction"])
WITH_A_NEW_REQUEST = tuple(_WORDS["carrying_thanks"]["with_a_new_request"])


def _wish(name: str, check: Check, mend: Mend | None = None) -> Wish:
    said = _WORDS[name]
    return Wish(name, check, tuple(said["corrections"]), tuple(said["praises"]), mend)


def _all_three(answer: str) -> bool:
    parts = (checks.begins_with_name, checks.at_most_two_sentences, checks.is_formal)
    return all(check(answer) for check in parts)


def _mend_all_three(answer: str) -> str:
    return checks.with_name(checks.shortened(checks.made_formal(answer)))


TWO_SENTENCES = _wish("two_sentences", checks.at_most_two_sentences, checks.shortened)
PLAIN = _wish("plain", checks.is_plain, checks.made_plain)
BULLETS = _wish("bullets", checks.has_bullets, checks.as_bullets)
LONGER = _wish("longer", checks.is_long)
POEM = _wish("poem", checks.is_poem)
FORMAL = _wish("formal", checks.is_formal, checks.made_formal)
NAME_FIRST = _wish("name_first", checks.begins_with_name, checks.with_name)
SIGN_OFF = _wish("sign_off", checks.is_signed, checks.signed)
THREE_AT_ONCE = _wish("three_at_once", _all_three, _mend_all_three)
KOREAN = _wish("korean", checks.at_most_two_sentences, checks.shortened)
SHORT_FACTS = _wish("short_facts", checks.at_most_two_sentences, checks.shortened)
LONG_STORIES = _wish("long_stories", checks.is_long)
CONDITIONAL = Conditional(
    "conditional", {kind: LONG_STORIES if kind == STORY else SHORT_FACTS for kind in KINDS}
)

WISHES: dict[str, Wish] = {
    w.name: w
    for w in (TWO_SENTENCES, PLAIN, BULLETS, LONGER, POEM, FORMAL, NAME_FIRST, SIGN_OFF, THREE_AT_ONCE, KOREAN,
              SHORT_FACTS, LONG_STORIES)
}  # fmt: skip
"""Wishes that hold whatever was asked."""
CONTRADICTORY: tuple[Wish, ...] = (TWO_SENTENCES, LONGER, BULLETS, PLAIN, POEM)
"""Nobody can please all of these at once: what the control's reactions are drawn from."""
