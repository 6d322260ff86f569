"""One choice while it is being sampled: its tokens, and what the client sees of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from instar.answers import AnswerReader, Shown, Thought
from instar.chat_format import ChatFormat
from instar.flow.text import TextAssembler
from instar.ports import TokenChunk
from instar.records import Message, Sampling, Turn
from instar.runtime import new_id


@dataclass(slots=True)
class Seen:
    """The tokens of one choice so far."""

    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    forced: list[bool] = field(default_factory=list)
    finish_reason: str | None = None

    def add(self, chunk: TokenChunk, sampling: Sampling) -> None:
        self.ids += chunk.ids
        self.logprobs += chunk.logprobs
        self.finish_reason = chunk.finish_reason or self.finish_reason
        if sampling.grammar is not None:  # an engine that does not tell may have forced any of them
            self.forced += [True] * len(chunk.ids) if chunk.forced is None else chunk.forced


def reasoning_tokens(chat: ChatFormat, turn: Turn) -> int:
    """How many tokens of a stored answer were thought. Grows with the answer."""
    if not (turn.answer or {}).get("reasoning_content"):
        return 0
    sampling = Sampling(len(turn.response_ids), grammar={} if turn.forced else None)
    answer = Answer(chat, turn.prompt_ids, sampling, turn.tools, None)
    return sum(_thinks(answer.push([token_id])) for token_id in turn.response_ids)


def _thinks(shown: Shown) -> bool:
    return any(isinstance(part, Thought) for part in shown)


class Answer:
    """The tokens of one choice to what the client sees. It is over when its text is, before the engine says so.

    `raw`: a text that goes on; nothing in it counts as thinking or as a call.
    """

    def __init__(
        self,
        chat: ChatFormat,
        prompt_ids: Sequence[int],
        sampling: Sampling,
        tools: list[Any] | None,
        most_calls: int | None,
        *,
        raw: bool = False,
    ) -> None:
        self._text = TextAssembler(chat.decoder(with_calls=bool(tools)), sampling.stop)
        new_call_id = partial(new_id, "call")
        self._reader = (
            AnswerReader(None, None, new_call_id)
            if raw
            else chat.answer_reader(
                prompt_ids,
                tools,
                new_call_id,
                is_forced=sampling.grammar is not None,
                most_calls=most_calls,
            )
        )

    @property
    def stop_string(self) -> str | None:
        """The one of the client's that ended it."""
        return self._text.stop_string

    @property
    def is_over(self) -> bool:
        return self._text.stopped or self._reader.is_full

    def push(self, ids: Sequence[int]) -> Shown:
        return self._reader.push(self._text.push(ids))

    def finish(self) -> Shown:
        return self._reader.push(self._text.finish()) + self._reader.finish()

    def message(self) -> Message:
        return self._reader.message()
