"""What a client sends to `POST /v1/messages`, and the chat that it means."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from instar.flow.constraint import ToolChoice
from instar.gateway.fields import (
    MAX_MESSAGES,
    MAX_PARTS,
    JsonSchema,
    Loose,
    Metadata,
    ModelName,
    Name,
    Parameters,
    Parts,
    StopString,
    Temperature,
    TextOr,
    TokenLimit,
    ToolsOf,
    TopP,
    answer_schema,
    check_choice,
)
from instar.gateway.parts import (
    AnswerParts,
    arguments_of,
    function_call,
    function_tool,
    text_from,
    text_parts,
)
from instar.records import Message

BlockKind = Literal["text", "thinking", "redacted_thinking", "tool_use", "tool_result"]


class Block(Loose):
    """One piece of a message. What it needs depends on its type."""

    type: BlockKind
    text: str | None = None
    thinking: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: TextOr[Parts] | None = None
    is_error: bool | None = False

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        needed = {
            "text": ("text",),
            "thinking": ("thinking",),
            "tool_use": ("id", "name", "input"),
            "tool_result": ("tool_use_id",),
        }.get(self.type, ())
        missing = [name for name in needed if getattr(self, name) is None]
        if missing:
            raise ValueError(f"a block of type {self.type!r} needs {', '.join(missing)}")
        self.result()
        return self

    def result(self) -> str:
        """What a tool returned. A failure that does not call itself an error is called one: chats have no flag."""
        text = text_from(self.content or "", ("text",))
        if self.is_error and not text.lower().startswith("error"):
            return f"Error: {text}" if text else "Error"
        return text


class MessageIn(Loose):
    role: Literal["user", "assistant", "system"]
    content: TextOr[Annotated[list[Block], Field(max_length=MAX_PARTS)]]

    @model_validator(mode="after")
    def _blocks_fit_the_role(self) -> Self:
        allowed = {
            "user": {"text", "tool_result"},
            "assistant": {"text", "thinking", "redacted_thinking", "tool_use"},
            "system": {"text"},
        }[self.role]
        for block in self.blocks():
            if block.type not in allowed:
                raise ValueError(
                    f"a block of type {block.type!r} has no place in a message of the {self.role}"
                )
        return self

    def blocks(self) -> list[Block]:
        return [Block(type="text", text=self.content)] if isinstance(self.content, str) else self.content


class Tool(Loose):
    type: Literal["custom"] | None = None
    name: Name
    description: str | None = None
    input_schema: Parameters
    strict: bool | None = None


class Choice(Loose):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = False

    @model_validator(mode="after")
    def _names_its_tool(self) -> Self:
        if self.type == "tool" and not self.name:
            raise ValueError("tool_choice of type 'tool' needs name")
        return self


class JsonFormat(Loose):
    type: Literal["json_schema"]
    schema_: Annotated[JsonSchema, Field(alias="schema")]


class OutputConfig(Loose):
    format: JsonFormat | None = None


class Thinking(Loose):
    type: str


class CountBody(Loose):
    """`POST /v1/messages/count_tokens`: what makes the prompt."""

    model: ModelName = "instar"
    messages: Annotated[list[MessageIn], Field(min_length=1, max_length=MAX_MESSAGES)]
    system: TextOr[Parts] | None = None
    tools: ToolsOf[Tool] | None = None
    tool_choice: Choice | None = None
    output_config: OutputConfig | None = None
    metadata: Metadata | None = None

    @model_validator(mode="after")
    def _can_be_answered(self) -> Self:
        text_from(self.system or "", ("text",))
        if self.messages[-1].role == "assistant":
            raise ValueError("the last message must be the user's: an answer cannot be begun for the model")
        return self

    @model_validator(mode="after")
    def _tools_fit(self) -> Self:
        choice = self.tool_choice or Choice(type="auto")
        names = [tool.name for tool in self.tools or []]
        named = choice.name if choice.type == "tool" else None
        check_choice(names, must_call=choice.type == "any", named=named)
        return self

    def chat_messages(self) -> list[Message]:
        system = text_from(self.system or "", ("text",))
        chat: list[Message] = [{"role": "system", "content": system}] if system else []
        for message in self.messages:
            chat += _chat(message)
        return chat

    def chat_tools(self) -> list[dict[str, Any]] | None:
        return [
            function_tool(t.name, t.description, t.input_schema, t.strict) for t in self.tools or []
        ] or None

    def chat_tool_choice(self) -> ToolChoice:
        match self.tool_choice:
            case Choice(type="any"):
                return "required"
            case Choice(type="none"):
                return "none"
            case Choice(type="tool", name=str(name)):
                return {"name": name}
        return "auto"

    def parallel_tool_calls(self) -> bool:
        return not (self.tool_choice and self.tool_choice.disable_parallel_tool_use)

    def response_schema(self) -> dict[str, Any] | None:
        wanted = self.output_config.format if self.output_config else None
        return answer_schema(wanted.schema_, strict=True) if wanted else None


class MessagesBody(CountBody):
    """`POST /v1/messages`."""

    max_tokens: TokenLimit
    stop_sequences: Annotated[list[StopString], Field(max_length=16)] | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: int | None = None
    stream: bool | None = False
    thinking: Thinking | None = None

    @model_validator(mode="after")
    def _only_what_works(self) -> Self:
        """Refuse what would silently not be done."""
        if self.top_k is not None and self.top_k > 0:
            raise ValueError("top_k is not supported; use temperature and top_p")
        return self

    @property
    def shows_thinking(self) -> bool:
        return self.thinking is None or self.thinking.type != "disabled"


def _chat(message: MessageIn) -> list[Message]:
    """One message as chat messages: tool results stand apart, before what the user says to them."""
    blocks = message.blocks()
    if message.role == "assistant":
        return [_answer(blocks)]
    results: list[Message] = [
        {"role": "tool", "tool_call_id": block.tool_use_id, "content": block.result()}
        for block in blocks
        if block.type == "tool_result"
    ]
    said = [block.text or "" for block in blocks if block.type == "text"]
    if results and not said:
        return results
    content = text_parts(said) if message.role == "user" and len(said) > 1 else "\n".join(said)
    return [*results, {"role": message.role, "content": content}]


def _answer(blocks: Sequence[Block]) -> Message:
    step = AnswerParts()
    for block in blocks:
        match block.type:
            case "text":
                step.say(block.text or "")
            case "thinking":
                step.think(block.thinking or "")
            case "tool_use":
                call = function_call(block.id or "", block.name or "", arguments_of(block.input or {}))
                step.call(call)
    return step.take()
