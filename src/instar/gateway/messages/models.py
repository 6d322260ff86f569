"""What `POST /v1/messages` answers, for the OpenAPI document. Tests hold real answers against these."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, RootModel

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]


class TextBlock(BaseModel):
    type: Literal["text"]
    text: str


class ThinkingBlock(BaseModel):
    type: Literal["thinking"]
    thinking: str
    signature: str


class ToolUseBlock(BaseModel):
    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]


ContentBlock = Annotated[TextBlock | ThinkingBlock | ToolUseBlock, Field(discriminator="type")]


class MessageUsage(BaseModel):
    input_tokens: Annotated[int, Field(ge=0)]
    output_tokens: Annotated[int, Field(ge=0)]


class Ending(BaseModel):
    stop_reason: StopReason | None
    stop_sequence: Annotated[str | None, Field(description="The one of the client's that ended the answer")]


class MessageOut(Ending):
    id: Annotated[str, Field(description="The turn's id, for `POST /v1/feedback`")]
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[ContentBlock]
    usage: MessageUsage


class TokenCount(BaseModel):
    input_tokens: Annotated[int, Field(ge=0)]


class MessageStart(BaseModel):
    type: Literal["message_start"]
    message: MessageOut


class BlockStart(BaseModel):
    type: Literal["content_block_start"]
    index: int
    content_block: ContentBlock


class TextDelta(BaseModel):
    type: Literal["text_delta"]
    text: str


class ThinkingDelta(BaseModel):
    type: Literal["thinking_delta"]
    thinking: str


class SignatureDelta(BaseModel):
    type: Literal["signature_delta"]
    signature: str


class InputDelta(BaseModel):
    type: Literal["input_json_delta"]
    partial_json: str


class BlockDelta(BaseModel):
    type: Literal["content_block_delta"]
    index: int
    delta: Annotated[TextDelta | ThinkingDelta | SignatureDelta | InputDelta, Field(discriminator="type")]


class BlockStop(BaseModel):
    type: Literal["content_block_stop"]
    index: int


class MessageDelta(BaseModel):
    type: Literal["message_delta"]
    delta: Ending
    usage: MessageUsage


class MessageStop(BaseModel):
    type: Literal["message_stop"]


class Ping(BaseModel):
    type: Literal["ping"]


class MessageEvent(
    RootModel[
        Annotated[
            MessageStart | BlockStart | BlockDelta | BlockStop | MessageDelta | MessageStop | Ping,
            Field(discriminator="type"),
        ]
    ]
):
    """One event of a stream, which `message_stop` ends."""
