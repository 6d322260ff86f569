"""What an answer consists of besides text: calls of tools, whole and in pieces; and what a format of them must do."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from instar.errors import RequestError

NAME = re.compile(r"[a-zA-Z0-9_.-]{1,128}")
"""What the name of a tool may look like."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call. `parameters` is a JSON schema; None where it takes any object."""

    name: str
    description: str = ""
    parameters: dict[str, Any] | None = None
    strict: bool = False

    @classmethod
    def of(cls, value: Any) -> Tool:
        """From OpenAI's shape, `{"type": "function", "function": {…}}`. Raises RequestError (400)."""
        try:
            function = value["function"]
            name, says = function["name"], function.get("description") or ""
            parameters, strict = function.get("parameters"), bool(function.get("strict"))
        except (KeyError, TypeError, AttributeError) as error:
            raise RequestError("A tool is {type: function, function: {name, …}}.", param="tools") from error
        return cls(name, says, parameters, strict)

    @property
    def properties(self) -> dict[str, Any]:
        """Schemas of the arguments by name; {} where the client's schema tells none."""
        found = (self.parameters or {}).get("properties")
        return found if isinstance(found, dict) else {}


@dataclass(frozen=True, slots=True)
class Call:
    """A call as the history has it. `arguments` is an object; clients send back what is none, as they got it."""

    name: str
    arguments: Any = field(default_factory=dict)

    def as_json(self, key: str = "arguments") -> str:
        return f'{{"name": {dumps(self.name)}, "{key}": {dumps(self.arguments)}}}'


@dataclass(frozen=True, slots=True)
class CallPart:
    """A piece of one tool call of an answer. `id` and `name` come once, with the first piece; `arguments` is JSON text
    that adds up over the pieces."""

    index: int
    arguments: str = ""
    id: str | None = None
    name: str | None = None


@dataclass(frozen=True, slots=True)
class Thought:
    """A piece of what the model thought aloud."""

    text: str


Part = str | CallPart
"""Text, or a piece of a call; a format leaves `id` out."""

Shown = tuple[Part | Thought, ...]
"""What a client gets to see of an answer, in the order in which the model wrote it."""


class CallReader(Protocol):
    """Reads the text of one answer, in pieces of any size; the parts add up to the same whatever the sizes.

    What turns out to be no call, or a broken one, comes out as text. White space beside a call is dropped.
    """

    @property
    def complete(self) -> int:
        """How many calls came to their end."""
        ...

    def push(self, text: str) -> list[Part]:
        """What is certain by now."""
        ...

    def finish(self) -> list[Part]:
        """The rest, when the answer ended."""
        ...


class ToolFormat(Protocol):
    """How a family of models writes calls."""

    @property
    def name(self) -> str: ...

    @property
    def markers(self) -> tuple[str, ...]:
        """Strings around calls, which some models have as special tokens."""
        ...

    def reader(self, tools: Sequence[Tool], *, is_forced: bool) -> CallReader:
        """`is_forced`: a grammar made sure of the form, so that arguments can be passed on as they come."""
        ...

    def write(self, calls: Sequence[Call]) -> str:
        """The calls as the model would write them."""
        ...

    def rules(self, tools: Sequence[Tool], mark: Callable[[str], str], *, many: bool) -> str:
        """Lark rules for llguidance that define `calls`: one call, or one and more. `mark` writes a marker in Lark:
        one that is a token of its own cannot stand there as text."""
        ...

    def explain(self) -> str:
        """Tells a model that was not trained on this format how to write a call."""
        ...


def dumps(value: Any) -> str:
    """JSON as chat templates write it. Halves of characters, which are no text, stay the escapes that they were."""
    text = json.dumps(value, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(value)
    return text


def loads(text: str) -> Any:
    """JSON with what models get wrong forgiven: raw line breaks in strings. Raises ValueError for the rest."""

    def refuse(constant: str) -> Any:
        raise ValueError(f"{constant} is no JSON")

    try:
        return json.loads(text, strict=False, parse_constant=refuse)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def arguments_text(value: Any, as_written: str | None = None) -> str | None:
    """Arguments as JSON text, as the model wrote them where that is JSON; None where they are no object."""
    if value is None:
        return "{}"
    if isinstance(value, str):
        try:
            inner = loads(value)
        except ValueError:
            return None
        return dumps(inner) if isinstance(inner, dict) else None
    if not isinstance(value, dict):
        return None
    if as_written:
        try:
            if json.loads(as_written) == value:
                return as_written
        except (ValueError, RecursionError):
            pass
    return dumps(value)
