"""The text of an answer, as it comes, to the message that the client gets: thinking, words and calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from instar.answers.parts import CallPart, CallReader, Part, Shown, Thought
from instar.answers.reasoning import ReasoningSplitter


class AnswerReader:
    """`splitter` is None where nothing counts as thinking, `calls` where no tools were offered: all that is text.

    What follows the last of `most_calls` calls is left out; `is_full` says that it has come.
    """

    def __init__(
        self,
        splitter: ReasoningSplitter | None,
        calls: CallReader | None,
        new_call_id: Callable[[], str],
        most_calls: int | None = None,
    ) -> None:
        self._splitter, self._calls, self._new_id = splitter, calls, new_call_id
        self._most = most_calls
        self._cut = False
        self._text = self._reasoning = ""
        self._made: list[dict[str, Any]] = []

    @property
    def is_full(self) -> bool:
        return self._calls is not None and self._most is not None and self._calls.complete >= self._most

    def push(self, text: str) -> Shown:
        """What some more text adds to the message, in the order in which it was written."""
        return self._show(*(self._splitter.push(text) if self._splitter else ("", text)))

    def finish(self) -> Shown:
        shown = self._show(*self._splitter.finish()) if self._splitter else ()
        return shown + self._collect(self._calls.finish()) if self._calls else shown

    def message(self) -> dict[str, Any]:
        """The answer so far in OpenAI's shape. `content` is None where it has calls and no words."""
        message: dict[str, Any] = {"role": "assistant", "content": self._text}
        if self._made and not self._text:
            message["content"] = None
        if self._reasoning:
            message["reasoning_content"] = self._reasoning
        if self._made:
            message["tool_calls"] = [{**call, "function": dict(call["function"])} for call in self._made]
        return message

    def _show(self, reasoning: str, text: str) -> Shown:
        self._reasoning += reasoning
        thought: Shown = (Thought(reasoning),) if reasoning else ()
        if not text:
            return thought
        return thought + self._collect(self._calls.push(text) if self._calls else [text])

    def _collect(self, parts: Sequence[Part]) -> Shown:
        shown: list[Part] = []
        for part in parts:
            self._cut = self._cut or self._is_too_many(part)
            if self._cut:
                break
            if isinstance(part, str):
                self._text += part
                shown.append(part)
            else:
                shown.append(self._call(part))
        return tuple(shown)

    def _is_too_many(self, part: Part) -> bool:
        return isinstance(part, CallPart) and self._most is not None and part.index >= self._most

    def _call(self, part: CallPart) -> CallPart:
        if part.name is not None:
            part = replace(part, id=self._new_id())
            function = {"name": part.name, "arguments": ""}
            self._made.append({"id": part.id, "type": "function", "function": function})
        self._made[part.index]["function"]["arguments"] += part.arguments
        return part
