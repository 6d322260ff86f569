"""OpenAI's chat completions."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from instar.gateway.response_models.common import Fact


class TokenLogprob(BaseModel):
    token: str
    logprob: float
    bytes: list[int] | None


class ContentLogprob(TokenLogprob):
    top_logprobs: list[TokenLogprob]


class Logprobs(BaseModel):
    content: list[ContentLogprob] | None
    refusal: None


class AnswerMessage(BaseModel):
    role: Literal["assistant"]
    content: str | None
    refusal: str | None
    reasoning_content: str | None = None
    tool_calls: list[Fact] | None = None


class ChatChoice(BaseModel):
    index: Annotated[int, Field(ge=0)]
    message: AnswerMessage
    logprobs: Logprobs | None
    finish_reason: Literal["stop", "length", "tool_calls"]


class Usage(BaseModel):
    prompt_tokens: Annotated[int, Field(ge=0)]
    completion_tokens: Annotated[int, Field(ge=0)]
    total_tokens: Annotated[int, Field(ge=0)]


class ChatCompletion(BaseModel):
    id: Annotated[str, Field(description="The turn's id, for `POST /v1/feedback`")]
    object: Literal["chat.completion"]
    created: int
    model: str
    system_fingerprint: Annotated[str, Field(description="The version that answered")]
    choices: Annotated[list[ChatChoice], Field(min_length=1)]
    usage: Usage


class Delta(BaseModel):
    role: Literal["assistant"] | None = None
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[Fact] | None = None


class ChunkChoice(BaseModel):
    index: Annotated[int, Field(ge=0)]
    delta: Delta
    logprobs: Logprobs | None
    finish_reason: Literal["stop", "length", "tool_calls"] | None


class ChatChunk(BaseModel):
    """One event of a stream; the last one but `[DONE]` has the usage, where that was asked for, and no choices."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChunkChoice]
    usage: Usage | None = None
