"""What OpenAI's chat completions and its older completions have in common."""

from __future__ import annotations

import json
from typing import Any

from instar.errors import InstarError
from instar.flow.exchange import Serving
from instar.gateway.errors import describe
from instar.gateway.sse import DONE, data_event


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
