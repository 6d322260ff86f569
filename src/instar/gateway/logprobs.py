"""Log-probs of tokens in the shape that OpenAI's chat completions and its Responses API share."""

from __future__ import annotations

from typing import Any

from instar.chat_format import ChatFormat
from instar.flow.exchange import Piece


class TokenLogprobs:
    """The model's tokens as clients read them. `bytes` of all tokens of a text, joined, are that text; they are null
    for tokens that are no text."""

    def __init__(self, chat: ChatFormat) -> None:
        self._chat = chat

    def of(self, piece: Piece) -> list[dict[str, Any]]:
        """One entry for each token."""
        top = piece.top or [[] for _ in piece.ids]
        return [
            {
                **self._token(token_id, logprob),
                "top_logprobs": [self._token(other, value) for other, value in alternatives],
            }
            for token_id, logprob, alternatives in zip(piece.ids, piece.logprobs, top, strict=True)
        ]

    def _token(self, token_id: int, logprob: float) -> dict[str, Any]:
        found = self._chat.token_bytes(token_id)
        return {
            "token": self._chat.token_text(token_id),
            "logprob": logprob,
            "bytes": None if found is None else list(found),
        }
