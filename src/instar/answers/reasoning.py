"""Thinking aloud, `<think>…</think>`, apart from what the user is to read."""

from __future__ import annotations

from dataclasses import dataclass

from instar.answers.search import held_from


@dataclass(frozen=True, slots=True)
class ThinkTags:
    """`native`: the model's own template knows these tags."""

    open: str = "<think>"
    close: str = "</think>"
    native: bool = False


KNOWN_TAGS = (
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<seed:think>", "</seed:think>"),
    ("<thought>", "</thought>"),
    ("<reasoning>", "</reasoning>"),
)


def tags_of(template: str) -> ThinkTags:
    """The tags that a chat template speaks of, of those that models are known to use; else `<think>`."""
    for opens, closes in KNOWN_TAGS:
        if closes in template:
            return ThinkTags(opens, closes, native=True)
    return ThinkTags()


class ReasoningSplitter:
    """Splits an answer as it comes. Only what the answer begins with is thinking: a tag further on is text.

    `is_open`: the prompt ended with the opening tag, so the answer begins within.
    """

    def __init__(self, tags: ThinkTags, *, is_open: bool = False) -> None:
        self._tags, self._is_open = tags, is_open
        self._buffer = ""
        self._state = "start"

    def push(self, text: str) -> tuple[str, str]:
        """Thinking and text that are certain by now."""
        self._buffer += text
        return self._read(last=False)

    def finish(self) -> tuple[str, str]:
        return self._read(last=True)

    def _read(self, *, last: bool) -> tuple[str, str]:
        thought = said = ""
        if self._state == "start":
            self._start(last)
        if self._state == "open":  # white space behind the opening tag
            self._buffer = self._buffer.lstrip()
            if self._buffer:
                self._state = "thinking"
        if self._state == "thinking":
            thought = self._think(last)
        if self._state == "closed":  # white space behind the closing tag
            self._buffer = self._buffer.lstrip()
            if self._buffer:
                self._state = "text"
        if self._state == "text":
            said, self._buffer = self._buffer, ""
        return thought, said

    def _start(self, last: bool) -> None:
        begins = self._buffer.lstrip()
        if begins.startswith(self._tags.open):
            self._buffer = begins.removeprefix(self._tags.open)
            self._state = "open"
        elif last or (begins and not self._tags.open.startswith(begins)):
            self._state = "open" if self._is_open else "text"

    def _think(self, last: bool) -> str:
        at = self._buffer.find(self._tags.close)
        if at >= 0:
            thought = self._buffer[:at].rstrip()
            self._buffer = self._buffer[at + len(self._tags.close) :]
            self._state = "closed"
            return thought
        kept = len(self._buffer.rstrip()) if last else held_from(self._buffer, (self._tags.close,))
        thought, self._buffer = self._buffer[:kept], self._buffer[kept:]
        if last:
            self._buffer = ""
        return thought
