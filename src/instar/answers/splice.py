"""Puts answers that we sampled back into a prompt token by token, where the template leaves room for them."""

from __future__ import annotations

import secrets
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from instar.answers.reasoning import ReasoningSplitter, ThinkTags
from instar.errors import RequestError
from instar.records import Message

_THOUGHT = "reasoning_content"


class Template(Protocol):
    """What is asked of a chat format."""

    tags: ThinkTags

    @property
    def opening(self) -> str: ...

    def render(self, messages: Sequence[Message], *, tools: list[Any] | None = None) -> str: ...

    def read_back(self, ids: Sequence[int]) -> str: ...

    def is_marker(self, text: str) -> bool: ...


def _mark() -> str:
    return f"\u27e6{secrets.token_hex(12)}\u27e7"


class Splicer:
    """Of one request. `served` gives, by message index, the sampled ids without their stop token.

    An answer with calls is spliced whole, as text would be. One with thinking is spliced whole where the template
    keeps the thinking of that message, else from where its thinking ended. Where neither can be, because the template
    refuses, or writes something else around the answer, its text is encoded.
    """

    def __init__(
        self,
        template: Template,
        messages: Sequence[Message],
        served: Mapping[int, list[int]],
        tools: list[Any] | None,
    ) -> None:
        self._template, self._messages, self._tools = template, messages, tools
        tags, opening = template.tags, template.opening
        self._opened = opening[opening.rfind(tags.open) :] if opening.rstrip().endswith(tags.open) else ""
        self._served = self._choose(served)

    def pieces(self) -> list[str | list[int]]:
        """The prompt: text that is to be encoded, and ids that are to stand between."""
        try:
            return self._pieces(self._served)
        except RequestError:  # a template may want to see a call before it takes its result
            silent = {i: s for i, s in self._served.items() if not self._messages[i].get("tool_calls")}
            return self._pieces(silent)

    def _choose(self, served: Mapping[int, list[int]]) -> dict[int, tuple[str, list[int]]]:
        """Index → text before the ids (what the template opened for the model), and the ids."""
        thoughtful = [i for i in served if self._messages[i].get(_THOUGHT)]
        kept = self._kept(thoughtful) if thoughtful else set()
        chosen: dict[int, tuple[str, list[int]]] = {}
        for i, ids in served.items():
            if i in kept:
                began = self._template.read_back(ids).lstrip().startswith(self._template.tags.open)
                chosen[i] = ("" if began else self._opened, ids)
            elif i not in thoughtful and not self._template.tags.native:
                chosen[i] = ("", ids)
            elif rest := self._after_thinking(ids):
                chosen[i] = ("", rest)
        return chosen

    def _kept(self, thoughtful: Sequence[int]) -> set[int]:
        """Those of these messages whose thinking the template writes into the prompt."""
        marks = {i: _mark() for i in thoughtful}
        marked = [{**m, _THOUGHT: marks[i]} if i in marks else m for i, m in enumerate(self._messages)]
        text = self._template.render(marked, tools=self._tools)
        return {i for i, mark in marks.items() if mark in text}

    def _after_thinking(self, ids: list[int]) -> list[int] | None:
        """The ids of what follows the thinking; None where no token begins there."""
        splitter = ReasoningSplitter(self._template.tags, is_open=bool(self._opened))
        whole = self._template.read_back(ids)
        text = splitter.push(whole)[1] + splitter.finish()[1]
        if text == whole:
            return ids
        at = bisect_left(range(len(ids)), -len(text), key=lambda k: -len(self._template.read_back(ids[k:])))
        return ids[at:] if text and self._template.read_back(ids[at:]) == text else None

    def _pieces(self, served: Mapping[int, tuple[str, list[int]]]) -> list[str | list[int]]:
        marks = {i: _mark() for i in served}
        marked = [_stand_in(m, marks[i]) if i in marks else m for i, m in enumerate(self._messages)]
        text = self._template.render(marked, tools=self._tools)
        unclean = {i for i, mark in marks.items() if not self._is_clean(text, mark, i)}
        if unclean:
            return self._pieces({i: s for i, s in served.items() if i not in unclean})
        found: list[str | list[int]] = []
        for i in sorted(marks):
            before, _, text = text.partition(marks[i])
            found += [before + served[i][0], served[i][1]]
        return [*found, text]

    def _is_clean(self, text: str, mark: str, index: int) -> bool:
        """Whether ids can stand where the mark does: once, a special token behind, and nothing thought before."""
        before, found, after = text.partition(mark)
        if not found or mark in after or not self._template.is_marker(after):
            return False
        opening = self._template.opening.removesuffix(self._opened)
        return not self._messages[index].get(_THOUGHT) or before.endswith(opening)


def _stand_in(message: Message, mark: str) -> Message:
    left_out = {"tool_calls", _THOUGHT}
    return {**{name: value for name, value in message.items() if name not in left_out}, "content": mark}
