"""Who may talk in `bench.learn`, by name: a wish, or a wish with a manner (`plain+noisy`, `name_first+shows`)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from bench.users.people import ChangingUser, NoisyUser, ShowingUser, User, WishUser
from bench.users.wishes import (
    BULLETS,
    CONDITIONAL,
    FORMAL,
    KOREAN,
    LONGER,
    NAME_FIRST,
    PLAIN,
    SIGN_OFF,
    THREE_AT_ONCE,
    TWO_SENTENCES,
    AnyWish,
)

MANNERS: dict[str, type[WishUser]] = {"": WishUser, "noisy": NoisyUser, "shows": ShowingUser}


@dataclass(frozen=True, slots=True)
class Persona:
    """A user to be. `later`: the wish that takes the first one's place in the middle of the talk. `more_looks`: parts
    of the talk after which it is worth measuring as well."""

    name: str
    wish: AnyWish
    manner: str = ""
    later: AnyWish | None = None
    more_looks: tuple[float, ...] = ()

    def user(self, seed: int, interactions: int) -> User:
        if self.later is not None:
            return ChangingUser(self.wish, self.later, interactions // 2, seed)
        return MANNERS[self.manner](self.wish, seed)

    def wish_at(self, interaction: int, interactions: int) -> AnyWish:
        """The wish that was in force at the n-th (from 1) of so many interactions."""
        changed = self.later is not None and interaction > interactions // 2
        return self.later if changed and self.later is not None else self.wish


_PLAIN_SPOKEN = (
    TWO_SENTENCES,
    PLAIN,
    BULLETS,
    FORMAL,
    NAME_FIRST,
    SIGN_OFF,
    CONDITIONAL,
    THREE_AT_ONCE,
    KOREAN,
)
_PERSONAS = {w.name: Persona(w.name, w) for w in _PLAIN_SPOKEN}
_PERSONAS["korean"] = Persona("korean", KOREAN, more_looks=(0.75,))
_PERSONAS["opposite"] = Persona("opposite", TWO_SENTENCES, later=LONGER, more_looks=(0.625, 0.75))

NAMES: tuple[str, ...] = (
    *_PERSONAS,
    "two_sentences+noisy",
    "two_sentences+shows",
    "name_first+shows",
    "sign_off+shows",
)
"""Those that the full benchmark asks; any wish may be combined with any manner."""


def persona(name: str) -> Persona:
    """Raises ValueError for a name that means nobody."""
    base, _, manner = name.partition("+")
    found = _PERSONAS.get(base)
    if found is None or manner not in MANNERS or (manner and found.later) or name.endswith("+"):
        known = ", ".join(_PERSONAS)
        raise ValueError(
            f"nobody is called {name!r}; wishes are {known}, each may be followed by +noisy or +shows"
        )
    return replace(found, name=name, manner=manner)
