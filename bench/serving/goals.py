"""Figures beside what they should be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Tell = Callable[[str], None]
"""Says what is being done, for whoever waits."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What all parts need to know. `work` is a folder that goes away afterwards."""

    model_dir: Path
    work: Path
    threads: int
    rounds: int
    is_quick: bool
    tell: Tell
    vllm: Path | None = None

    def step(self, text: str) -> None:
        self.tell(text)


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the table. `bound` None: told for comparison only."""

    what: str
    value: float | None
    bound: float | None = None
    at_most: bool = True
    unit: str = ""
    note: str = ""

    @property
    def reached(self) -> bool | None:
        """None where there is no bound, or nothing was measured."""
        if self.bound is None or self.value is None:
            return None
        return self.value <= self.bound if self.at_most else self.value >= self.bound

    @property
    def goal(self) -> str:
        return "" if self.bound is None else f"{'≤' if self.at_most else '≥'} {self.bound:g}{self.unit}"

    @property
    def shown(self) -> str:
        return "–" if self.value is None else f"{self.value:.4g}{self.unit}"


def median(values: Sequence[float]) -> float | None:
    """None where there is nothing."""
    from statistics import median as middle

    return round(middle(values), 4) if values else None


Figures = dict[str, Any]
