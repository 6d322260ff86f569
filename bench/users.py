"""Simulated users: each has one wish that can be checked, thanks for an answer that keeps it and corrects one
that does not, in plain words. Only the benchmark knows the wishes; the product never does.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

FEWEST_WORDS = 4
"""A shorter answer keeps no wish: silence is no way to be brief."""

_TITLES = frozenset({"e.g", "i.e", "mr", "mrs", "ms", "dr", "prof", "st", "vs", "cf", "ca", "approx", "fig"})
"""Never end a sentence."""
_SHORT = frozenset({"etc", "no", "inc", "ltd", "jr", "sr", "min", "max", "dept"})
"""End one only before a capital, and so do single letters and 'p.m'."""
_MARKER = re.compile(r"^\s*(?:#{1,6}\s+|[-*+•–]\s+|\(?\d{1,3}[.)]\s+|>\s*)+")
_LIST_LINE = re.compile(r"^\s*(?:[-*+•–]\s+|\(?\d{1,3}[.)]\s+)\S", re.MULTILINE)
_BOLD = re.compile(r"\*\*[^*\n]+\*\*|__[^_\n]+__")
_HEADING = re.compile(r"^\s*#{1,6}\s+\S", re.MULTILINE)
_END = re.compile(r"([.!?…。！？]+)([\"'”’)\]*_]*)(\s+|$|(?<=[a-z]{2}[.!?])(?=[A-Z]))")
WORD = re.compile(r"[^\W_]+(?:['’-][^\W_]+)*")
_CONTRACTION = re.compile(
    r"\b\w+(?:n['’]t|['’](?:ll|re|ve|m|d))\b|\b(?:it|that|here|there|let|what)['’]s\b", re.I
)


def words(text: str) -> list[str]:
    """Words of a text in lower case; an apostrophe or hyphen inside a word belongs to it."""
    return [w.lower() for w in WORD.findall(text)]


def _ends_sentence(line: str, match: re.Match[str]) -> bool:
    """Whether a run of terminators ends a sentence: not an abbreviation, an initial or a mid-thought '…'."""
    mark, rest = match.group(1), line[match.end() :]
    if not WORD.search(rest):
        return False  # the line ends here; its last piece is counted by the caller
    if mark in {"...", "…"}:
        return not rest[:1].islower()
    if mark != ".":
        return True
    before = re.search(r"[\w.]+$", line[: match.start()])
    token = before.group(0).lower() if before else ""
    if token in _TITLES:
        return False
    is_short = token in _SHORT or re.fullmatch(r"(?:[a-z]\.)*[a-z]", token) is not None
    return rest.lstrip("\"'“‘(*_")[:1].isupper() if is_short else True


def sentences(text: str) -> int:
    """How many sentences a reader sees. A list item, a heading or a line counts as one at least, and so does
    a sentence that was cut off: the wish is about what stands on the screen."""
    total = 0
    for raw in text.splitlines():
        line = _MARKER.sub("", raw).strip()
        if WORD.search(line):
            total += 1 + sum(_ends_sentence(line, m) for m in _END.finditer(line))
    return total


def first_sentences(text: str, n: int = 2) -> str:
    """The longest run of whole words from the start that a reader counts as at most `n` sentences."""
    ends = [m.end() for m in WORD.finditer(text)]
    low, high = 0, len(ends)  # `sentences` never falls as the text grows, so halving finds the place
    while low < high:
        middle = (low + high + 1) // 2
        if sentences(text[: ends[middle - 1]]) <= n:
            low = middle
        else:
            high = middle - 1
    return text[: ends[low - 1]] if low else ""


def _said_something(answer: str) -> bool:
    return len(words(answer)) >= FEWEST_WORDS


def _two_sentences(answer: str) -> bool:
    return _said_something(answer) and sentences(answer) <= 2


def _plain(answer: str) -> bool:
    paragraphs = [p for p in re.split(r"\n\s*\n", answer.strip()) if p.strip()]
    marked = _LIST_LINE.search(answer) or _BOLD.search(answer) or _HEADING.search(answer)
    return _said_something(answer) and len(paragraphs) == 1 and not marked


def _bullets(answer: str) -> bool:
    return _said_something(answer) and len(_LIST_LINE.findall(answer)) >= 3


def _longer(answer: str) -> bool:
    return len(words(answer)) >= 75


def _poem(answer: str) -> bool:
    lines = [line for line in answer.splitlines() if WORD.search(line)]
    short = all(len(words(line)) <= 12 for line in lines)
    return len(lines) >= 4 and short and not _LIST_LINE.search(answer)


def _formal(answer: str) -> bool:
    return _said_something(answer) and not _CONTRACTION.search(answer) and "!" not in answer


@dataclass(frozen=True, slots=True)
class Wish:
    """What one user wants of every answer, and how that user speaks when it is kept or broken."""

    name: str
    check: Callable[[str], bool]
    corrections: tuple[str, ...]
    praises: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Reaction:
    """What the user types and what the user means by it: +1 content, −1 not."""

    text: str
    meant: int
    kept: bool


TWO_SENTENCES = Wish(
    "two_sentences",
    _two_sentences,
    corrections=(
        "Too long. Please answer in at most two sentences.",
        "That's way more than I want to read. Two sentences, please.",
        "Can you keep it to one or two sentences?",
        "Please be brief: two sentences at most.",
        "I asked a simple question, so give me a short answer, no more than two sentences.",
        "Shorter, please. Two sentences are enough for me.",
        "This is too much text. Say it in two sentences.",
        "No, I don't have time for all that. Just two sentences.",
        "I'd rather have a two-sentence answer.",
        "Again too wordy. Keep your answers within two sentences.",
        "You lost me halfway. Please stick to two sentences.",
        "Don't write an essay. One or two sentences will do.",
        "That was too detailed, I only want two short sentences.",
        "Please cut this down to two sentences.",
        "Less, please! Never more than two sentences.",
        "I wanted the short version, two sentences at the very most.",
        "Too many words. Tell me in a sentence or two.",
        "Hmm, that is far too long for me. Two sentences max.",
        "Could you say the same thing in two sentences instead?",
        "I stopped reading after the second sentence. Make it that short.",
    ),
    praises=(
        "Perfect, that's just what I needed.",
        "Thanks, short and clear.",
        "Great, exactly the right length.",
        "Nice, thank you!",
        "That's how I like my answers.",
        "Lovely, short and helpful.",
        "Wonderful, thanks for keeping it brief.",
        "Good answer, thank you.",
        "Yes, like that. Thanks!",
        "Brilliant, quick to read.",
        "Thank you, that helps a lot.",
        "Excellent, nice and short.",
        "Very good, that is all I wanted to know.",
        "Cool, thanks, that was easy to follow.",
        "That's perfect, thank you so much.",
        "Great, got it, thanks.",
    ),
)

PLAIN = Wish(
    "plain",
    _plain,
    corrections=(
        "Please don't use lists. Write one plain paragraph.",
        "No bullet points and no bold text, please. Just a paragraph.",
        "I don't like all these numbers and stars. Plain text, one paragraph.",
        "Could you write that as normal prose instead of a list?",
        "Not a list again, please. One simple paragraph.",
        "The formatting is annoying. Give me a single plain paragraph.",
        "My screen reader stumbles over lists, so write ordinary running text.",
        "Skip the numbered points and just talk to me in one paragraph.",
        "I'd prefer a plain paragraph without any bold words.",
        "Stop splitting things into items. One flowing paragraph, please.",
        "That looks like a slide. Write it as one block of normal text.",
        "No markdown, please. A paragraph is all I need.",
        "Too much layout for me. Keep it in one plain paragraph.",
        "Please turn that into one paragraph with no list in it.",
    ),
    praises=(
        "Thanks, that reads well.",
        "Nice, a plain paragraph, just as I like it.",
        "Great, easy to read.",
        "Perfect, thank you.",
        "That's much nicer to read, thanks.",
        "Good, no fuss. Thank you!",
        "Lovely, exactly how I want it.",
        "Thank you, very clear.",
        "Yes, this is the style I like.",
        "Excellent, thanks.",
        "Wonderful, that was pleasant to read.",
        "Great answer, thanks a lot.",
    ),
)

BULLETS = Wish(
    "bullets",
    _bullets,
    corrections=(
        "Please answer with bullet points.",
        "Can I have that as a bulleted list?",
        "I can't skim this. Use bullet points, please.",
        "That's a wall of text. Break it into bullets.",
        "No paragraphs, please, only bullet points.",
        "I want a list with a dash before each point.",
        "Give me at least three bullet points instead.",
        "Please put every idea on its own line with a bullet.",
        "This would be far better as a list.",
        "Bullets, please! I want to tick things off.",
        "Don't write prose, write a bullet list.",
        "I asked for something I can scan, so make it bullet points.",
    ),
    praises=(
        "Great list, thank you.",
        "Perfect, that is easy to scan.",
        "Thanks, I like the bullets.",
        "Nice and tidy, thank you!",
        "Exactly the format I wanted.",
        "Very handy list, thanks.",
        "Good, I can tick these off now.",
        "Wonderful, thanks.",
        "Yes, that's the way.",
        "Super clear, thank you.",
        "Excellent, that helps.",
        "Thanks a lot, well arranged.",
    ),
)

LONGER = Wish(
    "longer",
    _longer,
    corrections=(
        "That is too short. Please explain it in much more detail.",
        "I need a longer answer with all the details.",
        "Can you go deeper? This barely scratches the surface.",
        "Please write more, I want to understand the background too.",
        "Not enough. Give me a thorough explanation with examples.",
        "You left out so much. Tell me everything step by step.",
        "I'd like at least three long paragraphs about it.",
        "Too brief for me. Expand on each point.",
        "Please don't be so short with me, explain it fully.",
        "More detail, please, and a couple of examples.",
        "This is thin. I was hoping for a long and complete answer.",
        "Make it longer and more detailed, please.",
    ),
    praises=(
        "Thanks for all the detail!",
        "Great, a really thorough answer.",
        "Perfect, that explains everything.",
        "Wonderful, I learned a lot.",
        "Thank you for taking the time to explain.",
        "Excellent and complete, thanks.",
        "That's the depth I was after.",
        "Very informative, thank you.",
        "Nice, lots of useful detail.",
        "Good, now I understand it fully.",
        "Great explanation, thanks.",
        "I love how detailed this is.",
    ),
)

POEM = Wish(
    "poem",
    _poem,
    corrections=(
        "Please answer me in the form of a poem.",
        "I want that as a rhyme, in short lines.",
        "Could you turn it into a little poem?",
        "Boring prose again. Make it a poem, please.",
        "Write it in verse instead.",
        "No, I wanted a poem with at least four lines.",
        "Say it in rhymes, please.",
        "Please give me verses, not plain text.",
        "I only like answers that are poems.",
        "Do that again as a short poem.",
        "Let it rhyme, please, four lines or more.",
        "That isn't a poem. Write one.",
    ),
    praises=(
        "What a charming poem, thank you!",
        "Beautiful verses, thanks.",
        "I love it.",
        "That's lovely, thank you.",
        "Great rhyme!",
        "Wonderful, just what I wanted.",
        "Nice poem, thanks.",
        "Perfect, very poetic.",
        "Thank you, that made me smile.",
        "Excellent, I like the lines.",
        "Sweet, thanks a lot.",
        "Good one, thank you.",
    ),
)

FORMAL = Wish(
    "formal",
    _formal,
    corrections=(
        "Please use a more formal tone, without contractions.",
        "That is too chatty. Be formal, please.",
        "Don't be so casual with me. Write formally.",
        "I would prefer formal language and no exclamation marks.",
        "Your tone is too relaxed. Keep it professional.",
        "Please write as you would in an official letter.",
        "Less cheerful, more formal, please.",
        "No slang and no short forms like don't, please.",
        "Could you phrase that in a serious and formal way?",
        "I expect a formal answer.",
        "That sounds like a text message. More formal, please.",
        "Drop the exclamation marks and be more polite and formal.",
    ),
    praises=(
        "Thank you, the tone is appropriate.",
        "Very good, that is suitably formal.",
        "Excellent, thank you.",
        "Much appreciated.",
        "That is well put, thank you.",
        "Perfect, a proper tone.",
        "Thank you for the professional answer.",
        "I am pleased with this answer.",
        "Good, that is how it should sound.",
        "Thank you, most helpful.",
        "Splendid, thank you.",
        "Quite right, thanks.",
    ),
)

WISHES: dict[str, Wish] = {w.name: w for w in (TWO_SENTENCES, PLAIN, BULLETS, LONGER, POEM, FORMAL)}
CONTRADICTORY: tuple[Wish, ...] = (TWO_SENTENCES, LONGER, BULLETS, PLAIN, POEM)
"""Nobody can please all of these at once: what the control's reactions are drawn from."""


class User(Protocol):
    name: str

    def react(self, answer: str) -> Reaction: ...


class _Bag:
    """Draws texts in random order, each once before any comes again."""

    def __init__(self, texts: tuple[str, ...], rng: random.Random) -> None:
        self._texts, self._rng, self._left = texts, rng, list[str]()

    def draw(self) -> str:
        if not self._left:
            self._left = list(self._texts)
            self._rng.shuffle(self._left)
        return self._left.pop()


class WishUser:
    """Thanks when the wish is kept, corrects when it is broken; nothing else matters to this user."""

    def __init__(self, wish: Wish, seed: int) -> None:
        rng = random.Random(f"{wish.name}/{seed}")
        self.name, self._wish = wish.name, wish
        self._praises, self._corrections = _Bag(wish.praises, rng), _Bag(wish.corrections, rng)

    def react(self, answer: str) -> Reaction:
        kept = self._wish.check(answer)
        bag = self._praises if kept else self._corrections
        return Reaction(bag.draw(), 1 if kept else -1, kept)


class RandomReactions:
    """The control: praise or a correction of a random wish, whatever the answer was. Nothing can be learned
    from it, so a product that 'improves' under it only drifts."""

    def __init__(
        self, seed: int, wishes: tuple[Wish, ...] = CONTRADICTORY, praise_share: float = 0.5
    ) -> None:
        self._rng = random.Random(f"random/{seed}")
        self.name, self._share = "random", praise_share
        self._bags = [(_Bag(w.praises, self._rng), _Bag(w.corrections, self._rng)) for w in wishes]

    def react(self, answer: str) -> Reaction:
        kept = TWO_SENTENCES.check(answer)  # noted for the record; the reaction does not depend on it
        praises, corrections = self._rng.choice(self._bags)
        if self._rng.random() < self._share:
            return Reaction(praises.draw(), 1, kept)
        return Reaction(corrections.draw(), -1, kept)
