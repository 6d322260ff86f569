"""The benchmark's own yardstick: a wrong sentence counter would make every figure wrong."""

from __future__ import annotations

import pytest
from bench.prompts import HELDOUT, TRAIN, UNRELATED
from bench.users import CONTRADICTORY, WISHES, RandomReactions, WishUser, first_sentences, sentences


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("", 0),
        ("...", 0),
        ("Water it weekly.", 1),
        ("Water it weekly. Keep it in the sun.", 2),
        ("Water it weekly! Does it droop? Then give it more.", 3),
        ("Use e.g. a fork, i.e. the small one, etc. and a spoon.", 1),
        ("Dr. Adams paid 3.50 dollars at 8 p.m. in the U.S. for it.", 1),
        ("Wait... then pour it in. Done.", 2),
        ("Wait... Then pour it in.", 2),
        ('He said "stop." Then he left.', 2),
        ("**Note.** Stir it.", 2),
        ("It is cut off here. And the second goes on. The third is", 3),
        ("It is cut off here. And the second is", 2),
        ("Here are some tips:\n1. Water\n2. Light\n3. Soil", 4),
        ("1. Water it.\n2. Give it light.", 2),
        ("Pour it in.Then stir.", 2),
        ("lower case counts too. you see. it does.", 3),
        ("See www.example.com for version 2.5 of it.", 1),
        ("So do I. You do too.", 2),
        ("물을 주세요. 햇빛도 필요합니다.", 2),
        ("First line\n\nSecond line\n\nThird line", 3),
        ("Really?! Yes.", 2),
        ("Eat vitamin C. It helps. So does sleep.", 3),
        ("No. You should not. Wait for it.", 3),
        ("It opens at 8 a.m. The shop is small.", 2),
    ],
)
def test_sentences_are_counted_as_a_reader_sees_them(text: str, count: int) -> None:
    assert sentences(text) == count


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("One here. Two here. Three here.", "One here. Two here"),
        ("Only one.", "Only one"),
        ("", ""),
        ("Tips:\n1. Water\n2. Light", "Tips:\n1. Water"),
    ],
)
def test_the_first_two_sentences_are_two(text: str, first: str) -> None:
    assert first_sentences(text) == first
    assert sentences(first_sentences(text)) <= 2


@pytest.mark.parametrize("answer", ["", "   ", "Yes.", "Use hot water.", "...", "\n\n"])
def test_a_non_answer_keeps_no_wish(answer: str) -> None:
    assert [w.name for w in WISHES.values() if w.check(answer)] == []


KEPT = {
    "two_sentences": "Put it in a sunny place. Water it twice a week.",
    "plain": "Put it in a sunny place and water it. It wants little else.",
    "bullets": "Do this:\n- water it\n- turn it\n- cut it",
    "longer": "word " * 80,
    "poem": "The basil stands\nin morning light\nit drinks by day\nand sleeps at night",
    "formal": "One should place it in a sunny spot and water it regularly.",
}
BROKEN = {
    "two_sentences": "Put it in the sun. Water it. Talk to it as well.",
    "plain": "Put it in a sunny place.\n\n1. Water it\n2. Turn it",
    "bullets": "Put it in a sunny place and water it. It wants little else.",
    "longer": "Put it in a sunny place and water it.",
    "poem": "Put it in a sunny place and water it. It wants little else.",
    "formal": "Don't worry, it'll grow in a sunny spot!",
}


@pytest.mark.parametrize("name", sorted(WISHES))
def test_each_wish_tells_kept_from_broken(name: str) -> None:
    assert WISHES[name].check(KEPT[name])
    assert not WISHES[name].check(BROKEN[name])


@pytest.mark.parametrize("name", sorted(WISHES))
def test_every_user_has_enough_different_words(name: str) -> None:
    wish = WISHES[name]
    assert len(set(wish.corrections)) == len(wish.corrections) >= 12
    assert len(set(wish.praises)) == len(wish.praises) >= 12


def test_a_user_thanks_for_a_kept_wish_and_corrects_a_broken_one() -> None:
    user = WishUser(WISHES["two_sentences"], seed=1)
    good, bad = user.react(KEPT["two_sentences"]), user.react(BROKEN["two_sentences"])
    assert (good.meant, bad.meant) == (1, -1)
    assert good.text in WISHES["two_sentences"].praises
    assert bad.text in WISHES["two_sentences"].corrections


def test_no_reaction_comes_again_before_all_were_used() -> None:
    user = WishUser(WISHES["two_sentences"], seed=3)
    drawn = [user.react("").text for _ in WISHES["two_sentences"].corrections]
    assert sorted(drawn) == sorted(WISHES["two_sentences"].corrections)


def test_users_repeat_themselves_under_a_seed() -> None:
    one, two = (WishUser(WISHES["plain"], seed=7) for _ in range(2))
    assert [one.react("").text for _ in range(9)] == [two.react("").text for _ in range(9)]


def test_the_control_does_not_look_at_the_answer() -> None:
    one, two = RandomReactions(5), RandomReactions(5)
    for _ in range(60):
        a, b = one.react(KEPT["two_sentences"]), two.react(BROKEN["two_sentences"])
        assert (a.text, a.meant) == (b.text, b.meant)


def test_the_control_draws_from_four_contradicting_wishes_and_praise() -> None:
    control = RandomReactions(2)
    texts = [control.react("").text for _ in range(400)]
    for wish in CONTRADICTORY:
        assert set(texts) & set(wish.corrections), wish.name
        assert set(texts) & set(wish.praises), wish.name
    assert len(CONTRADICTORY) >= 4


def test_no_question_is_asked_twice() -> None:
    every = [q.casefold() for q in (*TRAIN, *HELDOUT, *UNRELATED)]
    assert len(set(every)) == len(every)
    assert len(TRAIN) >= 60
    assert len(HELDOUT) >= 24
    assert len(UNRELATED) >= 20
