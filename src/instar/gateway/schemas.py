"""What clients may send. Unknown fields are ignored, as OpenAI's servers do; wrong ones are refused by name."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from instar.gateway.tool_shapes import MAX_TOOLS, Choice, ResponseFormat, ToolCall, Tools, check_tools
from instar.records import Message

MAX_N = 8
MAX_MESSAGES = 10_000


class Loose(BaseModel):
    """Takes unknown fields and drops them. Numbers must be numbers: "3" is a mistake worth telling."""

    model_config = ConfigDict(extra="ignore", strict=True, allow_inf_nan=False)


class ChatMessage(Loose):
    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False)

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[dict[str, Any]] | None = None
    reasoning_content: str | None = None
    tool_calls: Annotated[list[ToolCall], Field(max_length=MAX_TOOLS)] | None = None

    @model_validator(mode="after")
    def _has_something(self) -> ChatMessage:
        if self.content is None and self.role != "assistant":
            raise ValueError(f"a {self.role} message needs content")
        return self


class StreamOptions(Loose):
    include_usage: bool = False


class ChatBody(Loose):
    """`POST /v1/chat/completions`."""

    model: Annotated[str, Field(max_length=200)] = "instar"
    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=MAX_MESSAGES)]
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    max_tokens: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    stop: str | Annotated[list[str], Field(max_length=4)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    n: Annotated[int, Field(ge=1, le=MAX_N)] | None = 1
    logprobs: bool | None = False
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    tools: Tools | None = None
    tool_choice: Choice | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    metadata: dict[str, Any] | None = None
    prompt_cache_key: str | None = None
    session_id: str | None = None

    @field_validator("stop")
    @classmethod
    def _short_stops(cls, value: str | list[str] | None) -> str | list[str] | None:
        if any(len(s) > 500 for s in ([value] if isinstance(value, str) else value or [])):
            raise ValueError("a stop string has at most 500 characters")
        return value

    @model_validator(mode="after")
    def _only_what_works(self) -> ChatBody:
        """Refuse what would silently not be done."""
        if self.frequency_penalty or self.presence_penalty:
            raise ValueError("frequency_penalty and presence_penalty are not supported; leave them out")
        if self.logit_bias:
            raise ValueError("logit_bias is not supported; leave it out")
        check_tools(self.tools, self.tool_choice)
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs needs logprobs: true")
        return self

    def chat_messages(self) -> list[Message]:
        """The messages as the client sent them, without fields that it left out."""
        return [m.model_dump(exclude_unset=True) for m in self.messages]

    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())


class FeedbackBody(Loose):
    """`POST /v1/feedback`: what a person thinks of one answer."""

    model_config = ConfigDict(extra="forbid", strict=True)

    turn: Annotated[str, Field(min_length=1, max_length=100)]
    score: Literal[1, 0, -1] | None = None
    comment: Annotated[str, Field(max_length=20_000)] | None = None
    correction: Annotated[str, Field(max_length=100_000)] | None = None

    @model_validator(mode="after")
    def _says_something(self) -> FeedbackBody:
        if self.score is None and self.correction is None and self.comment is None:
            raise ValueError("say at least one of score (1, 0, -1), comment, correction")
        return self


class RollbackBody(Loose):
    """`POST /v1/versions/rollback`: to the parent, or to the version named."""

    model_config = ConfigDict(extra="forbid", strict=True)

    to: Annotated[str, Field(min_length=1, max_length=100)] | None = None
    reason: Annotated[str, Field(min_length=1, max_length=1000)] | None = None
