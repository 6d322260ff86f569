"""The suite of unrelated abilities: what its checks take for right and for wrong."""

from __future__ import annotations

from collections import Counter

import pytest
from bench.prompts import HELDOUT, STORIES_HELDOUT, STORIES_TRAIN, TRAIN, UNRELATED
from bench.run_code import passes, source_of
from bench.tasks import TASKS, ends_at, is_long_essay, lists_all, names

ADD = (((2, 3), 5), ((-1, 1), 0))
GOOD = "def add(a, b):\n    return a + b"


def test_the_suite_is_large_enough_and_asks_nothing_twice() -> None:
    prompts = [t.prompt for t in TASKS]
    elsewhere = {*TRAIN, *HELDOUT, *UNRELATED, *STORIES_TRAIN, *STORIES_HELDOUT}
    assert len(set(prompts)) == len(prompts) >= 40
    assert not elsewhere & set(prompts)
    assert {"arithmetic", "facts", "code", "essay"} <= set(Counter(t.kind for t in TASKS))


RIGHT = {
    "What is 12 plus 7?": "12 plus 7 is 19.",
    "How many minutes are in two hours?": "There are 120 minutes.",
    "What is the capital of France?": "The capital of France is **Paris**.",
    "Name the three primary colours.": "Red, blue, and yellow.",
    "What is the opposite of hot?": "Cold",
    "Write a Python function add(a, b) that returns the sum of a and b.": f"```python\n{GOOD}\n```",
    "Write a long essay about the sea.": " ".join(f"wave{i}" for i in range(130)),
}


@pytest.mark.parametrize("prompt", sorted(RIGHT))
def test_tasks_tell_right_from_wrong(prompt: str) -> None:
    task = next(t for t in TASKS if t.prompt == prompt)
    assert task.check(RIGHT[prompt])
    assert not task.check("I am not sure about that, sorry.")
    assert not task.check("")


@pytest.mark.parametrize(
    ("answer", "right"),
    [
        ("43", True),
        ("17 + 26 = 43.", True),
        ("The answer is **43**", True),
        ("43.0", True),
        ("17 plus 26 is 33", False),
        ("43 is 17 + 26", False),
        ("17 + 26", False),
        ("143", False),
        ("forty-three", False),
    ],
)
def test_arithmetic_goes_by_the_last_number(answer: str, right: bool) -> None:
    assert ends_at(43, answer) is right


def test_large_numbers_may_group_their_digits() -> None:
    assert ends_at(1250, "That makes 1,250 dollars.")


def test_facts_are_whole_words() -> None:
    assert names(("Rome",), "It's Rome!")
    assert not names(("Rome",), "It is Romeo.")
    assert names(("carbon dioxide", "CO2"), "Plants take in Carbon Dioxide.")
    assert not names(("carbon dioxide",), "carbon and dioxide")
    assert not lists_all(("red", "blue", "yellow"), "red and blue")


def test_a_long_essay_is_long_and_no_loop() -> None:
    assert not is_long_essay("A short one about the sea. The end.")
    assert not is_long_essay("the sea is blue and " * 40)
    filler = " ".join(f"wave{i}" for i in range(130))
    assert is_long_essay(filler + "".join(f" {i} as blue as glass" for i in range(6)))
    assert not is_long_essay(filler + "".join(f" {i} as blue as glass" for i in range(7)))


@pytest.mark.parametrize(
    "answer",
    [
        GOOD,
        f"Here you are:\n\n```python\n{GOOD}\n\nprint(add(1, 2))\n```\nIt adds them.",
        f"```\n{GOOD}\n",
        f"{GOOD}\n\nThis function returns the sum of a and b.",
        'def add(a, b):\n    """Add."""\n    result = sum([a, b])\n    return result\n\nprint(add(1',
    ],
)
def test_code_is_found_and_run(answer: str) -> None:
    assert passes("add", ADD, answer)


@pytest.mark.parametrize(
    "answer",
    [
        "def add(a, b):\n    return a - b",
        "def add(a, b):\n    print(a + b)",
        "def plus(a, b):\n    return a + b",
        "def add(a, b):\n    return str(a + b)",
        "def add(a, b):\n    return a +",
        "a + b",
        "def add(a, b):\n    while True:\n        pass",
        "def add(a, b):\n    return [0] * 10**10",
    ],
)
def test_wrong_code_fails(answer: str) -> None:
    assert not passes("add", ADD, answer)


@pytest.mark.parametrize(
    "body",
    [
        "import os\n    return a + b",
        "return ().__class__",
        "return __import__('os')",
        "return '{0.__class__}'.format(a)",
        "global x\n    return a + b",
        "with open('f') as f:\n        return a + b",
    ],
)
def test_what_opens_doors_is_not_run(body: str) -> None:
    assert source_of(f"def add(a, b):\n    {body}", "add") is None


def test_a_builtin_that_is_not_needed_is_not_there() -> None:
    assert source_of("def add(a, b):\n    return eval('a + b')", "add") is not None
    assert not passes("add", ADD, "def add(a, b):\n    return eval('a + b')")
    assert not passes("add", ADD, "def add(a, b):\n    open('/tmp/x', 'w')\n    return a + b")
