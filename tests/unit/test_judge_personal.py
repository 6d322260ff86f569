"""A learner's own ratings move the heads: for them alone, for messages like the rated ones, and only where it helps."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from instar.config import JudgeSettings
from instar.judges import build_chain
from instar.judges.calibration import Case, as_item
from instar.judges.embedding import BUNDLED, Embedding, Remembered, load_embedding
from instar.judges.heads import CLASSES, Heads, HeadsLink, load_heads
from instar.judges.networks import softmax
from instar.judges.personal import Figures, PersonalHeads, Rating, as_ratings, dual, folds
from instar.records import Abstention, JudgeItem, NextKind, NextState, RatedTurn, Verdict
from tests.kit.store_scenes import Scene, make_turn

IRONY = (
    "great job, really",
    "wow, brilliant work, really",
    "well done, genius",
    "Amazing, truly amazing, just what nobody asked for",
    "Fantastic job as always, sure",
    "super, great job once more",
    "brilliant, really brilliant",
    "oh, great job",
)
MORE_IRONY = ("great work, really", "bravo, really great job", "oh wow, great job", "great job, as always")
PRAISE = (
    "Thank you so much, that is exactly what I was hoping for!",
    "thanks, this helps a lot",
    "Danke, das passt genau.",
    "that's exactly it, thanks",
    "this is very helpful, thank you",
    "yes, that works now",
)
THANKS = "thank you, that is perfect"
COMPLAINT = "No, that's wrong. Please write it again, and much shorter."


class FakeRatings:
    """A store of ratings, in memory; counts how often it is read."""

    def __init__(self, **learners: Sequence[tuple[str, int]]) -> None:
        self.learners = {name: list(pairs) for name, pairs in learners.items()}
        self.newest, self.read = 1, 0

    def newest_rating(self) -> int:
        return self.newest

    def rated_turns(self, learner: str, limit: int) -> list[RatedTurn]:
        self.read += 1
        pairs = list(enumerate(self.learners.get(learner, [])))[::-1][:limit]
        return [rated_turn(f"{learner} {number}", text, score) for number, (text, score) in pairs]

    def add(self, learner: str, text: str, score: int) -> None:
        self.learners.setdefault(learner, []).append((text, score))
        self.newest += 1


def rated_turn(turn_id: str, text: str, score: int) -> RatedTurn:
    return RatedTurn(turn_id, "", [NextState(turn_id, NextKind.FEEDBACK, text, 1.0, score=score)])


def rating(text: str, score: int = 1) -> Rating:
    return Rating(text, "", text, score)


def all_rated(texts: Sequence[str], score: int) -> list[tuple[str, int]]:
    return [(text, score) for text in texts]


@pytest.fixture(scope="module")
def embedding() -> Embedding:
    return Remembered(load_embedding(BUNDLED))


@pytest.fixture(scope="module")
def heads(embedding: Embedding) -> Heads:
    return load_heads(embedding).first(JudgeSettings().heads)


class Reader:
    """The heads' link over some ratings, asked as the chain asks it."""

    def __init__(self, heads: Heads, embedding: Embedding, ratings: FakeRatings) -> None:
        self.own = PersonalHeads(heads, embedding, ratings, 0.75)
        self.link = HeadsLink(heads, embedding, own=self.own)

    def says(self, text: str, learner: str = "ann", turn_id: str = "new") -> Verdict | Abstention | None:
        turn = make_turn(turn_id, learner=learner, messages=[])
        return self.link.judge(
            JudgeItem(turn, [NextState(turn.id, NextKind.USER_REPLY, text, 0.0)], lease="")
        )

    def score(self, text: str, learner: str = "ann") -> int | None:
        said = self.says(text, learner)
        return said.score if isinstance(said, Verdict) else None


# ── the real heads ────────────────────────────────────────────────────────────────────────────────────────
def test_irony_that_was_rated_down_is_no_praise_any_more_and_all_else_stays(
    heads: Heads, embedding: Embedding
) -> None:
    told = [*all_rated(IRONY, -1), *all_rated(PRAISE, 1)]
    reader = Reader(heads, embedding, FakeRatings(ann=told))
    assert [reader.score(text, "bob") for text in MORE_IRONY] == [1] * 4, "shipped, and for others"
    assert {reader.score(text) for text in MORE_IRONY} <= {-1, None}
    assert reader.score(THANKS) == 1
    assert reader.score(COMPLAINT) == -1
    assert reader.score("How many moons does Jupiter have?") == 0
    found = reader.own.facts()
    assert set(found) == {"ann"}
    assert found["ann"]["in_use"]
    assert found["ann"]["ratings"] == 14


def test_a_reading_that_was_moved_says_so(heads: Heads, embedding: Embedding) -> None:
    reader = Reader(heads, embedding, FakeRatings(ann=[*all_rated(IRONY, -1), *all_rated(PRAISE, 1)] * 3))
    turned = reader.says(IRONY[0])
    assert isinstance(turned, Verdict)
    assert turned.score == -1
    assert turned.why.endswith(", as your own ratings of such words say: without them it sounds content")
    silent = [said for said in map(reader.says, MORE_IRONY) if isinstance(said, Abstention)]
    why = "without them it sounds content, but your own ratings of such words speak against it"
    assert {said.why for said in silent} <= {why}
    as_ever = reader.says(COMPLAINT)
    assert isinstance(as_ever, Verdict)
    assert "ratings" not in as_ever.why


def test_one_wrong_rating_turns_nothing(heads: Heads, embedding: Embedding) -> None:
    """However often it is made: it is held out with its like, and then teaches nothing."""
    honest = all_rated(PRAISE, 1)
    often = Reader(heads, embedding, FakeRatings(ann=[*honest, *[(THANKS, -1)] * 20]))
    assert often.score(THANKS) == 1
    assert not often.own.facts()["ann"]["in_use"]
    among_others = Reader(heads, embedding, FakeRatings(ann=[*all_rated(IRONY, -1), (COMPLAINT, 1)]))
    assert among_others.score(IRONY[0]) != 1
    assert among_others.score(COMPLAINT) in {-1, None}
    assert among_others.score("shorter, please") == -1
    assert among_others.score(THANKS) == 1


def test_ratings_that_contradict_each_other_move_nothing(heads: Heads, embedding: Embedding) -> None:
    same_texts = [(text, score) for text in PRAISE for score in (1, -1)]
    same_kind = [(text, (-1) ** number) for number, text in enumerate((*PRAISE, THANKS, *IRONY))]
    for told in (same_texts, same_kind):
        reader = Reader(heads, embedding, FakeRatings(ann=told))
        assert reader.score(THANKS) == 1
        facts = reader.own.facts()["ann"]
        assert not facts["in_use"]
        assert facts["agree_after"] < facts["agree_before"]


def test_too_few_different_messages_move_nothing(heads: Heads, embedding: Embedding) -> None:
    few = [*all_rated(IRONY[:5], -1), ("Great job – really!", -1), (IRONY[1], -1)]
    reader = Reader(heads, embedding, FakeRatings(ann=few))
    assert reader.score(IRONY[0]) == 1
    nothing = {"ratings": 7, "in_use": False, "agree_before": None, "agree_after": None}
    assert reader.own.facts() == {"ann": nothing}


@pytest.mark.parametrize("told", [all_rated(IRONY, -1), [*all_rated(PRAISE, 1), ("hm", 0)]])
def test_ratings_of_one_sign_move_nothing(
    heads: Heads, embedding: Embedding, told: list[tuple[str, int]]
) -> None:
    """Whoever only ever complains would have all their words read as complaints."""
    reader = Reader(heads, embedding, FakeRatings(ann=told))
    assert reader.own.offset("ann", without="new") is None
    assert reader.own.facts()["ann"]["agree_before"] is None


def test_what_was_said_of_a_turn_has_no_part_in_reading_it(heads: Heads, embedding: Embedding) -> None:
    told = [*all_rated(IRONY, -1), *all_rated(PRAISE, 1)]
    reader = Reader(heads, embedding, FakeRatings(ann=told))
    others = [Rating(f"ann {number}", "", text, score) for number, (text, score) in enumerate(told)][1:]
    unaware = reader.own.offset("ann", without="ann 0")
    assert unaware is not None
    np.testing.assert_allclose(unaware, reader.own.fit(others).offset_CF, atol=1e-3)
    aware = reader.own.offset("ann", without="new")
    assert aware is not None
    assert np.abs(aware - unaware).max() > 0.05
    assert reader.own.facts()["ann"]["ratings"] == 14


def test_ratings_are_read_again_only_when_something_was_rated(heads: Heads, embedding: Embedding) -> None:
    ratings = FakeRatings(ann=all_rated(IRONY[:5], -1))
    reader = Reader(heads, embedding, ratings)
    assert [reader.own.offset("ann", without="") for _ in range(3)] == [None] * 3
    assert ratings.read == 1
    for text, score in (*all_rated(IRONY[5:], -1), *all_rated(PRAISE, 1)):
        ratings.add("ann", text, score)
    assert reader.own.offset("ann", without="") is not None
    assert ratings.read == 2


def test_from_the_store_to_the_judgement(tmp_path: Path) -> None:
    scene = Scene(tmp_path / "instar.db")
    for number, (text, score) in enumerate((*all_rated(IRONY, -1), *all_rated(PRAISE, 1))):
        scene.answered(f"t{number}")
        scene.said(f"t{number}", text)
        scene.feedback(f"t{number}", score=score)
    chain = build_chain(JudgeSettings(), ratings=scene.store)
    turn = make_turn("new")
    item = JudgeItem(turn, [NextState("new", NextKind.USER_REPLY, MORE_IRONY[0], 0.0)], lease="")
    judged = chain.judge(item, now=0.0)
    assert judged.score in {-1, None}
    assert "your own ratings" in judged.why
    assert chain.facts()["own_ratings"]["ann"]["in_use"]
    assert build_chain(JudgeSettings()).judge(as_item(Case("", "user", MORE_IRONY[0], 1)), 0.0).score == 1


# ── its parts ─────────────────────────────────────────────────────────────────────────────────────────────
def test_the_fit_is_where_the_loss_has_no_slope() -> None:
    """Against the formula itself, in Δ."""
    draw = np.random.default_rng(0)
    rows_NF, shipped_NMC = draw.normal(size=(12, 5)), draw.normal(size=(12, 3, 3))
    target_NC = np.eye(3)[draw.integers(0, 3, 12)]
    delta_CF = dual(rows_NF @ rows_NF.T, shipped_NMC, target_NC, strength=0.7).T @ rows_NF
    logits_NMC = shipped_NMC + (rows_NF @ delta_CF.T)[:, None]
    slope_CF = (softmax(logits_NMC).mean(1) - target_NC).T @ rows_NF + delta_CF / 0.7
    assert np.abs(delta_CF).max() > 0.1
    assert np.abs(slope_CF).max() < 2e-3


def test_the_words_are_those_that_the_heads_read_and_the_rating_is_the_explicit_one() -> None:
    def states(*said: tuple[NextKind, str, int | None, str | None]) -> list[NextState]:
        return [
            NextState("t", kind, text, float(at), score=score, correction=correction)
            for at, (kind, text, score, correction) in enumerate(said)
        ]

    reply, feedback = NextKind.USER_REPLY, NextKind.FEEDBACK
    turns = [
        states((reply, "the reply", None, None), (feedback, "the comment", 5, None)),
        states((feedback, "the comment", -1, None)),
        states((reply, "no", None, None), (feedback, "", None, "a corrected text")),
        states(
            (reply, "thumb taken back", None, None), (feedback, "x", 1, None), (feedback, "hm", None, None)
        ),
        states((reply, "not rated", None, None)),
        states((feedback, "  ", 1, None)),
        states((reply, "so-so", None, None), (feedback, "", 0, None)),
    ]
    found = as_ratings([RatedTurn(str(number), "q", said) for number, said in enumerate(turns)])
    assert [(r.turn_id, r.question, r.text, r.score) for r in found] == [
        ("0", "q", "the reply", 1),
        ("1", "q", "the comment", -1),
        ("2", "q", "no", -1),
        ("6", "q", "so-so", 0),
    ]


def test_equal_words_share_a_fold_and_every_fold_has_its_part_of_each_score() -> None:
    texts = [f"{word} {number}" for word in ("good", "bad") for number in range(5)]
    told = [rating(text, 1 if text.startswith("good") else -1) for text in texts]
    fold_N = folds([*told, rating("GOOD… 3!", -1)])
    assert fold_N[10] == fold_N[3]
    assert sorted(fold_N[:5]) == sorted(fold_N[5:10]) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("moved", "better"),
    [
        (Figures(5, 1, 9.0), True),
        (Figures(6, 1, 11.0), True),
        (Figures(5, 0, 11.0), True),
        (Figures(5, 1, 10.0), False),
        (Figures(5, 1, 11.0), False),
        (Figures(4, 0, 5.0), False),
        (Figures(9, 2, 5.0), False),
    ],
)
def test_moved_heads_must_cost_nothing_and_gain_something(moved: Figures, better: bool) -> None:
    assert moved.better_than(Figures(5, 1, 10.0)) is better


def test_classes_are_in_the_order_in_which_they_are_looked_up() -> None:
    assert sorted(CLASSES) == list(CLASSES)
