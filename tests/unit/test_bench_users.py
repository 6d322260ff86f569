"""The benchmark's own yardstick: a wrong sentence counter would make every figure wrong."""

from __future__ import annotations

import json
import re
from collections import Counter

import pytest
from bench.prompts import (
    HELDOUT,
    QUESTIONS,
    STORIES_HELDOUT,
    STORIES_TRAIN,
    TRAIN,
    UNRELATED,
    kind_of,
)
from bench.text import sentence_list
from bench.users import (
    CONDITIONAL,
    CONTRADICTORY,
    LONGER,
    NAMES,
    TWO_SENTENCES,
    WISHES,
    ChangingUser,
    NoisyUser,
    RandomReactions,
    ShowingUser,
    WishUser,
    first_sentences,
    persona,
    sentences,
)
from bench.users.checks import whole_sentences
from bench.users.wishes import BEFORE_A_CORRECTION, WITH_A_NEW_REQUEST

from instar.judges.heads import PHRASES_FILE


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


def test_the_sentences_of_a_list_come_without_its_markers() -> None:
    text = "Here are **two** tips:\n1. Water it. Often.\n- Turn it"
    assert sentence_list(text) == ["Here are **two** tips:", "Water it.", "Often.", "Turn it"]


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


SHORT = "Put it in a sunny place. Water it twice a week."
THREE = "Put it in the sun. Water it. Talk to it as well."
PROSE = "Put it in a sunny place and water it. It wants little else."
LIST = "Do this:\n- water it\n- turn it\n- cut it"
LONG = "word " * 80
TALE = "Once upon a time there was a goose. " * 12

KEPT: dict[str, tuple[str, ...]] = {
    "two_sentences": (SHORT, "Water it now and then.", "Is it dry? Then water it."),
    "plain": (PROSE, LONG, "It costs 3 dollars - or 4 - at most, *maybe*."),
    "bullets": (LIST, "* one thing\n* two things\n* three things", "1. water\n2) light\n• soil and so on"),
    "longer": (LONG, TALE),
    "poem": ("The basil stands\nin morning light\nit drinks by day\nand sleeps at night",),
    "formal": (
        "One should place it in a sunny spot and water it regularly.",
        "Ada's basil is doing very well.",
    ),
    "name_first": (
        "Nora, put it in a sunny place.",
        "nora: water it twice a week, please.",
        "**Nora**, put it in a sunny place.",
    ),
    "sign_off": (
        "Put it in a sunny place.\n\nBest wishes, Ada",
        "Put it in a sunny place. Best wishes,\nAda.",
        "Water it twice a week, best wishes Ada",
    ),
    "three_at_once": ("Nora, it is best to water it twice a week. It also wants light.",),
    "korean": (SHORT, "Water it now and then."),
    "short_facts": (SHORT,),
    "long_stories": (TALE,),
}
BROKEN: dict[str, tuple[str, ...]] = {
    "two_sentences": (THREE, LIST, "One here. Two here. And three"),
    "plain": (
        "Put it in a sunny place.\n\n1. Water it\n2. Turn it",
        "It is **very** easy to do.",
        "One.\n\nTwo and more.",
        "# Basil\nIt wants light.",
    ),
    "bullets": (PROSE, "- water it\n- turn it around", "Use water - light - and soil."),
    "longer": ("Put it in a sunny place and water it.", "word " * 74),
    "poem": (PROSE, LIST, "One line\ntwo lines\nthree lines"),
    "formal": (
        "Don't worry, it will grow in a sunny spot.",
        "It is easy to grow it there!",
        "It’ll grow in a sunny spot.",
    ),
    "name_first": (
        "Put it in a sunny place, Nora.",
        "Dear Nora, put it in a sunny place.",
        "Norah, put it in a sunny place.",
        "Nora.",
    ),
    "sign_off": (
        "Put it in a sunny place.",
        "Best wishes, Ada",
        "Best wishes, Ada. Put it in a sunny place and water it.",
        "Put it in a sunny place.\n\nBest wishes, Adam",
        "Put it in a sunny place.\n\nBest",
    ),
    "three_at_once": (
        "It is best to water it twice a week. It also wants light.",
        "Nora, water it. Turn it. Talk to it.",
        "Nora, it's best to water it twice a week.",
    ),
    "korean": (THREE,),
    "short_facts": (THREE,),
    "long_stories": (SHORT,),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(WISHES))
def test_each_wish_tells_kept_from_broken(name: str) -> None:
    assert [text for text in KEPT[name] if not WISHES[name].check(text)] == []
    assert [text for text in BROKEN[name] if WISHES[name].check(text)] == []


@pytest.mark.parametrize("name", sorted(WISHES))
def test_every_user_has_enough_different_words(name: str) -> None:
    wish = WISHES[name]
    assert len({*map(_normal, wish.corrections)}) == len(wish.corrections) >= 20
    assert len({*map(_normal, wish.praises)}) == len(wish.praises) >= 20


def _normal(text: str) -> str:
    return re.sub(r"[\W_]+", " ", text.casefold()).strip()


def test_no_user_speaks_in_phrases_that_the_judge_was_fitted_on() -> None:
    fitted = {_normal(json.loads(line)["text"]) for line in PHRASES_FILE.read_text("utf-8").splitlines()}
    said = [t for w in WISHES.values() for t in (*w.corrections, *w.praises)]
    said += [*BEFORE_A_CORRECTION, *WITH_A_NEW_REQUEST]
    assert len(fitted) > 1000
    assert [text for text in said if _normal(text) in fitted] == []


@pytest.mark.parametrize("name", sorted(n for n, w in WISHES.items() if w.mend))
@pytest.mark.parametrize(
    "answer",
    [THREE, PROSE, LIST, "Don't stop! It's fine.\n\n1. **Water** it.\n2. Turn it. And a third", LONG],
)
def test_a_mended_answer_keeps_the_wish_or_is_not_shown(name: str, answer: str) -> None:
    shown = WISHES[name].shown("Why?", answer)
    assert shown is None or WISHES[name].check(shown)


@pytest.mark.parametrize(
    ("name", "answer", "mended"),
    [
        ("two_sentences", THREE, "Put it in the sun. Water it."),
        ("plain", "Do this:\n\n1. **Water** it.\n2. Turn it\n3. Cu", "Do this: Water it. Turn it."),
        ("bullets", THREE, "- Put it in the sun.\n- Water it.\n- Talk to it as well."),
        ("formal", "Don't wait! It'll dry.", "Do not wait. It will dry."),
        ("name_first", "Put it in the sun. Water", "Nora, put it in the sun."),
        ("name_first", "I would water it twice.", "Nora, I would water it twice."),
        ("sign_off", "Put it in the sun. Wat", "Put it in the sun.\n\nBest wishes, Ada"),
        ("three_at_once", "It's dry. Water it! Turn it. Cut it.", "Nora, it is dry. Water it."),
    ],
)  # fmt: skip
def test_a_mend_changes_little(name: str, answer: str, mended: str) -> None:
    assert WISHES[name].mend(answer) == mended


def test_an_edit_ends_where_the_last_whole_sentence_does() -> None:
    assert whole_sentences("One is here. Two is cut o") == "One is here."
    assert whole_sentences("Tips:\n1. Water it.\n2. Turn i") == "Tips:\n1. Water it."
    assert whole_sentences("Only this and no end") == "Only this and no end"


FACT, STORY = "Why is the sky blue?", STORIES_HELDOUT[0]


def test_a_conditional_wish_goes_by_the_kind_of_question() -> None:
    assert (CONDITIONAL.kept(FACT, SHORT), CONDITIONAL.kept(FACT, TALE)) == (True, False)
    assert (CONDITIONAL.kept(STORY, SHORT), CONDITIONAL.kept(STORY, TALE)) == (False, True)
    user = persona("conditional").user(0, 64)
    assert user.react(TALE, FACT).text in WISHES["short_facts"].corrections
    assert user.react(SHORT, STORY).text in WISHES["long_stories"].corrections
    assert user.react(TALE, STORY).text in WISHES["long_stories"].praises


def test_facts_and_stories_come_in_equal_parts() -> None:
    for questions in QUESTIONS["facts_and_stories"]:
        kinds = Counter(map(kind_of, questions))
        assert kinds["fact"] == kinds["story"]
    train, heldout = QUESTIONS["facts_and_stories"]
    assert len(train) >= 64
    assert len(set(heldout)) >= 20  # relevance is measured by finding one of twenty
    assert all(len(t) >= 64 for t, _ in QUESTIONS.values())


def test_a_changing_user_wants_the_opposite_after_half_of_the_talk() -> None:
    who = persona("opposite")
    user = who.user(1, 8)
    assert isinstance(user, ChangingUser)
    assert [user.react(SHORT).meant for _ in range(8)] == [1, 1, 1, 1, -1, -1, -1, -1]
    assert [who.wish_at(n, 8) for n in (1, 4, 5, 8)] == [TWO_SENTENCES, TWO_SENTENCES, LONGER, LONGER]
    assert persona("plain").wish_at(8, 8) is WISHES["plain"]


def test_a_korean_speaker_reacts_in_korean_only() -> None:
    texts = (*WISHES["korean"].corrections, *WISHES["korean"].praises)
    assert [t for t in texts if re.search("[A-Za-z]", t) or not re.search("[가-힣]", t)] == []


def _noisy(answer: str, count: int = 2000) -> list[tuple[str, int]]:
    user = NoisyUser(TWO_SENTENCES, 3)
    return [(r.text, r.meant) for r in (user.react(answer) for _ in range(count))]


def test_a_noisy_user_contradicts_in_a_tenth_and_is_silent_in_a_tenth() -> None:
    for answer, honest in ((SHORT, 1), (THREE, -1)):
        meant = Counter(m for _, m in _noisy(answer))
        assert meant[-honest] / 2000 == pytest.approx(0.1, abs=0.02)
        assert meant[0] / 2000 == pytest.approx(0.1, abs=0.02)
    assert all((text == "") == (meant == 0) for text, meant in _noisy(SHORT))


def test_a_noisy_users_thanks_carry_requests() -> None:
    praise = [text for text, meant in _noisy(SHORT) if meant == 1]
    assert sum(text in WITH_A_NEW_REQUEST for text in praise) / 2000 == pytest.approx(0.3, abs=0.04)
    wrapped = [text for text, meant in _noisy(THREE) if meant == -1 and text.startswith(BEFORE_A_CORRECTION)]
    assert len(wrapped) / 2000 == pytest.approx(0.3, abs=0.04)
    assert all(text.endswith(TWO_SENTENCES.corrections) for text in wrapped)
    assert len(set(WITH_A_NEW_REQUEST)) >= 20
    assert len(set(BEFORE_A_CORRECTION)) >= 20


def test_a_showing_user_accepts_a_good_second_answer_or_edits_the_first_in_half_of_the_cases() -> None:
    user = ShowingUser(WISHES["name_first"], 5)
    good = [user.close("Why?", PROSE, "Nora, put it in the sun.") for _ in range(1000)]
    bad = [user.close("Why?", PROSE, PROSE) for _ in range(1000)]
    assert sum(c.thanks is not None for c in good) / 1000 == pytest.approx(0.5, abs=0.05)
    assert all(c.edit is None for c in good)
    edits = [c.edit for c in bad if c.edit]
    assert len(edits) / 1000 == pytest.approx(0.5, abs=0.05)
    assert set(edits) == {"Nora, put it in a sunny place and water it. It wants little else."}
    assert all(c.thanks is None for c in bad)


def test_nobody_shows_an_edit_that_would_be_an_essay() -> None:
    user = ShowingUser(LONGER, 5)
    assert all(user.close("Why?", SHORT, SHORT).edit is None for _ in range(50))


def test_who_may_talk() -> None:
    assert persona("plain+noisy").user(0, 64).__class__ is NoisyUser
    assert persona("name_first+shows").user(0, 64).__class__ is ShowingUser
    assert {persona(name).name for name in NAMES} == set(NAMES)
    for wrong in ("nobody", "plain+loud", "opposite+noisy", "plain+", "poem"):
        with pytest.raises(ValueError, match="nobody is called"):
            persona(wrong)


def test_a_user_thanks_for_a_kept_wish_and_corrects_a_broken_one() -> None:
    user = WishUser(WISHES["two_sentences"], seed=1)
    good, bad = user.react(SHORT), user.react(THREE)
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
        a, b = one.react(SHORT), two.react(THREE)
        assert (a.text, a.meant) == (b.text, b.meant)


def test_the_control_draws_from_four_contradicting_wishes_and_praise() -> None:
    control = RandomReactions(2)
    texts = [control.react("").text for _ in range(400)]
    for wish in CONTRADICTORY:
        assert set(texts) & set(wish.corrections), wish.name
        assert set(texts) & set(wish.praises), wish.name
    assert len(CONTRADICTORY) >= 4


def test_no_question_is_asked_twice() -> None:
    every = [q.casefold() for q in (*TRAIN, *HELDOUT, *UNRELATED, *STORIES_TRAIN, *STORIES_HELDOUT)]
    assert len(set(every)) == len(every)
    assert len(TRAIN) >= 60
    assert len(HELDOUT) >= 24
    assert len(UNRELATED) >= 20
