"""What a cell is, and which cells are run. A plan is everything that decides a cell's outcome beside the code."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from bench.learn.arms import API, ARMS, FAST, Arm
from bench.prompts import QUESTIONS
from bench.users import CONDITIONAL, NAMES, Persona, persona

MARKS = (8, 16, 32, 64)
ORACLE, PRODUCT = "oracle", "product"
"""Who turns a reaction into score and hint: explicit feedback with what the user meant, or the product's judge."""


@dataclass(frozen=True, slots=True)
class Plan:
    """`user` is a persona's name; for an arm that does not talk it does not matter and is the questions' name.

    `settings` are training settings on top of the arm's; names that are no training setting go into the job as they
    are (fast path only), for experiments.
    """

    path: str
    judge: str
    arm: str
    user: str
    seed: int
    marks: tuple[int, ...] = MARKS
    repeats: int = 2
    max_tokens: int = 128
    temperature: float = 0.7
    think_s: float = 3.0
    tasks: bool = True
    model: str = "starter"
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def how(self) -> Arm:
        return ARMS[self.arm]

    @property
    def persona(self) -> Persona:
        return persona(self.user)

    @property
    def interactions(self) -> int:
        return max(self.marks)

    @property
    def question_set(self) -> str:
        return question_set_of(self.user)

    @property
    def train(self) -> dict[str, Any]:
        """Training settings beside the product's defaults."""
        return {**self.how.settings, **self.settings, "seed": self.seed, "enabled": self.how.learns}

    @property
    def name(self) -> str:
        """Of the cell's file. What differs from the usual plan of such a cell gives it a name of its own."""
        usual = make(self.path, self.judge, self.arm, self.user, self.seed).json()
        unusual = {k: v for k, v in self.json().items() if v != usual[k]}
        parts = [self.path, self.judge, self.arm, self.user, str(self.seed)]
        if unusual:
            parts.append(hashlib.sha256(json.dumps(unusual, sort_keys=True).encode()).hexdigest()[:8])
        return "-".join(parts)

    def json(self) -> dict[str, Any]:
        return {**asdict(self), "marks": list(self.marks), "settings": dict(self.settings)}

    @staticmethod
    def of(values: Mapping[str, Any]) -> Plan:
        return Plan(**{**values, "marks": tuple(values["marks"])})


def question_set_of(user: str) -> str:
    """The questions that this user asks; the name of a set of questions stands for itself."""
    if user in QUESTIONS:
        return user
    return "facts_and_stories" if persona(user).wish is CONDITIONAL else "everyday"


def make(path: str, judge: str, arm: str, user: str, seed: int, **more: Any) -> Plan:
    """A plan in its plainest form: what makes no difference to a cell is left out, so that cells are shared.

    Some users are looked at more often than at the marks (`Persona.more_looks`).
    """
    plan = Plan(path, judge, arm, user, seed, **more)
    how = plan.how
    if how.talks:
        extra = {int(part * plan.interactions) for part in plan.persona.more_looks}
        return replace(plan, marks=tuple(sorted({*plan.marks, *extra})))
    quiet = {"marks": (0,), "think_s": 0.0, "settings": {}}
    where = user if how.hinted else question_set_of(user)
    return Plan(path, "none", arm, where, seed, **{**more, **quiet})


@dataclass(frozen=True, slots=True)
class Block:
    """Every arm with every wish and seed."""

    path: str
    judge: str
    arms: tuple[str, ...]
    users: tuple[str, ...]
    seeds: tuple[int, ...] = (0, 1, 2)

    def plans(self, **more: Any) -> Iterator[Plan]:
        for seed in self.seeds:
            for user in self.users:
                for arm in ("nothing", *self.arms):
                    if self.path in ARMS[arm].paths:
                        yield make(self.path, self.judge, arm, user, seed, **more)


FOLLOWABLE = ("two_sentences", "plain")
"""Wishes that the model can keep when they stand in front of the question."""

SHORT: tuple[Block, ...] = (Block(FAST, ORACLE, ("system_prompt", "combined"), ("two_sentences",)),)
SHORT_MARKS = (16,)

FULL: tuple[Block, ...] = (
    Block(API, PRODUCT, ("system_prompt", "random", "combined"), FOLLOWABLE),
    Block(API, ORACLE, ("combined",), FOLLOWABLE),
    Block(FAST, ORACLE, tuple(a for a in ARMS if a != "nothing"), FOLLOWABLE),
    Block(FAST, ORACLE, ("hinted", "system_prompt", "combined"), NAMES),
    Block(FAST, PRODUCT, ("combined",), NAMES),
)
"""Not every arm with every wish: the whole product would take weeks."""

COMPARE: tuple[Block, ...] = tuple(
    Block(path, judge, ("combined",), ("two_sentences",))
    for path in (API, FAST)
    for judge in (ORACLE, PRODUCT)
)
"""Cells that both paths must agree on."""


def plans_of(blocks: Sequence[Block], **more: Any) -> list[Plan]:
    """The plans of all blocks in order, each once."""
    return unique(plan for block in blocks for plan in block.plans(**more))


def unique(plans: Iterable[Plan]) -> list[Plan]:
    found: dict[str, Plan] = {}
    for plan in plans:
        found.setdefault(plan.name, plan)
    return list(found.values())
