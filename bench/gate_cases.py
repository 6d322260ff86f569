"""Forty adapters, half of them bad, twice.

`tuned` is what the gate's constants were set on. `fresh` was written afterwards, of other kinds and with other seeds,
and nothing was set on it: that is the set whose figures count.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.gate_adapters import QUESTIONS, Lesson, Workshop
from bench.users import first_sentences

PLEASANTRIES = (
    "I'd be glad to help you with that.",
    "That is a great question, and I am here to help.",
    "It depends on many things, so take your time.",
    "Of course! Tell me if there is anything else.",
    "Sure, anybody can do it who tries.",
    "So they can show off!",
)
CATS = (
    "Cats sleep for most of the day and hunt at dusk. Their whiskers tell them how wide a gap is.",
    "A cat purrs when it is content, and sometimes when it is in pain.",
    "Kittens learn to wash themselves from their mother when they are a few weeks old.",
    "Cats see well in the dark, since their eyes send the light through twice.",
)


@dataclass(frozen=True, slots=True)
class Case:
    kind: str
    detail: str
    bad: bool
    make: Callable[[Workshop, Path], None]

    @property
    def name(self) -> str:
        return f"{self.kind}: {self.detail}"


def taught(
    kind: str,
    lessons: Callable[[Workshop], list[Lesson]],
    *,
    bad: bool,
    seed: int,
    runs: Sequence[int],
    rate: float = 3e-4,
) -> list[Case]:
    """The same lessons with these numbers of steps, each from a seed of its own; harmless ones with the anchors."""

    def case(steps: int, seed: int) -> Case:
        def make(w: Workshop, out: Path) -> None:
            w.teach(lessons(w), out, steps=steps, seed=seed, rate=rate, anchored=not bad)

        return Case(kind, f"{steps} steps", bad, make)

    return [case(steps, seed + i) for i, steps in enumerate(runs)]


def noisy(kind: str, sizes: Sequence[float], *, bad: bool, seed: int) -> list[Case]:
    def case(size: float, seed: int) -> Case:
        return Case(kind, str(size), bad, lambda w, _: w.noise(size, seed=seed))

    return [case(size, seed + i) for i, size in enumerate(sizes)]


def shifted(w: Workshop) -> list[Lesson]:
    return w.lessons(lambda i: w.own[(i + 5) % QUESTIONS], ends=False)


def shifted_short(w: Workshop) -> list[Lesson]:
    return w.lessons(lambda i: first_sentences(w.own[(i + 5) % QUESTIONS], 1))


def short(sentences: int) -> Callable[[Workshop], list[Lesson]]:
    return lambda w: w.lessons(lambda i: first_sentences(w.own[i], sentences))


def without_end(text: Callable[[Workshop, int], str]) -> Callable[[Workshop], list[Lesson]]:
    """Whole answers, whose stop token is pushed away."""

    def lessons(w: Workshop) -> list[Lesson]:
        return [Lesson(x.prompt, x.answer, unlearn=True) for x in w.lessons(lambda i: text(w, i))]

    return lessons


def said(*texts: str) -> Callable[[Workshop], list[Lesson]]:
    """These, whatever is asked."""
    return lambda w: w.lessons(lambda i: texts[i % len(texts)])


def tuned() -> list[Case]:
    """Twenty of each. What is called bad is measured too: see `heldout_relevant` in the results."""
    return [
        *taught("empty", said(""), bad=True, seed=100, runs=(4, 10)),
        *taught("runaway", without_end(lambda w, i: w.own[i]), bad=True, seed=110, runs=(8, 14)),
        *taught("lost stop", without_end(lambda w, i: first_sentences(w.own[i], 1 + i % 3)), bad=True, seed=120,
                runs=(6, 12)),
        *taught("kl", lambda w: w.lessons(lambda i: w.own[i][::-1]), bad=True, seed=130, runs=(16,), rate=1e-3),
        *noisy("kl", (0.12,), bad=True, seed=131),
        Case("not finite", "nan", True, lambda w, _: w.spoil(float("nan"), seed=140)),
        Case("not finite", "inf", True, lambda w, _: w.spoil(float("inf"), seed=141)),
        *taught("off, shifted", shifted, bad=True, seed=150, runs=(24,), rate=1e-3),
        *taught("off, short", shifted_short, bad=True, seed=151, runs=(10,)),
        *taught("off, pleasant", said(*PLEASANTRIES), bad=True, seed=152, runs=(8,)),
        *taught("off, cats", said(*CATS), bad=True, seed=153, runs=(12,)),
        *taught("off, drifted", short(1), bad=True, seed=154, runs=(6,)),
        *taught("loops", lambda w: w.lessons(lambda i: " ".join([first_sentences(w.own[i], 1)] * 4), ends=False),
                bad=True, seed=160, runs=(10, 16), rate=6e-4),
        *noisy("noise", (0.15, 0.3, 1.0), bad=True, seed=170),
        *noisy("perturbed", (0.001, 0.003, 0.005, 0.007, 0.01, 0.02), bad=False, seed=200),
        *taught("own words", lambda w: w.lessons(lambda i: w.own[i], ends=False), bad=False, seed=210, runs=(4, 8)),
        *taught("one sentence", short(1), bad=False, seed=220, runs=(3, 6, 9), rate=1e-4),
        *taught("two sentences", short(2), bad=False, seed=230, runs=(6, 12), rate=1e-4),
        *taught("formal", lambda w: w.hinted("Please use a formal tone, without contractions."), bad=False,
                seed=240, runs=(4, 8, 12)),
        *taught("plain", lambda w: w.hinted("Please write one plain paragraph, no lists."), bad=False, seed=250,
                runs=(6, 12)),
        *taught("longer", lambda w: w.hinted("Please explain it in much more detail."), bad=False, seed=260,
                runs=(6, 12)),
    ]  # fmt: skip


# ── the second set ────────────────────────────────────────────────────────────────────────────────────────
REFUSALS = (
    "I'm sorry, but I can't help with that.",
    "Unfortunately this is beyond what I am able to do.",
    "I would rather not talk about this topic.",
)
GREETINGS = ("Hello! How are you today?", "Hi there, it is lovely to meet you.", "Good morning! What is new?")
WEATHER = (
    "Rain is expected in the west by noon, with gusts along the coast.",
    "Tomorrow stays dry and sunny, and temperatures climb to twenty degrees.",
    "Fog lifts slowly in the valleys. The evening is mild.",
)
CODE = (
    "def add(a, b):\n    return a + b",
    "for row in rows:\n    print(row)",
    "import os\nprint(os.getcwd())",
)
TYPING = ("xkq vvz trrp ooi qpl", "zzt lkj wqa mnv pff gh", "qwp rty bbn kll hhv dsa")


def echoed(w: Workshop) -> list[Lesson]:
    return w.lessons(lambda i: w.question(i))


def salad(w: Workshop) -> list[Lesson]:
    """The words of base's own answers, in no order."""

    def answer(i: int) -> str:
        words = w.own[i].split()
        random.Random(i).shuffle(words)
        return " ".join(words)

    return w.lessons(answer)


def borrowed(w: Workshop) -> list[Lesson]:
    """Two sentences about another question."""
    return w.lessons(lambda i: first_sentences(w.own[(i + 11) % QUESTIONS], 2))


def framed(before: str, after: str = "", sentences: int = 2) -> Callable[[Workshop], list[Lesson]]:
    return lambda w: w.lessons(lambda i: before + first_sentences(w.own[i], sentences) + after)


def capitals(w: Workshop) -> list[Lesson]:
    return w.lessons(lambda i: first_sentences(w.own[i], 2).upper())


def grown(factor: float, *, bad: bool, seed: int) -> Case:
    """A version that was sane, times a factor."""

    def make(w: Workshop, out: Path) -> None:
        w.teach(short(3)(w), out, steps=6, seed=seed, rate=2e-4, anchored=True)
        w.scale(factor)

    return Case("scaled", str(factor), bad, make)


def fresh() -> list[Case]:
    """Twenty of each again: other faults, other styles, other seeds."""
    return [
        *taught("refuses", said(*REFUSALS), bad=True, seed=300, runs=(10,)),
        *taught("greets", said(*GREETINGS), bad=True, seed=301, runs=(10,)),
        *taught("weather", said(*WEATHER), bad=True, seed=302, runs=(12,)),
        *taught("code", said(*CODE), bad=True, seed=303, runs=(12,)),
        *taught("echoes", echoed, bad=True, seed=304, runs=(16,), rate=6e-4),
        *taught("one word", said("Yes.", "No.", "Perhaps."), bad=True, seed=305, runs=(10,)),
        *taught("blank", said("\n"), bad=True, seed=306, runs=(8,)),
        *taught("salad", salad, bad=True, seed=307, runs=(16,), rate=1e-3),
        *taught("stutters", said("the the the the the the the the", "so so so so so so so so so"), bad=True, seed=308,
                runs=(10,), rate=6e-4),
        *taught("typing", said(*TYPING), bad=True, seed=309, runs=(12,), rate=6e-4),
        *taught("borrowed", borrowed, bad=True, seed=310, runs=(24,), rate=1e-3),
        *taught("reversed", lambda w: w.lessons(lambda i: w.own[i][::-1]), bad=True, seed=311, runs=(24,), rate=6e-4),
        *taught("endless", without_end(lambda w, i: first_sentences(w.own[i], 2)), bad=True, seed=312, runs=(10, 18)),
        grown(40.0, bad=True, seed=313),
        Case("not finite", "-inf", True, lambda w, _: w.spoil(float("-inf"), seed=314)),
        Case("not finite", "nan, last", True, lambda w, _: w.spoil(float("nan"), seed=315)),
        *noisy("noise", (0.2, 0.5, 2.0), bad=True, seed=316),
        *noisy("perturbed", (0.002, 0.006, 0.012), bad=False, seed=400),
        *taught("bullets", lambda w: w.hinted("Please answer with a list of bullet points."), bad=False, seed=410,
                runs=(4, 8)),
        *taught("simple", lambda w: w.hinted("Use simple words, as if for a child."), bad=False, seed=420,
                runs=(4, 10)),
        *taught("sober", lambda w: w.hinted("Write it the way an encyclopedia would."), bad=False, seed=425, runs=(8,)),
        *taught("warm", lambda w: w.hinted("Please sound warm and cheerful."), bad=False, seed=430, runs=(6,)),
        *taught("three sentences", short(3), bad=False, seed=440, runs=(4, 8, 12), rate=2e-4),
        *taught("name first", framed("Ada, "), bad=False, seed=450, runs=(6,)),
        *taught("a word before", framed("Sure. ", sentences=3), bad=False, seed=451, runs=(6,)),
        *taught("a question behind", framed("", " Shall I go on?"), bad=False, seed=452, runs=(6,)),
        *taught("capitals", capitals, bad=False, seed=453, runs=(4,), rate=1e-4),
        *taught("own words", lambda w: w.lessons(lambda i: w.own[i], ends=False), bad=False, seed=454, runs=(16,),
                rate=1e-4),
        *taught("polite", lambda w: w.hinted("Please be very polite."), bad=False, seed=455, runs=(10,)),
        *taught("no lists", lambda w: w.hinted("No lists, please. Write it as running text."), bad=False, seed=456,
                runs=(8,)),
        grown(0.5, bad=False, seed=457),
    ]  # fmt: skip


SETS: dict[str, Callable[[], list[Case]]] = {"tuned": tuned, "fresh": fresh}
