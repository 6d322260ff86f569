"""What clients may send to OpenAI's older routes and to ours.

Unknown fields are ignored, as OpenAI's servers do; wrong ones are refused by name.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from instar.content import RAW
from instar.gateway.chat_tools import Choice, FunctionTool, ResponseFormat, ToolCall, check_tools
from instar.gateway.fields import (
    MAX_MESSAGES,
    MAX_METADATA,
    MAX_N,
    MAX_TOOLS,
    Either,
    Exact,
    Kept,
    Loose,
    Metadata,
    ModelName,
    Parts,
    StopString,
    Temperature,
    TextOr,
    TokenLimit,
    ToolsOf,
    TopP,
)
from instar.records import Message


class ChatMessage(Kept):
    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: TextOr[Parts] | None = None
    reasoning_content: str | None = None
    tool_calls: Annotated[list[ToolCall], Field(max_length=MAX_TOOLS)] | None = None

    @model_validator(mode="after")
    def _has_something(self) -> ChatMessage:
        if self.content is None and self.role != "assistant":
            raise ValueError(f"a {self.role} message needs content")
        return self


class StreamOptions(Loose):
    include_usage: bool = False


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
    logit_bias: Annotated[dict[str, float], Field(max_length=MAX_METADATA)] | None = None
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
    tools: ToolsOf[FunctionTool] | None = None
    tool_choice: Choice | None = None
    parallel_tool_calls: bool | None = True
    response_format: ResponseFormat | None = None
    functions: list[Any] | None = None
    function_call: Any = None

    @model_validator(mode="after")
    def _has_no_functions(self) -> Self:
        """Their older shape: an answer without them would look as if the model had not wanted to call any."""
        if self.functions:
            raise ValueError("functions are not supported; send them as tools")
        if self.function_call not in (None, "none", "auto"):
            raise ValueError("function_call is not supported; send tools and tool_choice")
        return self

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        check_tools(self.tools, self.tool_choice)
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs needs logprobs: true")
        return self

    def chat_messages(self) -> list[Message]:
        """The messages as the client sent them, without fields that it left out."""
        return [m.model_dump(exclude_unset=True, exclude={RAW}) for m in self.messages]


class FeedbackBody(Exact):
    """`POST /v1/feedback`: what a person thinks of one answer."""

    turn: Annotated[str, Field(min_length=1, max_length=100)]
    score: Literal[1, 0, -1] | None = None
    comment: Annotated[str, Field(max_length=20_000)] | None = None
    correction: Annotated[str, Field(max_length=100_000)] | None = None

    @model_validator(mode="after")
    def _says_something(self) -> FeedbackBody:
        if self.score is None and self.correction is None and self.comment is None:
            raise ValueError("say at least one of score (1, 0, -1), comment, correction")
        return self


class RollbackBody(Exact):
    """`POST /v1/versions/rollback`: to the parent, or to the version named."""

    to: Annotated[str, Field(min_length=1, max_length=100)] | None = None
    reason: Annotated[str, Field(min_length=1, max_length=1000)] | None = None
