"""What OpenAI's chat completions and its older completions have in common."""

from __future__ import annotations

import json
from typing import Any

from instar.errors import InstarError
from instar.flow.exchange import Ended, Serving
from instar.gateway.errors import describe
from instar.gateway.schemas import CompletionFields
from instar.gateway.sse import DONE, data_event
from instar.gateway.turns import Event


def head(serving: Serving, served_name: str, kind: str) -> dict[str, Any]:
    """The part of an answer, or of each of its chunks, that says what it is. `id` is the first turn's."""
    return {
        "id": serving.turns[0].id,
        "object": kind,
        "created": int(serving.turns[0].created_at),
        "model": served_name,
        "system_fingerprint": serving.version,
    }


def usage(serving: Serving, response_tokens: int) -> dict[str, int]:
    prompt = len(serving.prompt_ids)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": response_tokens,
        "total_tokens": prompt + response_tokens,
    }


class Chunks:
    """Writes the chunks of one stream. What never changes in them is encoded once."""

    def __init__(self, serving: Serving, served_name: str, kind: str, *, with_usage: bool) -> None:
        self._serving = serving
        self._with_usage = with_usage
        self._head = head(serving, served_name, kind)
        self._start = b"data: " + json.dumps(self._head).encode()[:-1] + b', "choices": ['
        self._end = b'], "usage": null}\n\n' if with_usage else b"]}\n\n"

    def of(self, choice: dict[str, Any]) -> bytes:
        return self._start + json.dumps(choice).encode() + self._end

    def failed(self, error: InstarError) -> bytes:
        return data_event(describe(error)[1])

    def done(self, response_tokens: int) -> bytes:
        """The usage, where it was asked for, and the mark of the end."""
        if not self._with_usage:
            return DONE
        return (
            data_event({**self._head, "choices": [], "usage": usage(self._serving, response_tokens)}) + DONE
        )


class ChoicesBuilder:
    """The part of `turns.Builder` that both have. Its events are the choices of chunks.

    `kind` is the whole answer's `object`, `chunk_kind` that of each chunk.
    """

    def __init__(
        self, serving: Serving, served_name: str, body: CompletionFields, kind: str, chunk_kind: str
    ) -> None:
        with_usage = bool(body.stream_options and body.stream_options.include_usage)
        self._serving = serving
        self._head = head(serving, served_name, kind)
        self._chunks = Chunks(serving, served_name, chunk_kind, with_usage=with_usage)
        self._ended: dict[int, Ended] = {}

    def encode(self, event: Event) -> bytes:
        return self._chunks.of(event)

    def fail(self, error: InstarError) -> bytes:
        return self._chunks.failed(error)

    def close(self) -> bytes:
        return self._chunks.done(self._response_tokens)

    def whole(self) -> dict[str, Any]:
        choices = [self._in_whole(ended) for _, ended in sorted(self._ended.items())]
        return {**self._head, "choices": choices, "usage": usage(self._serving, self._response_tokens)}

    def _in_whole(self, ended: Ended) -> dict[str, Any]:
        """One of the whole answer's choices."""
        raise NotImplementedError

    @property
    def _response_tokens(self) -> int:
        return sum(ended.response_tokens for ended in self._ended.values())
