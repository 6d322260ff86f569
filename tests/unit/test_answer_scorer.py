"""The scorer of answers learns what pleases one person from a handful of verdicts, or says nothing."""

from __future__ import annotations

import random

import numpy as np
import pytest

from instar.records import JudgedAnswer
from instar.trainers.answer_scorer import (
    FEWEST,
    Head,
    cross_validated,
    features,
    fit_scorer,
    least_accuracy,
    recurring_words,
)

TOPICS = ("tea", "dogs", "guitars", "trains", "tomatoes", "teeth", "volcanoes", "shoes", "eggs", "the moon")
CORRECTIONS = ("Call me Maria!", "Start with Maria, please.", "You forgot to say Maria first.")


def sentence(rng: random.Random) -> str:
    words = rng.sample(
        ["warm", "water", "and", "slowly", "you", "often", "find", "old", "green", "leaves"], 7
    )
    return " ".join(words).capitalize() + rng.choice(".!.")


def plain(rng: random.Random, sentences: int) -> str:
    return " ".join(sentence(rng) for _ in range(sentences))


def listed(rng: random.Random) -> str:
    return "\n".join(f"- {sentence(rng)}" for _ in range(rng.randint(3, 5)))


def judged(answer: str, score: int, rng: random.Random) -> JudgedAnswer:
    hint = rng.choice(CORRECTIONS) if score < 0 else None
    return JudgedAnswer("ann", f"What about {rng.choice(TOPICS)}?", answer, score, hint)


def history(wish: str, count: int, seed: int = 0) -> list[JudgedAnswer]:
    rng = random.Random(seed)
    found = []
    for i in range(count):
        good = i % 3 == 0
        text = plain(rng, 4)
        if wish == "short":
            text = plain(rng, 1 if good else rng.randint(3, 5))
        elif wish == "lists":
            text = listed(rng) if good else text
        elif wish == "name":
            text = f"Maria, {text}" if good else rng.choice([text, f"{text} Maria"])
        found.append(judged(text, 1 if good else -1, rng))
    return found


@pytest.mark.parametrize("wish", ["short", "lists", "name"])
def test_a_wish_is_seen_after_two_dozen_verdicts(wish: str) -> None:
    scorer = fit_scorer(history(wish, 24))
    assert scorer is not None
    assert scorer.accuracy >= 0.8
    unseen = history(wish, 60, seed=1)
    right = [(scorer.probability(h.question, h.answer) > 0.5) == (h.score > 0) for h in unseen]
    assert np.mean(right) >= 0.9


@pytest.mark.parametrize("count", [12, 16, 24, 40])
def test_verdicts_without_a_pattern_give_no_scorer(count: int) -> None:
    found = 0
    for seed in range(40):
        rng = random.Random(seed)
        told = [judged(plain(rng, rng.randint(2, 5)), rng.choice([1, -1]), rng) for _ in range(count)]
        found += fit_scorer(told) is not None
    assert found <= 2


def test_the_fewer_the_verdicts_the_clearer_they_must_be() -> None:
    even = {n: least_accuracy(np.arange(n) % 2) for n in (8, 16, 32, 200)}
    assert even[8] == pytest.approx(0.5 + 2.8 * 0.5 / np.sqrt(8))
    assert even[8] > even[16] > even[32] == even[200] == 0.8
    assert least_accuracy(np.arange(16) % 4 == 0) > even[16]


def test_too_few_of_a_kind_give_no_scorer() -> None:
    told = history("short", 24)
    accepted = [h for h in told if h.score > 0]
    rejected = [h for h in told if h.score < 0]
    assert fit_scorer([*accepted[: FEWEST - 1], *rejected]) is None
    assert fit_scorer([*accepted, *rejected[: FEWEST - 1]]) is None
    assert fit_scorer([*accepted[:FEWEST], *rejected]) is not None
    assert fit_scorer([]) is None


def test_words_recur_in_corrections_and_not_in_the_question() -> None:
    assert recurring_words(["Say Maria.", "maria first", "say it"]) == ("maria", "say")
    with_word = features("What is tea?", "Maria says so", ("maria",))
    without = features("Who is Maria?", "Maria says so", ("maria",))
    assert (with_word[-3:] == [1.0, 1.0, 1.0]).all()
    assert (without[-3:] == [0.0, 0.0, 0.0]).all()


def test_both_classes_weigh_the_same_however_many_they_are() -> None:
    rows = np.array([[0.0]] * 30 + [[1.0]] * 3)
    head = Head.fit(rows, np.array([0.0] * 30 + [1.0] * 3))
    low, high = head(np.array([[0.0], [1.0]]))
    assert low == pytest.approx(1 - high, abs=0.02)


def test_accuracy_is_measured_on_verdicts_that_the_head_has_not_seen() -> None:
    rng = np.random.default_rng(0)
    noise = rng.normal(size=(40, 60))
    labels = (np.arange(40) % 2).astype(float)
    assert ((Head.fit(noise, labels)(noise) > 0.5) == (labels == 1)).mean() > 0.95
    assert cross_validated(noise, labels) < 0.7
