"""Bounds against known values, and the two measures on texts whose verdict is plain to see."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from bench.measures import (
    choices_for,
    coherent,
    content_stems,
    logp_floor,
    loops,
    new_words,
    relevant,
    without_words_of,
)
from bench.prompts import HELDOUT
from bench.stats import bootstrap_ratio_lower, percentile, ratio, ratio_lower, share, summary, wilson

QUESTION = "How do I polish leather shoes?"


# ── bounds ────────────────────────────────────────────────────────────────────────────────────────────
def test_wilson_gives_the_textbook_interval() -> None:
    low, high = wilson(8, 10, z=1.959963984540054)
    assert (round(low, 4), round(high, 4)) == (0.4902, 0.9433)


@pytest.mark.parametrize(("k", "n"), [(0, 10), (10, 10), (1, 3)])
def test_wilson_stays_within_bounds_and_around_the_share(k: int, n: int) -> None:
    low, high = wilson(k, n)
    assert 0.0 <= low <= k / n <= high <= 1.0


def test_ratio_bound_of_perfect_shares_still_knows_the_sample_size() -> None:
    small, large = (
        ratio_lower(share([True] * 10), share([True] * 10)),
        ratio_lower(share([True] * 1000), share([True] * 1000)),
    )
    assert small < large < 1.0


def test_ratio_bound_covers_what_it_promises() -> None:
    """Over repeated draws with a true ratio of 1 the lower bound lies above 1 in about 5 % of them."""
    rng = np.random.default_rng(3)
    above = 0
    for _ in range(2000):
        a, b = rng.random(150) < 0.85, rng.random(150) < 0.85
        above += ratio_lower(share(list(a)), share(list(b))) > 1.0
    assert 0.03 < above / 2000 < 0.07


def test_ratio_takes_the_lower_of_both_bounds() -> None:
    after = {f"q{i}": [i % 4 > 0] * 6 for i in range(24)}
    before = {f"q{i}": [True] * 6 for i in range(24)}
    found = ratio(after, before)
    assert found["ratio"] == 0.75
    clustered = bootstrap_ratio_lower(after, before)
    alone = ratio_lower(share([f for v in after.values() for f in v]), share([True] * 144))
    assert clustered < alone  # answers to one question resemble each other: less is known
    assert found["lower95"] == round(clustered, 4)


def test_percentile_and_summary() -> None:
    assert percentile([4.0, 1.0, 3.0, 2.0], 50) == 2.5
    assert math.isclose(percentile(list(map(float, range(101))), 5), 5.0)
    assert summary([])["median"] is None
    assert summary([1.0, 3.0]) == {"n": 2, "mean": 2.0, "median": 2.0, "p95": 2.9, "max": 3.0}


# ── coherent ──────────────────────────────────────────────────────────────────────────────────────────
def test_a_loop_is_a_4_gram_that_stands_three_times() -> None:
    assert not loops("rub it in well. rub it in well.")
    assert loops("rub it in well. rub it in well. rub it in well.")


def test_coherent_needs_words_no_loop_and_likely_tokens() -> None:
    text = "Brush off the dust, then rub in a little cream."
    assert coherent(text, -1.2, floor=-1.7)
    assert not coherent(text, -1.8, floor=-1.7)
    assert not coherent(text, None, floor=-1.7)
    assert not coherent("...", -0.1, floor=-1.7)
    assert not coherent("yes yes yes yes yes yes yes yes", -0.5, floor=-1.7)


def test_the_floor_leaves_five_percent_of_the_base_below() -> None:
    values = [-1.0 - i / 1000 for i in range(1000)]
    floor = logp_floor(values)
    assert sum(v < floor for v in values) == 50


# ── relevant ──────────────────────────────────────────────────────────────────────────────────────────
def _bag(texts: list[str]) -> np.ndarray[Any, Any]:
    """An embedding of two topics, by words of theirs."""
    topics = [{"polish", "leather", "shoes", "cream", "brush", "boots", "cloth"}]
    rows = []
    for text in texts:
        hits = float(sum(w.strip(".,?").lower() in topics[0] for w in text.split()))
        rows.append([hits, 1.0])
    array = np.array(rows)
    return array / np.linalg.norm(array, axis=1, keepdims=True)


def test_the_questions_words_do_not_help_to_find_it() -> None:
    left = without_words_of(QUESTION, "Leather shoes? Polish your Shoes\nwith some cream.")
    assert left == "? your with some cream."


def test_repeating_the_question_is_not_relevant() -> None:
    echo = "How do I polish leather shoes? You polish leather shoes by polishing the leather of the shoes."
    assert new_words(QUESTION, echo) < 5
    assert not relevant(QUESTION, echo, HELDOUT, _bag)


def test_two_short_sentences_can_be_relevant_and_off_the_subject_they_are_not() -> None:
    on = "Brush off the dust with a soft brush. Rub in some cream, wait, and shine it with a cloth."
    off = "Water the young plants every morning. Give them plenty of sun and some good soil."
    assert relevant(QUESTION, on, HELDOUT, _bag)
    assert not relevant(QUESTION, off, HELDOUT, lambda t: np.abs(_bag(t) - [[1.0, 0.0]] * len(t)))


def test_four_new_content_words_are_not_enough() -> None:
    assert new_words(QUESTION, "Use cream, brush, cloth, patience.") == 4
    assert not relevant(QUESTION, "Use cream, brush, cloth, patience.", HELDOUT, _bag)
    assert relevant(QUESTION, "Use cream, brush, cloth, patience, water.", HELDOUT, _bag)


def test_twenty_choices_always_the_same_with_the_question_among_them() -> None:
    one, two = choices_for(QUESTION, HELDOUT), choices_for(QUESTION, HELDOUT)
    assert one == two
    assert len(set(one)) == 20
    assert one[0] == QUESTION
    with pytest.raises(ValueError, match="20 different questions"):
        choices_for(QUESTION, HELDOUT[:5])


def test_stems_join_the_forms_of_a_word() -> None:
    assert content_stems("growing grows grow") == {"grow"}
    assert content_stems("stopped stopping stop") == {"stop"}
    assert content_stems("the and of it's") == set()
