"""Reactions by lot teach nothing; a wish, a change of mind and an edit do."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from instar.records import JudgedAnswer, Origin, WeightedSample
from instar.trainers.answer_scorer import fit_scorer
from instar.trainers.consistency import (
    DOUBT,
    ENOUGH,
    RECENT,
    WINDOW,
    consistent,
    contradicts_itself,
    is_one_sided,
    is_unclear,
    praise_grew,
)
from instar.trainers.local import run_update, scorers_of
from instar.trainers.policy import Policy
from tests.kit.samples import job, weighted
from tests.kit.tiny_model import write_tiny_model

torch.set_num_threads(1)
WORDS = (
    "the", "river", "bends", "slowly", "past", "old", "mills", "and", "quiet", "fields", "where", "herons", "wait",
)  # fmt: skip


def answer(rng: random.Random, words: int) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(words)).capitalize() + "."


def verdicts(kind: str, count: int, seed: int = 0) -> list[JudgedAnswer]:
    """`short`: answers of under 20 words please; `lot`: a coin decides; `flipped`: short pleased, now long would."""
    rng = random.Random(seed)
    found = []
    for i in range(count):
        words = rng.choice([8, 12, 30, 40])
        pleases = rng.random() < 0.5 if kind == "lot" else words < 20
        if kind == "flipped":
            words = rng.choice([8, 12])
            pleases = i < count - RECENT
        hint = None if pleases else rng.choice(["Shorter, please.", "Longer, please.", "A list!"])
        found.append(JudgedAnswer("ann", "What is it?", answer(rng, words), 1 if pleases else -1, hint))
    return found


def test_lots_are_mostly_seen_and_a_wish_is_never_taken_for_one() -> None:
    lots = sum(contradicts_itself(verdicts("lot", WINDOW, seed)) for seed in range(20))
    assert lots >= 10
    assert not any(contradicts_itself(verdicts("short", WINDOW, seed)) for seed in range(20))


def test_a_change_of_mind_is_no_contradiction() -> None:
    assert not any(contradicts_itself(verdicts("flipped", WINDOW, seed)) for seed in range(10))


def test_few_verdicts_or_verdicts_of_one_kind_tell_nothing() -> None:
    told = next(v for v in (verdicts("lot", WINDOW, s) for s in range(50)) if contradicts_itself(v))
    assert not contradicts_itself(told[: ENOUGH - 1])
    assert not contradicts_itself([h for h in told if h.score > 0] * 3)
    assert not contradicts_itself([])


def sorted_out(
    samples: list[WeightedSample], history: list[JudgedAnswer]
) -> tuple[list[WeightedSample], str]:
    return consistent(samples, history, scorers_of(history))


def lot() -> list[JudgedAnswer]:
    return next(v for v in (verdicts("lot", WINDOW, s) for s in range(50)) if contradicts_itself(v))


def test_only_that_learners_turns_are_left_out_and_edits_stay() -> None:
    samples = [
        weighted("a", learner="ann"),
        weighted("b", learner="ann", origin=Origin.EDIT),
        weighted("c", learner="bob"),
    ]
    kept, why = sorted_out(samples, lot())
    assert [s.turn_id for s in kept] == ["b", "c"]
    assert "contradicts itself" in why
    assert sorted_out(samples, verdicts("short", WINDOW)) == (samples, "")


def test_unclear_verdicts_teach_a_little_and_edits_in_full() -> None:
    samples = [
        weighted("a", learner="ann", nll_T=[0.25] * 4, revise=1.0),
        weighted("b", learner="ann", origin=Origin.EDIT, nll_T=[0.25] * 4),
        weighted("c", learner="bob", nll_T=[0.25] * 4),
    ]
    few = next(v for v in (verdicts("lot", 12, s) for s in range(50)) if is_unclear(v, fit_scorer(v)))
    kept, why = sorted_out(samples, few)
    assert [sum(s.nll_T) for s in kept] == [DOUBT, 1.0, 1.0]
    assert (kept[0].revise, why) == (DOUBT, "")


def test_a_beginning_and_a_change_of_mind_are_not_unclear() -> None:
    told = verdicts("lot", 30, seed=1)
    disliked = [h for h in told if h.score < 0]
    assert not is_unclear(disliked, fit_scorer(disliked))
    changed = [*told, *disliked[:RECENT]]
    assert not is_unclear(changed, fit_scorer(changed))
    lots, wishes = (
        [verdicts(kind, count, seed) for seed in range(20)] for kind, count in (("lot", 16), ("short", 24))
    )
    assert sum(is_unclear(v, fit_scorer(v)) for v in lots) >= 12
    assert not any(is_unclear(v, fit_scorer(v)) for v in wishes)


def told(praises: int, corrections: int, version: str = "base") -> list[JudgedAnswer]:
    scores = [1] * praises + [-1] * corrections
    return [JudgedAnswer("ann", "What is it?", "A word.", score, version=version) for score in scores]


@pytest.mark.parametrize(
    ("base", "learned", "grew"),
    [((0, 13), (3, 1), True), ((0, 8), (0, 8), False), ((0, 13), (1, 4), False), ((3, 5), (4, 4), False),
     ((3, 0), (0, 13), False), ((0, 8), (0, 0), False), ((6, 24), (20, 4), True)],
)  # fmt: skip
def test_praise_that_grew_is_what_a_lot_hardly_gives(
    base: tuple[int, int], learned: tuple[int, int], grew: bool
) -> None:
    history = [*told(*base), *told(*learned, version="v2")]
    assert praise_grew(history) is grew
    unclear = is_unclear(history, None)
    assert not (grew and unclear)


def test_unclear_verdicts_are_clear_once_what_was_learned_pleases_more() -> None:
    assert is_unclear([*told(1, 13), *told(3, 1)], None)
    assert not is_unclear([*told(1, 13), *told(3, 1, version="v1")], None)


@pytest.mark.parametrize(
    ("praises", "corrections", "one_sided"),
    [
        (0, 8, True),
        (1, 7, False),
        (1, 11, True),
        (2, 10, False),
        (2, 14, True),
        (3, 13, False),
        (12, 0, True),
    ],
)
def test_one_sided_is_what_a_lot_hardly_gives(praises: int, corrections: int, one_sided: bool) -> None:
    assert is_one_sided(told(praises, corrections)) is one_sided


@pytest.mark.parametrize(("praises", "unclear"), [(0, False), (1, True), (3, True), (8, False)])
def test_a_first_batch_takes_the_whole_step_only_if_it_is_of_one_kind(praises: int, unclear: bool) -> None:
    first = told(praises, 8 - praises)
    assert is_unclear(first, fit_scorer(first)) is unclear


@pytest.mark.parametrize("kind", ["lot", "short"])
def test_an_update_from_contradictions_makes_no_version_and_says_so(tmp_path: Path, kind: str) -> None:
    model_dir = write_tiny_model(tmp_path / "tiny")
    update = job(model_dir, tmp_path / "v1", [weighted(learner="ann", nll_T=[0.25] * 4, logprobs=[])])
    update.history.extend(lot() if kind == "lot" else verdicts("short", WINDOW))
    result = run_update(update, Policy(model_dir, rank=4, alpha=8), None)
    assert result.taught == (kind == "short")
    assert (tmp_path / "v1").exists() == (kind == "short")
    assert ("contradicts itself" in result.why) == (kind == "lot")
