"""What clients may send. Unknown fields are ignored, as OpenAI's servers do; wrong ones are refused by name."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    model_validator,
)

from instar.chat_format import RAW
from instar.records import Message

MAX_N = 8
MAX_MESSAGES = 10_000
MAX_PARTS = 1_000
MAX_TOOLS = 128
MAX_TOOLS_CHARS = 512_000
"""Of JSON, all tools together: they are rendered into the prompt."""
MAX_SCHEMA_CHARS = 64_000
"""Of JSON, which may be compiled into a grammar."""

S = TypeVar("S")
T = TypeVar("T")
Either = Annotated[
    Annotated[S, Tag("[text]")] | Annotated[T, Tag("[other]")],
    Discriminator(lambda value: "[text]" if isinstance(value, str) else "[other]"),
]
"""A text or something else. What is wrong with the one is told of that, not of its not being the other."""
TextOr = Either[str, T]


def _at_most(chars: int) -> BeforeValidator:
    """Refuses what takes more of JSON."""

    def check(value: Any) -> Any:
        if value and len(json.dumps(value)) > chars:
            raise ValueError(f"takes more than {chars} characters of JSON")
        return value

    return BeforeValidator(check)


Parts = Annotated[list[dict[str, Any]], Field(max_length=MAX_PARTS)]
ToolsOf = Annotated[list[T], Field(max_length=MAX_TOOLS), _at_most(MAX_TOOLS_CHARS)]
JsonSchema = Annotated[dict[str, Any], _at_most(MAX_SCHEMA_CHARS)]
ToolName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,128}$")]
ModelName = Annotated[str, Field(max_length=200)]
Metadata = Annotated[dict[str, Any], Field(max_length=64)]
TokenLimit = Annotated[int, Field(ge=1, le=1_000_000)]
Temperature = Annotated[float, Field(ge=0, le=2)]
TopP = Annotated[float, Field(gt=0, le=1)]
StopString = Annotated[str, Field(max_length=500)]


def check_names(names: Sequence[str]) -> None:
    """Raises ValueError for tools that cannot be told apart."""
    if len(set(names)) < len(names):
        raise ValueError("two tools have the same name")


class Loose(BaseModel):
    """Takes unknown fields and drops them. Numbers must be numbers: "3" is a mistake worth telling."""

    model_config = ConfigDict(extra="ignore", strict=True, allow_inf_nan=False)


class ChatMessage(Loose):
    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False)

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: TextOr[Parts] | None = None

    @model_validator(mode="after")
    def _has_something(self) -> ChatMessage:
        if self.content is None and self.role != "assistant":
            raise ValueError(f"a {self.role} message needs content")
        return self


class StreamOptions(Loose):
    include_usage: bool = False


class ResponseFormat(Loose):
    type: str = "text"


class CompletionFields(Loose):
    """What OpenAI's chat completions and its older completions share."""

    model: ModelName = "instar"
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    max_tokens: TokenLimit | None = None
    stop: Either[StopString, Annotated[list[StopString], Field(max_length=4)]] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    n: Annotated[int, Field(ge=1, le=MAX_N)] | None = 1
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: Annotated[dict[str, float], Field(max_length=64)] | None = None
    metadata: Metadata | None = None
    prompt_cache_key: str | None = None
    session_id: str | None = None
    litellm_session_id: str | None = None
    user: str | None = None

    @model_validator(mode="after")
    def _as_sampled(self) -> Self:
        """Refuse what would silently not be done."""
        if self.frequency_penalty or self.presence_penalty:
            raise ValueError("frequency_penalty and presence_penalty are not supported; leave them out")
        if self.logit_bias:
            raise ValueError("logit_bias is not supported; leave it out")
        return self

    def session_fields(self) -> dict[str, Any]:
        """What may name the session."""
        return self.model_dump(
            include={"prompt_cache_key", "session_id", "litellm_session_id", "metadata"}, exclude_none=True
        )

    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())


class ChatBody(CompletionFields):
    """`POST /v1/chat/completions`."""

    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=MAX_MESSAGES)]
    max_completion_tokens: TokenLimit | None = None
    logprobs: bool | None = False
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    tools: ToolsOf[dict[str, Any]] | None = None
    tool_choice: Any = None
    response_format: Annotated[ResponseFormat, _at_most(MAX_SCHEMA_CHARS)] | None = None

    @model_validator(mode="after")
    def _only_what_works(self) -> Self:
        """Refuse what would silently not be done."""
        if self.response_format is not None and self.response_format.type != "text":
            raise ValueError("response_format other than text is not supported yet")
        if self.tools and self.tool_choice not in (None, "auto", "none"):
            raise ValueError("tool_choice other than auto or none is not supported yet")
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs needs logprobs: true")
        return self

    def chat_messages(self) -> list[Message]:
        """The messages as the client sent them, without fields that it left out."""
        return [m.model_dump(exclude_unset=True, exclude={RAW}) for m in self.messages]


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
