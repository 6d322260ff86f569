"""Calls written as JSON objects, one or several, with or without marks around them: what most formats share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from instar.answers.json_object import ObjectReader
from instar.answers.parts import NAME, CallPart, Part, Tool
from instar.answers.search import find_first, held_from

HELD_CHARS = 256
"""Arguments shorter than this are passed on only when the call is whole, so that a broken one can still be text."""

_FENCES = ("```json", "```")


@dataclass(frozen=True, slots=True)
class Marks:
    """`openers` announce a call anywhere in an answer, `closers` may end one, `separators` stand between two."""

    openers: tuple[str, ...] = ()
    closers: tuple[str, ...] = ()
    separators: str = ","


class JsonCallReader:
    """Implements CallReader. Without an opener, an answer may also begin with a call of a tool that was declared."""

    def __init__(self, marks: Marks, tools: Sequence[Tool], *, is_forced: bool = False) -> None:
        self._marks, self._declared = marks, {tool.name: tool.properties for tool in tools}
        self._held_chars = 0 if is_forced else HELD_CHARS
        self._buffer = self._raw = ""
        self._object: ObjectReader | None = None
        self._step = self._at_start
        self._announced = self._closed = False
        self._pending: list[str] = []  # marks that may still end what was opened
        self._passed: int | None = (
            None  # characters of the arguments that were passed on; None: none may be yet
        )
        self._index = -1
        self._last = False
        self._parts: list[Part] = []
        self.complete = 0

    def push(self, text: str) -> list[Part]:
        self._buffer += text
        while self._step():
            pass
        parts, self._parts = self._parts, []
        return parts

    def finish(self) -> list[Part]:
        self._last = True
        parts = self.push("")
        if self._passed is None:
            self._say(self._raw + (self._object.raw if self._object else ""))
        self._raw, self._object = "", None
        parts += self._parts
        return parts

    def _say(self, text: str) -> None:
        if text:
            self._parts.append(text)

    # Each step reads from the buffer and returns whether there may be more to read.

    def _at_start(self) -> bool:
        """Before anything was said: the answer may begin with a call that nothing announces."""
        text = self._buffer.lstrip()
        openers = (*_FENCES, *self._marks.openers)
        if not self._last and (not text or any(mark.startswith(text) for mark in openers)):
            return False
        self._step = self._in_text
        if text.startswith(("{", "[", "```")) and not text.startswith(self._marks.openers):
            self._enter_region(len(self._buffer) - len(text), announced=False)
            if fence := next((mark for mark in _FENCES if text.startswith(mark)), ""):
                self._take(len(fence))
                self._pending.append("```")
        return True

    def _in_text(self) -> bool:
        found = find_first(self._buffer, self._marks.openers)
        if found is not None:
            at, mark = found
            kept = len(self._buffer[:at].rstrip())
            self._say(self._buffer[:kept])
            self._buffer = self._buffer[kept:]
            self._enter_region(at - kept + len(mark), announced=True)
            return True
        kept = len(self._buffer) if self._last else held_from(self._buffer, self._marks.openers)
        self._say(self._buffer[:kept])
        self._buffer = self._buffer[kept:]
        return False

    def _enter_region(self, length: int, *, announced: bool) -> None:
        self._raw, self._announced, self._closed = "", announced, False
        self._pending = list(self._marks.closers)
        self._take(length)
        self._step = self._before_object

    def _take(self, length: int) -> None:
        self._raw += self._buffer[:length]
        self._buffer = self._buffer[length:]

    def _skip_space(self) -> None:
        self._take(len(self._buffer) - len(self._buffer.lstrip()))

    def _before_object(self) -> bool:
        self._skip_space()
        if not self._buffer:
            return False
        if self._buffer[0] == "[" and "]" not in self._pending:
            self._take(1)
            self._pending.append("]")
        elif self._buffer[0] == "{":
            self._object, self._passed = ObjectReader(suspicious=not self._announced), None
            self._step = self._in_object
        else:
            self._give_up()
        return True

    def _give_up(self) -> None:
        """No call after all: what was read is text, and the reading goes on behind it."""
        self._say(self._raw + (self._object.raw if self._object and self._passed is None else ""))
        self._raw, self._object, self._passed = "", None, None
        self._step = self._in_text

    def _in_object(self) -> bool:
        reader = self._object
        assert reader is not None
        for at, char in enumerate(self._buffer):
            reader.feed(char)
            if reader.broken or reader.done:
                self._buffer = self._buffer[at + reader.done :]
                self._end_object(reader)
                return True
        self._buffer = ""
        self._pass_on(reader)
        return False

    def _is_allowed(self, name: str | None) -> bool:
        return name in self._declared or bool(self._announced and name and NAME.fullmatch(name))

    def _pass_on(self, reader: ObjectReader) -> None:
        """Arguments of a call that is certain enough."""
        if self._passed is None and self._is_allowed(reader.name):
            if not reader.arguments or len(reader.arguments) < self._held_chars:
                return
            self._begin(reader.name or "")
        if self._passed is not None and len(reader.arguments) > self._passed:
            self._parts.append(CallPart(self._index, reader.arguments[self._passed :]))
            self._passed = len(reader.arguments)

    def _begin(self, name: str) -> None:
        self._index += 1
        self._passed, self._raw = 0, ""
        self._parts.append(CallPart(self._index, name=name))

    def _end_object(self, reader: ObjectReader) -> None:
        self._pass_on(reader)
        if self._passed is None:
            known = self._declared if self._announced else None
            call = reader.call(known) if reader.done else None
            if call is None or not self._is_allowed(call[0]):
                self._give_up()
                return
            self._begin(call[0])
            self._parts.append(CallPart(self._index, call[1]))
        self._object, self._passed = None, None
        self.complete += 1
        self._raw = ""
        self._step = self._after_object

    def _after_object(self) -> bool:
        """White space, a separator and another call; or the end of the region; or text that follows without a word."""
        self._buffer = self._buffer.lstrip()
        closer = next((mark for mark in self._pending if self._buffer.startswith(mark)), None)
        if closer is not None:
            self._buffer = self._buffer[len(closer) :]
            self._pending.remove(closer)
            self._closed = True
        elif not self._closed and self._buffer[:1] == "{":
            self._step = self._before_object
        elif not self._closed and self._buffer and self._buffer[0] in self._marks.separators:
            return self._next_object()
        elif self._last or (self._buffer and not any(m.startswith(self._buffer) for m in self._pending)):
            self._step = self._in_text
        else:
            return False
        return True

    def _next_object(self) -> bool:
        """Behind a separator: another call, or else it is text that happens to begin like that."""
        after = self._buffer[1:].lstrip()
        if not after and not self._last:
            return False
        if after.startswith("{"):
            self._take(len(self._buffer) - len(after))
            self._step = self._before_object
        else:
            self._step = self._in_text
        return True
