"""What `POST /v1/responses` answers, for the OpenAPI document. Tests hold real answers against these."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, RootModel

from instar.gateway.response_models import ContentLogprob

Fact = dict[str, Any]
ItemStatus = Literal["in_progress", "completed", "incomplete"]


class OutputText(BaseModel):
    type: Literal["output_text"]
    text: str
    annotations: list[Fact]
    logprobs: list[ContentLogprob]


class ReasoningText(BaseModel):
    type: Literal["reasoning_text"]
    text: str


class MessageItem(BaseModel):
    type: Literal["message"]
    id: str
    status: ItemStatus
    role: Literal["assistant"]
    content: list[OutputText]


class ReasoningItem(BaseModel):
    type: Literal["reasoning"]
    id: str
    status: ItemStatus
    summary: list[Fact]
    content: list[ReasoningText]


class CallItem(BaseModel):
    type: Literal["function_call"]
    id: str
    call_id: str
    name: str
    arguments: Annotated[str, Field(description="JSON text")]
    status: ItemStatus


OutputItem = Annotated[MessageItem | ReasoningItem | CallItem, Field(discriminator="type")]


class ResponseError(BaseModel):
    code: str
    message: str


class Incomplete(BaseModel):
    reason: Literal["max_output_tokens"]


class ResponseUsage(BaseModel):
    input_tokens: Annotated[int, Field(ge=0)]
    input_tokens_details: dict[str, int]
    output_tokens: Annotated[int, Field(ge=0)]
    output_tokens_details: dict[str, int]
    total_tokens: Annotated[int, Field(ge=0)]


class ResponseObject(BaseModel):
    id: Annotated[str, Field(description="The turn's id, for `POST /v1/feedback` and `previous_response_id`")]
    object: Literal["response"]
    created_at: int
    status: Literal["in_progress", "completed", "incomplete", "failed", "cancelled"]
    error: ResponseError | None
    incomplete_details: Incomplete | None
    instructions: str | None
    max_output_tokens: int | None
    metadata: Fact
    model: str
    output: list[OutputItem]
    parallel_tool_calls: bool
    previous_response_id: str | None
    store: bool
    temperature: float
    text: Fact
    tool_choice: str | Fact
    tools: list[Fact]
    top_p: float
    truncation: Literal["disabled"]
    usage: ResponseUsage | None


class _Event(BaseModel):
    sequence_number: Annotated[int, Field(ge=0)]


class LifecycleEvent(_Event):
    type: Literal[
        "response.created",
        "response.in_progress",
        "response.completed",
        "response.incomplete",
        "response.failed",
    ]
    response: ResponseObject


class ItemEvent(_Event):
    type: Literal["response.output_item.added", "response.output_item.done"]
    output_index: int
    item: OutputItem


class _ItemsEvent(_Event):
    item_id: str
    output_index: int


class _PartsEvent(_ItemsEvent):
    content_index: int


class PartEvent(_PartsEvent):
    type: Literal["response.content_part.added", "response.content_part.done"]
    part: Annotated[OutputText | ReasoningText, Field(discriminator="type")]


class OutputTextDelta(_PartsEvent):
    type: Literal["response.output_text.delta"]
    delta: str
    logprobs: list[ContentLogprob]


class OutputTextDone(_PartsEvent):
    type: Literal["response.output_text.done"]
    text: str
    logprobs: list[ContentLogprob]


class ReasoningDelta(_PartsEvent):
    type: Literal["response.reasoning_text.delta"]
    delta: str


class ReasoningDone(_PartsEvent):
    type: Literal["response.reasoning_text.done"]
    text: str


class ArgumentsDelta(_ItemsEvent):
    type: Literal["response.function_call_arguments.delta"]
    delta: str


class ArgumentsDone(_ItemsEvent):
    type: Literal["response.function_call_arguments.done"]
    name: str
    arguments: str


class ResponseEvent(
    RootModel[
        Annotated[
            LifecycleEvent
            | ItemEvent
            | PartEvent
            | OutputTextDelta
            | OutputTextDone
            | ReasoningDelta
            | ReasoningDone
            | ArgumentsDelta
            | ArgumentsDone,
            Field(discriminator="type"),
        ]
    ]
):
    """One event of a stream. The first is `response.created`, the last the whole response, however it ended."""
