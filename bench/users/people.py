"""The simulated users: a wish, and a manner of reacting to what keeps or breaks it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from bench.users.wishes import (
    BEFORE_A_CORRECTION,
    CONTRADICTORY,
    TWO_SENTENCES,
    WITH_A_NEW_REQUEST,
    AnyWish,
    Wish,
)


@dataclass(frozen=True, slots=True)
class Reaction:
    """What the user types and what the user means by it: +1 content, −1 not. An empty text is silence, which
    means nothing (0)."""

    text: str
    meant: int
    kept: bool


@dataclass(frozen=True, slots=True)
class Closing:
    """What the user does about a corrected answer after seeing the second one: nothing, thanks for it (then the
    second answer is accepted), or shows how the first one should have been."""

    thanks: str | None = None
    edit: str | None = None


class User(Protocol):
    name: str

    def react(self, answer: str, question: str = "") -> Reaction: ...

    def close(self, question: str, answer: str, second: str) -> Closing:
        """Asked once after each correction; `answer` was corrected, `second` is the answer to the correction."""
        ...


class _Bag:
    """Draws texts in random order, each once before any comes again."""

    def __init__(self, texts: Sequence[str], rng: random.Random) -> None:
        self._texts, self._rng, self._left = texts, rng, list[str]()

    def draw(self) -> str:
        if not self._left:
            self._left = list(self._texts)
            self._rng.shuffle(self._left)
        return self._left.pop()


class _Voice:
    """One user's words for any number of wishes."""

    def __init__(self, rng: random.Random) -> None:
        self._rng, self._bags = rng, dict[tuple[str, bool], _Bag]()

    def of(self, wish: Wish, *, praise: bool) -> str:
        key = (wish.name, praise)
        if key not in self._bags:
            self._bags[key] = _Bag(wish.praises if praise else wish.corrections, self._rng)
        return self._bags[key].draw()


class WishUser:
    """Thanks when the wish is kept, corrects when it is broken; nothing else matters to this user."""

    def __init__(self, wish: AnyWish, seed: int) -> None:
        self._rng = random.Random(f"{wish.name}/{seed}")
        self.name, self._wish, self._voice = wish.name, wish, _Voice(self._rng)

    def react(self, answer: str, question: str = "") -> Reaction:
        kept = self._wish.kept(question, answer)
        return self._say(question, kept, praise=kept)

    def _say(self, question: str, kept: bool, *, praise: bool) -> Reaction:
        return Reaction(self._voice.of(self._wish.of(question), praise=praise), 1 if praise else -1, kept)

    def close(self, question: str, answer: str, second: str) -> Closing:
        return Closing()


class ChangingUser:
    """Wants one thing for `until` interactions, and then the opposite, without a word about the change."""

    def __init__(self, first: AnyWish, then: AnyWish, until: int, seed: int) -> None:
        self.name, self._until, self._seen = f"{first.name}→{then.name}", until, 0
        self._users = (WishUser(first, seed), WishUser(then, seed))

    def react(self, answer: str, question: str = "") -> Reaction:
        self._seen += 1
        return self._users[self._seen > self._until].react(answer, question)

    def close(self, question: str, answer: str, second: str) -> Closing:
        return Closing()


class NoisyUser(WishUser):
    """Says the opposite now and then, wraps corrections in thanks and new requests in praise, or says nothing."""

    CONTRADICTS, SILENT, CARRIES = 0.1, 0.1, 0.3

    def __init__(self, wish: AnyWish, seed: int) -> None:
        super().__init__(wish, seed)
        self._openers = _Bag(BEFORE_A_CORRECTION, self._rng)
        self._requests = _Bag(WITH_A_NEW_REQUEST, self._rng)

    def react(self, answer: str, question: str = "") -> Reaction:
        kept, luck = self._wish.kept(question, answer), self._rng.random()
        if luck < self.CONTRADICTS:
            return self._say(question, kept, praise=not kept)
        if luck < self.CONTRADICTS + self.SILENT:
            return Reaction("", 0, kept)
        if luck < self.CONTRADICTS + self.SILENT + self.CARRIES:
            return self._carrying(question, kept)
        return self._say(question, kept, praise=kept)

    def _carrying(self, question: str, kept: bool) -> Reaction:
        if kept:
            return Reaction(self._requests.draw(), 1, kept)
        plain = self._say(question, kept, praise=False)
        return Reaction(f"{self._openers.draw()} {plain.text}", -1, kept)


class ShowingUser(WishUser):
    """In half of the cases shows what was meant: thanks for a second answer that keeps the wish, or else writes
    the first one as it should have been. In the other half a correction is all there is."""

    SHOWS = 0.5

    def close(self, question: str, answer: str, second: str) -> Closing:
        if self._rng.random() >= self.SHOWS:
            return Closing()
        if self._wish.kept(question, second):
            return Closing(thanks=self._voice.of(self._wish.of(question), praise=True))
        return Closing(edit=self._wish.shown(question, answer))


class RandomReactions:
    """The control: praise or a correction of a random wish, whatever the answer was. Nothing can be learned
    from it, so a product that 'improves' under it only drifts."""

    def __init__(
        self, seed: int, wishes: tuple[Wish, ...] = CONTRADICTORY, praise_share: float = 0.5
    ) -> None:
        self._rng = random.Random(f"random/{seed}")
        self.name, self._share = "random", praise_share
        self._bags = [(_Bag(w.praises, self._rng), _Bag(w.corrections, self._rng)) for w in wishes]

    def react(self, answer: str, question: str = "") -> Reaction:
        kept = TWO_SENTENCES.check(answer)  # noted for the record; the reaction does not depend on it
        praises, corrections = self._rng.choice(self._bags)
        if self._rng.random() < self._share:
            return Reaction(praises.draw(), 1, kept)
        return Reaction(corrections.draw(), -1, kept)

    def close(self, question: str, answer: str, second: str) -> Closing:
        return Closing()
