"""What OpenAI's chat completions and its older completions have in common."""

from __future__ import annotations

from typing import Any

from instar.flow.exchange import Serving


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
