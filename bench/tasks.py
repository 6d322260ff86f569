"""Abilities that no wish is about, with exact checks: what a version must not lose while it learns to please.

Arithmetic, facts, opposites, small Python functions (they are run), and essays that are asked to be long: a user who
wants short answers and then asks for a long essay must get one. Greedy, but for the essays: long greedy texts of a
small model repeat themselves, and that is nobody's fault.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from bench.measures import loops
from bench.run_code import passes
from bench.text import words

ESSAY_WORDS = 120
MOST_REPEATS = 6
"""Times that a run of four words may stand in an essay. The untouched model's own come to five; a collapse does not
stop there."""


@dataclass(frozen=True, slots=True)
class Task:
    """`check` says whether an answer solves it. `temperature` 0 is greedy."""

    kind: str
    prompt: str
    check: Callable[[str], bool]
    max_tokens: int = 32
    temperature: float = 0.0


# ── checks ────────────────────────────────────────────────────────────────────────────────────────────────
_NUMBER = re.compile(r"(?<![\w.,])-?\d[\d,]*(?:\.\d+)?(?![\w])")


def numbers(text: str) -> list[float]:
    """Numbers in a text, in order; commas may group digits."""
    return [float(n.replace(",", "")) for n in _NUMBER.findall(text)]


def ends_at(expected: float, answer: str) -> bool:
    """The last number of the answer is the result: '17 + 26 = 43.' and '43' are right, '17 + 26' is not."""
    found = numbers(answer)
    return bool(found) and found[-1] == expected


def names(expected: tuple[str, ...], answer: str) -> bool:
    """One of the expected words (or runs of words) stands in the answer, as whole words in any case."""
    said = f" {' '.join(words(answer))} "
    return any(f" {' '.join(words(e))} " in said for e in expected)


def lists_all(expected: tuple[str, ...], answer: str) -> bool:
    return all(names((e,), answer) for e in expected)


def is_long_essay(answer: str) -> bool:
    return len(words(answer)) >= ESSAY_WORDS and not loops(answer, most=MOST_REPEATS)


# ── the suite ─────────────────────────────────────────────────────────────────────────────────────────────
_SUMS: tuple[tuple[str, float], ...] = (
    ("What is 12 plus 7?", 19),
    ("What is 30 plus 45?", 75),
    ("What is 9 minus 4?", 5),
    ("What is 50 minus 20?", 30),
    ("What is 6 times 7?", 42),
    ("What is 8 times 5?", 40),
    ("What is 20 divided by 4?", 5),
    ("What is 100 divided by 10?", 10),
    ("What is 3 plus 3?", 6),
    ("What is 15 plus 15?", 30),
    ("How many minutes are in two hours?", 120),
    ("How many days are in a week?", 7),
)
_FACTS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("What is the capital of France?", ("Paris",)),
    ("What is the capital of Japan?", ("Tokyo",)),
    ("What is the capital of Italy?", ("Rome",)),
    ("What is the capital of Spain?", ("Madrid",)),
    ("Who wrote the play Romeo and Juliet?", ("Shakespeare",)),
    ("Who painted the Mona Lisa?", ("Leonardo", "da Vinci")),
    ("Which planet is known as the red planet?", ("Mars",)),
    ("What is the largest ocean on Earth?", ("Pacific",)),
    ("What gas do plants take in from the air?", ("carbon dioxide", "CO2")),
    ("Which metal has the chemical symbol Fe?", ("iron",)),
    ("What is the largest planet of the solar system?", ("Jupiter",)),
    ("On which continent is Egypt?", ("Africa",)),
    ("Which language is spoken in Brazil?", ("Portuguese",)),
    ("What is the freezing point of water in degrees Celsius?", ("0", "zero")),
    ("Who was the first person to walk on the moon?", ("Armstrong",)),
    ("Which animal is called the king of the jungle?", ("lion",)),
)
_LISTS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Name the three primary colours.", ("red", "blue", "yellow")),
    ("Name the four seasons of the year.", ("spring", "summer", "winter")),
)
_OPPOSITES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("What is the opposite of hot?", ("cold", "cool")),
    ("What is the opposite of up?", ("down",)),
    ("What is the opposite of happy?", ("sad", "unhappy")),
    ("What is the opposite of large?", ("small", "little", "tiny")),
)
_CODE: tuple[tuple[str, str, tuple[tuple[tuple[object, ...], object], ...]], ...] = (
    ("Write a Python function add(a, b) that returns the sum of a and b.", "add", (((2, 3), 5), ((-1, 1), 0))),
    ("Write a Python function square(x) that returns x squared.", "square", (((4,), 16), ((-3,), 9))),
    ("Write a Python function is_even(n) that returns True if n is even.", "is_even", (((4,), True), ((7,), False))),
    ("Write a Python function largest(numbers) that returns the largest number of a list.", "largest",
     ((([3, 9, 2],), 9), (([-5, -2],), -2))),
    ("Write a Python function reverse(text) that returns the string reversed.", "reverse",
     ((("abc",), "cba"), (("",), ""))),
    ("Write a Python function length(items) that returns the number of items in a list.", "length",
     ((([1, 2, 3],), 3), (([],), 0))),
    ("Write a Python function double(x) that returns two times x.", "double", (((4,), 8), ((0,), 0))),
    ("Write a Python function first(items) that returns the first item of a list.", "first",
     ((([7, 8],), 7), ((["a"],), "a"))),
)  # fmt: skip
_ESSAYS = ("the sea", "friendship", "the history of bread", "living in a big city", "trees", "music")

TASKS: tuple[Task, ...] = (
    *(Task("arithmetic", prompt, partial(ends_at, result)) for prompt, result in _SUMS),
    *(Task("facts", prompt, partial(names, expected)) for prompt, expected in _FACTS),
    *(Task("opposites", prompt, partial(names, expected)) for prompt, expected in _OPPOSITES),
    *(Task("facts", prompt, partial(lists_all, expected), 64) for prompt, expected in _LISTS),
    *(Task("code", prompt, partial(passes, name, cases), 96) for prompt, name, cases in _CODE),
    *(Task("essay", f"Write a long essay about {about}.", is_long_essay, 224, 0.7) for about in _ESSAYS),
)
KINDS: tuple[str, ...] = tuple(dict.fromkeys(t.kind for t in TASKS))
