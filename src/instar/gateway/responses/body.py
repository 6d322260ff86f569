"""What a client sends to `POST /v1/responses`, and the chat that it means."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from instar.flow.constraint import ToolChoice
from instar.gateway.fields import (
    ANY_OBJECT,
    MAX_MESSAGES,
    Either,
    JsonSchema,
    Loose,
    Metadata,
    ModelName,
    Name,
    Parameters,
    Parts,
    Temperature,
    TextOr,
    TokenLimit,
    ToolsOf,
    TopP,
    answer_schema,
    check_choice,
)
from instar.gateway.parts import AnswerParts, function_call, function_tool, text_from
from instar.records import Message

ItemKind = Literal["message", "function_call", "function_call_output", "reasoning"]
TEXT_PARTS = ("input_text", "output_text", "text", "refusal")
LOGPROBS = "message.output_text.logprobs"
"""What `include` may ask for."""
THOUGHT_PARTS = ("reasoning_text", "summary_text")


class Item(Loose):
    """One piece of a conversation. What it needs depends on its type."""

    type: ItemKind = "message"
    role: Literal["user", "assistant", "system", "developer"] | None = None
    content: TextOr[Parts] | None = None
    summary: Parts | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: TextOr[Parts] | None = None

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        needed = {
            "message": ("role", "content"),
            "function_call": ("call_id", "name", "arguments"),
            "function_call_output": ("call_id", "output"),
            "reasoning": (),
        }[self.type]
        missing = [name for name in needed if getattr(self, name) is None]
        if missing:
            raise ValueError(f"an item of type {self.type!r} needs {', '.join(missing)}")
        self.text()
        return self

    def text(self) -> str:
        """What it says. Raises ValueError for parts that are no text."""
        match self.type:
            case "message":
                return text_from(self.content or "", TEXT_PARTS)
            case "function_call_output":
                return text_from(self.output or "", TEXT_PARTS)
            case "reasoning":
                return text_from(self.content or self.summary or "", THOUGHT_PARTS)
        return ""


class ResponsesTool(Loose):
    type: Literal["function"]
    name: Name
    description: str | None = None
    parameters: Parameters | None = None
    strict: bool | None = None


class NamedTool(Loose):
    type: Literal["function"]
    name: str


class TextFormat(Loose):
    type: Literal["text", "json_object", "json_schema"] = "text"
    name: str | None = None
    description: str | None = None
    schema_: Annotated[JsonSchema | None, Field(alias="schema")] = None
    strict: bool | None = None

    @model_validator(mode="after")
    def _schema_with_its_type(self) -> Self:
        if self.type == "json_schema" and (self.schema_ is None or not self.name):
            raise ValueError("a format of type 'json_schema' needs name and schema")
        return self


class TextConfig(Loose):
    format: TextFormat | None = None


class ResponsesBody(Loose):
    """`POST /v1/responses`."""

    model: ModelName = "instar"
    input: TextOr[Annotated[list[Item], Field(min_length=1, max_length=MAX_MESSAGES)]]
    instructions: str | None = None
    previous_response_id: Annotated[str, Field(max_length=100)] | None = None
    tools: ToolsOf[ResponsesTool] | None = None
    tool_choice: Either[Literal["auto", "none", "required"], NamedTool] | None = None
    parallel_tool_calls: bool | None = True
    max_output_tokens: TokenLimit | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    text: TextConfig | None = None
    stream: bool | None = False
    store: bool | None = True
    metadata: Metadata | None = None
    prompt_cache_key: str | None = None
    user: str | None = None
    background: bool | None = False
    conversation: Any = None
    prompt: Any = None
    include: list[str] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None

    @model_validator(mode="after")
    def _only_what_works(self) -> Self:
        """Refuse what would silently not be done."""
        if self.background:
            raise ValueError("background is not supported; wait for the answer, or stream it")
        if self.conversation is not None:
            raise ValueError("conversation is not supported; use previous_response_id, or send the history")
        if self.prompt is not None:
            raise ValueError("prompt (a stored template) is not supported; send instructions and input")
        if self.top_logprobs and not self.wants_logprobs:
            raise ValueError(f"top_logprobs needs include: [{LOGPROBS!r}]")
        return self

    @property
    def wants_logprobs(self) -> bool:
        return LOGPROBS in (self.include or [])

    @model_validator(mode="after")
    def _tools_fit(self) -> Self:
        named = self.tool_choice.name if isinstance(self.tool_choice, NamedTool) else None
        names = [tool.name for tool in self.tools or []]
        check_choice(names, must_call=self.tool_choice == "required", named=named)
        return self

    def new_messages(self) -> list[Message]:
        """What this request adds to the conversation, without the instructions."""
        if isinstance(self.input, str):
            return [{"role": "user", "content": self.input}]
        return messages_of(self.input)

    def chat_tools(self) -> list[dict[str, Any]] | None:
        return [
            function_tool(t.name, t.description, t.parameters, t.strict) for t in self.tools or []
        ] or None

    def chat_tool_choice(self) -> ToolChoice:
        if isinstance(self.tool_choice, NamedTool):
            return {"name": self.tool_choice.name}
        return self.tool_choice or "auto"

    def response_schema(self) -> dict[str, Any] | None:
        """What the answer must obey."""
        wanted = self.text.format if self.text and self.text.format else TextFormat()
        if wanted.type == "json_object":
            return ANY_OBJECT
        return None if wanted.schema_ is None else answer_schema(wanted.schema_, strict=wanted.strict)


def messages_of(items: Sequence[Item]) -> list[Message]:
    """Items as chat messages. What one model step said is one message, as it was when we recorded it:

    thought, text and calls that follow each other are one step, until a thought or text begins the next one.
    """
    messages: list[Message] = []
    step = AnswerParts()
    for item in items:
        is_step = item.type in {"function_call", "reasoning"} or item.role == "assistant"
        if step and (not is_step or _begins_anew(item, step)):
            messages.append(step.take())
        match item.type:
            case "reasoning":
                step.think(item.text())
            case "function_call":
                step.call(function_call(item.call_id or "", item.name or "", item.arguments or ""))
            case "function_call_output":
                output = {"role": "tool", "tool_call_id": item.call_id, "content": item.text()}
                messages.append(output)
            case _ if is_step:
                step.say(item.text())
            case _:
                messages.append({"role": item.role, "content": item.text()})
    if step:
        messages.append(step.take())
    return messages


def _begins_anew(item: Item, step: AnswerParts) -> bool:
    if item.type == "reasoning":
        return step.has_spoken
    return item.type == "message" and step.ends_in_text
