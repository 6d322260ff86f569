"""Reads one call, `{"name": …, "arguments": {…}}`, character by character."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from instar.answers.parts import NAME, arguments_text, loads

_ARGUMENTS = ("arguments", "parameters")
_CALL_KEYS = frozenset({"name", "type", "id", "function", *_ARGUMENTS})
_CLOSES = {"{": "}", "[": "]"}
_DEEPEST = 100


class ObjectReader:
    """Knows of an unfinished object whether it may still become a call, and its arguments so far.

    `broken` says that the last character given can stand in no JSON object, and is not part of `raw`.
    """

    def __init__(self, *, suspicious: bool = False) -> None:
        """`suspicious`: nothing announced a call, so a first key that no call begins with ends the matter."""
        self.raw = ""
        self.name: str | None = None
        self.arguments = ""
        self.done = self.broken = False
        self._suspicious = suspicious
        self._stack: list[str] = []
        self._in_string = self._escaped = self._capturing = False
        self._expected = "key"
        self._key = self._token = ""

    def feed(self, char: str) -> None:
        if self._in_string:
            self._string(char)
        elif char in " \t\r\n":
            self._keep(char)
        elif not self._stack:
            self._open(char) if char == "{" else self._break()
        elif len(self._stack) == 1:
            self._top(char)
        else:
            self._deeper(char)

    def call(self, known: Mapping[str, Collection[str]] | None = None) -> tuple[str, str] | None:
        """Name and arguments of a finished object, if it is a call.

        Small models write arguments beside the name. They are taken for these where all of them are among those that
        the tool takes, by name in `known`; else it is no call: it would run without what it was to be given.
        """
        try:
            value: Any = loads(self.raw)
        except ValueError:
            return None
        inner = value.get("function")
        value = inner if isinstance(inner, dict) and "name" not in value else value
        name = value.get("name")
        if not isinstance(name, str) or not NAME.fullmatch(name):
            return None
        given = next((value[key] for key in _ARGUMENTS if value.get(key) is not None), None)
        if given is None:
            given = {key: part for key, part in value.items() if key not in _CALL_KEYS}
            if not given.keys() <= set((known or {}).get(name, ())):
                return None
        arguments = arguments_text(given, self.arguments)
        return None if arguments is None else (name, arguments)

    def _keep(self, char: str, written: str | None = None) -> None:
        self.raw += char
        if self._capturing:
            self.arguments += char if written is None else written

    def _break(self) -> None:
        self.broken = True

    def _open(self, char: str) -> None:
        if len(self._stack) >= _DEEPEST:
            return self._break()
        self._stack.append(_CLOSES[char])
        return self._keep(char)

    def _string(self, char: str) -> None:
        if char == '"' and not self._escaped and self._is_alien_key():
            return self._break()
        # raw control characters in a string are a mistake that clients do not forgive
        self._keep(char, None if char >= " " else f"\\u{ord(char):04x}")
        if self._escaped:
            self._escaped = False
        elif char == "\\":
            self._escaped = True
        elif char == '"':
            self._in_string = False
            if len(self._stack) == 1:
                self._top_string()
            return None
        if len(self._stack) == 1:
            self._token += char
        return None

    def _is_alien_key(self) -> bool:
        """Whether the first key ends here, and no call begins with it."""
        first = self._suspicious and len(self._stack) == 1 and self._expected == "key" and not self._key
        return first and self._token not in _CALL_KEYS

    def _top_string(self) -> None:
        try:
            text = str(loads(f'"{self._token}"'))
        except ValueError:
            text = ""
        if self._expected == "key":
            self._key, self._expected = text, "colon"
        else:
            self.name = text if self._key == "name" else self.name
            self._expected = "comma"

    def _top(self, char: str) -> None:
        """A character between the members of the object itself."""
        if char == "}" and self._expected in ("key", "comma", "scalar"):
            self._stack.pop()
            self.done = True
            self._keep(char)
        elif char == "," and self._expected in ("comma", "scalar"):
            self._expected = "key"
            self._keep(char)
        elif char == '"' and self._expected in ("key", "value"):
            self._in_string, self._token = True, ""
            self._keep(char)
        elif char == ":" and self._expected == "colon":
            self._expected = "value"
            self._keep(char)
        elif self._expected == "value":
            self._begin_value(char)
        elif self._expected == "scalar" and char not in '"{}[]:,':
            self._keep(char)
        else:
            self._break()

    def _begin_value(self, char: str) -> None:
        if char in _CLOSES:
            self._capturing = char == "{" and self._key in _ARGUMENTS and not self.arguments
            self._open(char)
        elif char in ",:]}":
            self._break()
        else:
            self._expected = "scalar"
            self._keep(char)

    def _deeper(self, char: str) -> None:
        """A character within a value. What brackets do not show, `call` finds out at the end."""
        if char in _CLOSES:
            self._open(char)
        elif char in "}]":
            if char != self._stack[-1]:
                return self._break()
            self._keep(char)
            self._stack.pop()
            if len(self._stack) == 1:
                self._capturing, self._expected = False, "comma"
        else:
            self._in_string = char == '"'
            self._keep(char)
        return None
