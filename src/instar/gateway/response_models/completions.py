"""OpenAI's older completions."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from instar.gateway.response_models.chat import Usage


class TokenLists(BaseModel):
    """Parallel lists, one entry a token."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class TextChoice(BaseModel):
    index: Annotated[int, Field(ge=0)]
    text: str
    logprobs: TokenLists | None
    finish_reason: Literal["stop", "length"] | None


class TextChunk(BaseModel):
    """One event of a stream; the last one but `[DONE]` has the usage, where that was asked for, and no choices."""

    id: Annotated[str, Field(description="The turn's id, for `POST /v1/feedback`")]
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: Annotated[str, Field(description="The version that answered")]
    choices: list[TextChoice]
    usage: Usage | None = None


class TextCompletion(TextChunk):
    """A whole answer."""

    choices: Annotated[list[TextChoice], Field(min_length=1)]
    usage: Usage
