"""Tools, calls and schemas in OpenAI's shapes: what is taken, how much of it, and how it is answered."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from instar.answers import CallPart
from instar.flow.constraint import ToolChoice
from instar.flow.serve_turn import Piece

MAX_TOOLS = 128
MAX_SCHEMA_CHARS = 100_000
MAX_TOOLS_CHARS = 500_000
_NAME = r"^[a-zA-Z0-9_.-]{1,64}$"


class Strict(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True, allow_inf_nan=False)


class Function(Strict):
    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False)

    name: Annotated[str, Field(pattern=_NAME)]
    description: Annotated[str, Field(max_length=100_000)] | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None

    @field_validator("parameters")
    @classmethod
    def _describe_an_object(cls, value: dict[str, Any] | None) -> dict[str, Any] | None:
        if value is not None and value.get("type", "object") != "object":
            raise ValueError('the parameters of a function are an object: write "type": "object"')
        return _small(value)


class FunctionTool(Strict):
    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False)

    type: Literal["function"]
    function: Function


class NamedFunction(Strict):
    name: str


class NamedChoice(Strict):
    type: Literal["function"]
    function: NamedFunction


class CalledFunction(Strict):
    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False)

    name: Annotated[str, Field(min_length=1, max_length=200)]
    arguments: str | dict[str, Any] | None = None


class ToolCall(Strict):
    """A call in the history."""

    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False)

    id: Annotated[str, Field(max_length=200)] | None = None
    function: CalledFunction


class JsonSchema(Strict):
    name: Annotated[str, Field(pattern=_NAME)]
    schema_: Annotated[dict[str, Any], Field(alias="schema")]
    strict: bool | None = None

    @field_validator("schema_")
    @classmethod
    def _is_small(cls, value: dict[str, Any]) -> dict[str, Any] | None:
        return _small(value)


class ResponseFormat(Strict):
    type: Literal["text", "json_object", "json_schema"] = "text"
    json_schema: JsonSchema | None = None

    @model_validator(mode="after")
    def _has_its_schema(self) -> ResponseFormat:
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise ValueError("json_schema goes together with type json_schema: send both or neither")
        return self

    def schema_of_answer(self) -> dict[str, Any] | None:
        """What the answer must obey. Not strict: keywords that cannot be enforced are left to the model."""
        if self.type == "json_object":
            return {"type": "object"}
        if self.json_schema is None:
            return None
        return {**self.json_schema.schema_, "x-guidance": {"lenient": not self.json_schema.strict}}


Tools = Annotated[list[FunctionTool], Field(max_length=MAX_TOOLS)]
Choice = Literal["auto", "none", "required"] | NamedChoice


def _small(value: dict[str, Any] | None) -> dict[str, Any] | None:
    if value is not None and len(json.dumps(value)) > MAX_SCHEMA_CHARS:
        raise ValueError(f"a schema has at most {MAX_SCHEMA_CHARS} characters")
    return value


def check_tools(tools: list[FunctionTool] | None, choice: Choice | None) -> None:
    """What one tool cannot know. Raises ValueError."""
    names = [tool.function.name for tool in tools or ()]
    if len(set(names)) < len(names):
        raise ValueError("two tools have the same name")
    if sum(len(tool.model_dump_json()) for tool in tools or ()) > MAX_TOOLS_CHARS:
        raise ValueError(f"all tools together have at most {MAX_TOOLS_CHARS} characters")
    if choice == "required" and not names:
        raise ValueError("tool_choice required needs tools")
    if isinstance(choice, NamedChoice) and choice.function.name not in names:
        raise ValueError(f"tool_choice names {choice.function.name[:64]!r}, which is not among the tools")


def tools_of(tools: list[FunctionTool] | None) -> list[dict[str, Any]] | None:
    """As the client sent them; None for none."""
    return [tool.model_dump(exclude_unset=True) for tool in tools] if tools else None


def choice_of(choice: Choice | None) -> ToolChoice:
    if isinstance(choice, NamedChoice):
        return {"name": choice.function.name}
    return choice or "auto"


def deltas(piece: Piece) -> list[dict[str, Any]]:
    """What a piece adds to a message, in OpenAI's order."""
    found: list[dict[str, Any]] = [{"reasoning_content": piece.reasoning}] if piece.reasoning else []
    found += [{"content": piece.text}] if piece.text else []
    return found + [{"tool_calls": [call_delta(part)]} for part in piece.calls]


def call_delta(part: CallPart) -> dict[str, Any]:
    """A piece of a call: id, type and name with the first one, arguments with all."""
    delta: dict[str, Any] = {"index": part.index, "function": {"arguments": part.arguments}}
    if part.name is not None:
        delta |= {"id": part.id, "type": "function"}
        delta["function"] = {"name": part.name, "arguments": part.arguments}
    return delta
