"""What a cell asks of the path it runs on. `api.py` does it through a real server, `fast.py` in this process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from bench.talk import Message
from instar.trainers.policy import Policy


@dataclass(frozen=True, slots=True)
class Asking:
    """How to sample. `learn` False keeps the turns out of learning. `seed` is heeded where sampling is ours to seed."""

    max_tokens: int
    temperature: float
    learn: bool = True
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class Said:
    """One answer. `turn` names it for feedback; `cut` says that the token limit ended it."""

    text: str
    turn: str | None
    version: str | None
    cut: bool
    error: str | None = None


class Serving(Protocol):
    """The product, however it is reached."""

    at_once: int
    """How many conversations a user holds side by side: their answers come from one version."""

    def ask(self, talks: Sequence[list[Message]], how: Asking) -> list[Said]:
        """The next answer of each conversation."""
        ...

    def feedback(self, turn: str, *, score: int, comment: str, correction: str | None = None) -> None:
        """What `POST /v1/feedback` does."""
        ...

    def pause(self) -> None:
        """The user reads and thinks."""
        ...

    def moment(self) -> None:
        """Between two conversations: the product may use what it has."""
        ...

    def settle(self) -> bool:
        """Nobody talks until nothing is left to judge or to learn. False if that took too long."""
        ...

    def policy(self) -> Policy:
        """The model as it is served now, in this process."""
        ...

    def version(self) -> str: ...

    def compute_s(self) -> float:
        """Seconds that updates have taken so far."""
        ...

    def turns(self) -> list[dict[str, Any]]:
        """Every recorded turn in the form of GET /v1/turns."""
        ...

    def versions(self) -> list[dict[str, Any]]:
        """Every published version in the form of GET /v1/versions."""
        ...

    def updates(self) -> dict[str, Any]:
        """How updates ended, and why turns were not learned from."""
        ...
