"""Text that clients send in parts, and answers that come back as several items, as plain chat messages.

Deterministic and by meaning, so that an answer of ours which comes back in another API's shape is known again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from instar.answers.parts import dumps
from instar.records import Message


def text_from(content: str | Sequence[dict[str, Any]], kinds: Sequence[str]) -> str:
    """The text of a string, or of text parts of these kinds, each on a line of its own. ValueError for others."""
    if isinstance(content, str):
        return content
    texts = []
    for part in content:
        if part.get("type") not in kinds:
            raise ValueError(
                f"parts of type {str(part.get('type'))[:40]!r} are not supported here; send text"
            )
        text = part.get("refusal") if part["type"] == "refusal" else part.get("text")
        if not isinstance(text, str):
            raise ValueError(f"a part of type {part['type']!r} needs text")
        texts.append(text)
    return "\n".join(texts)


def text_parts(texts: Sequence[str]) -> list[dict[str, Any]]:
    """Texts as the parts of one message, each on a line of its own: clients put their own text beside the user's."""
    return [{"type": "text", "text": text} for text in [*(f"{text}\n" for text in texts[:-1]), texts[-1]]]


def function_call(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def arguments_of(given: dict[str, Any]) -> str:
    return dumps(given)


def function_tool(
    name: str, description: str | None, parameters: dict[str, Any] | None, strict: bool | None
) -> dict[str, Any]:
    """A tool in the shape of chat completions, which chat templates are written for."""
    function: dict[str, Any] = {"name": name}
    if description is not None:
        function["description"] = description
    function["parameters"] = parameters if parameters is not None else {"type": "object", "properties": {}}
    if strict is not None:
        function["strict"] = strict
    return {"type": "function", "function": function}


class AnswerParts:
    """Gathers what one model step said – thought, text, calls – into the one message as which it was recorded."""

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self._thoughts: list[str] = []
        self._texts: list[str] = []
        self._calls: list[dict[str, Any]] = []

    def __bool__(self) -> bool:
        return bool(self._thoughts or self._texts or self._calls)

    @property
    def ends_in_text(self) -> bool:
        return bool(self._texts) and not self._calls

    @property
    def has_spoken(self) -> bool:
        return bool(self._texts or self._calls)

    def think(self, text: str) -> None:
        self._thoughts.append(text)

    def say(self, text: str) -> None:
        self._texts.append(text)

    def call(self, call: dict[str, Any]) -> None:
        self._calls.append(call)

    def take(self) -> Message:
        """The message, with which a new answer begins."""
        message: Message = {"role": "assistant", "content": "".join(self._texts)}
        if self._thoughts:
            message["reasoning_content"] = "".join(self._thoughts)
        if self._calls:
            message["content"] = message["content"] or None  # as OpenAI has it
            message["tool_calls"] = self._calls
        self._clear()
        return message
