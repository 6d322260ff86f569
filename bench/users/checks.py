"""Does an answer keep the wish, and how would the user have written it? The only code that knows what is wished.

A check says whether an answer keeps the wish. A mend rewrites an answer as a person would who shows what was
meant: as few changes as the wish needs. It may fail; whoever shows a mended text checks it first.
"""

from __future__ import annotations

import re

from bench.text import (
    BOLD,
    HEADING,
    LIST_LINE,
    WORD,
    first_sentences,
    is_finished,
    paragraphs,
    sentence_list,
    sentences,
    without_layout,
    words,
)

FEWEST_WORDS = 4
"""A shorter answer keeps no wish: silence is no way to be brief."""
LONG_WORDS = 75
FEWEST_ITEMS = 3
NAME = "Nora"
SIGN_OFF = "Best wishes, Ada"

_CONTRACTION = re.compile(
    r"\b\w+(?:n['’]t|['’](?:ll|re|ve|m|d))\b|\b(?:it|that|here|there|let|what)['’]s\b", re.I
)
_NAME_FIRST = re.compile(rf"\W*{NAME}\b", re.I)
_SIGNED = re.compile(r"\bbest\s+wishes\s*,?\s*ada\W*$", re.I)


# ── checks ────────────────────────────────────────────────────────────────────────────────────────────────
def says_something(answer: str) -> bool:
    return len(words(answer)) >= FEWEST_WORDS


def at_most_two_sentences(answer: str) -> bool:
    return says_something(answer) and sentences(answer) <= 2


def is_plain(answer: str) -> bool:
    marked = LIST_LINE.search(answer) or BOLD.search(answer) or HEADING.search(answer)
    return says_something(answer) and len(paragraphs(answer)) == 1 and not marked


def has_bullets(answer: str) -> bool:
    return says_something(answer) and len(LIST_LINE.findall(answer)) >= FEWEST_ITEMS


def is_long(answer: str) -> bool:
    return len(words(answer)) >= LONG_WORDS


def is_poem(answer: str) -> bool:
    lines = [line for line in answer.splitlines() if WORD.search(line)]
    short = all(len(words(line)) <= 12 for line in lines)
    return len(lines) >= 4 and short and not LIST_LINE.search(answer)


def is_formal(answer: str) -> bool:
    return says_something(answer) and not _CONTRACTION.search(answer) and "!" not in answer


def begins_with_name(answer: str) -> bool:
    """The name is the first word, and an answer follows it."""
    return _NAME_FIRST.match(answer) is not None and len(words(answer)) > FEWEST_WORDS


def is_signed(answer: str) -> bool:
    """The sign-off is the end, and an answer stands before it."""
    found = _SIGNED.search(answer)
    return found is not None and says_something(answer[: found.start()])


# ── mends ─────────────────────────────────────────────────────────────────────────────────────────────────
def shortened(answer: str) -> str:
    text = first_sentences(answer).strip()
    return text if is_finished(text) else f"{text}."


def made_plain(answer: str) -> str:
    return without_layout(whole_sentences(answer))


def as_bullets(answer: str) -> str:
    return "\n".join(f"- {s}" for s in sentence_list(whole_sentences(answer))[:6])


_SPELT_OUT = (
    (r"\bcan['’]t\b", "cannot"),
    (r"\bwon['’]t\b", "will not"),
    (r"\blet['’]s\b", "let us"),
    (r"n['’]t\b", " not"),
    (r"['’]ll\b", " will"),
    (r"['’]re\b", " are"),
    (r"['’]ve\b", " have"),
    (r"['’]m\b", " am"),
    (r"['’]d\b", " would"),
    (r"(?<=\bit)['’]s\b|(?<=\bthat)['’]s\b|(?<=\bhere)['’]s\b|(?<=\bthere)['’]s\b|(?<=\bwhat)['’]s\b", " is"),
)


def made_formal(answer: str) -> str:
    for short, long in _SPELT_OUT:
        answer = re.sub(short, long, answer, flags=re.I)
    return answer.replace("!", ".")


def with_name(answer: str) -> str:
    text = whole_sentences(answer).lstrip()
    keeps_capital = re.match(r"I\b|\W", text)
    return f"{NAME}, {text if keeps_capital else text[:1].lower() + text[1:]}"


def signed(answer: str) -> str:
    return f"{whole_sentences(answer).rstrip()}\n\n{SIGN_OFF}"


def whole_sentences(answer: str) -> str:
    """Without the sentence that was cut off at the end, unless it is the only one."""
    found = sentence_list(answer)
    if not found or is_finished(answer) or len(found) == 1:
        return answer.strip()
    kept = answer[: answer.rindex(found[-1])].rstrip()
    return re.sub(r"\n\s*(?:[-*+•–]|\(?\d{1,3}[.)])\s*$", "", kept).rstrip()
