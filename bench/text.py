"""What a reader sees in an answer: words, sentences, lists. The checks of the wishes stand on this."""

from __future__ import annotations

import re

WORD = re.compile(r"[^\W_]+(?:['’-][^\W_]+)*")
LIST_LINE = re.compile(r"^\s*(?:[-*+•–]\s+|\(?\d{1,3}[.)]\s+)\S", re.MULTILINE)
BOLD = re.compile(r"\*\*[^*\n]+\*\*|__[^_\n]+__")
HEADING = re.compile(r"^\s*#{1,6}\s+\S", re.MULTILINE)

_TITLES = frozenset({"e.g", "i.e", "mr", "mrs", "ms", "dr", "prof", "st", "vs", "cf", "ca", "approx", "fig"})
"""Never end a sentence."""
_SHORT = frozenset({"etc", "no", "inc", "ltd", "jr", "sr", "min", "max", "dept"})
"""End one only before a capital, and so do single letters and 'p.m'."""
_MARKER = re.compile(r"^\s*(?:#{1,6}\s+|[-*+•–]\s+|\(?\d{1,3}[.)]\s+|>\s*)+")
_END = re.compile(r"([.!?…。！？]+)([\"'”’)\]*_]*)(\s+|$|(?<=[a-z]{2}[.!?])(?=[A-Z]))")
_FINISHED = re.compile(r"[.!?…。！？][\"'”’)\]*_]*\s*$")


def words(text: str) -> list[str]:
    """Words of a text in lower case; an apostrophe or hyphen inside a word belongs to it."""
    return [w.lower() for w in WORD.findall(text)]


def _ends_sentence(line: str, match: re.Match[str]) -> bool:
    """Whether a run of terminators ends a sentence: not an abbreviation, an initial or a mid-thought '…'."""
    mark, rest = match.group(1), line[match.end() :]
    if not WORD.search(rest):
        return False  # the line ends here; its last piece is added by the caller
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


def sentence_list(text: str) -> list[str]:
    """The sentences that a reader sees, without list markers. A list item, a heading or a line is one at least,
    and so is a sentence that was cut off: the wish is about what stands on the screen."""
    found: list[str] = []
    for raw in text.splitlines():
        line = _MARKER.sub("", raw).strip()
        if WORD.search(line):
            ends = [m.end() for m in _END.finditer(line) if _ends_sentence(line, m)]
            found += [line[a:b].strip() for a, b in zip([0, *ends], [*ends, len(line)], strict=True)]
    return found


def sentences(text: str) -> int:
    """How many sentences a reader sees."""
    return len(sentence_list(text))


def is_finished(sentence: str) -> bool:
    """Whether it ends in a mark that ends sentences; an answer that was cut off does not."""
    return _FINISHED.search(sentence) is not None


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


def paragraphs(text: str) -> list[str]:
    return [p for p in re.split(r"\n\s*\n", text.strip()) if p.strip()]


def without_layout(text: str) -> str:
    """The text as running prose: no list markers, headings, bold or line breaks."""
    lines = [_MARKER.sub("", line).strip() for line in text.splitlines()]
    joined = " ".join(line if _runs_on(line) else f"{line}." for line in lines if line)
    return re.sub(r"\*\*|__", "", joined)


def _runs_on(line: str) -> bool:
    """Whether the next line may follow it in one paragraph without a full stop between."""
    return is_finished(line) or line.endswith((",", ";", ":"))
