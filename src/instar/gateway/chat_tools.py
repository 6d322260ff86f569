"""Tools, calls and schemas in the shapes of OpenAI's chat completions."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from instar.flow.constraint import ToolChoice
from instar.gateway.fields import (
    ANY_OBJECT,
    Either,
    JsonSchema,
    Kept,
    Loose,
    Name,
    Parameters,
    answer_schema,
    check_choice,
)


class Function(Kept):
    name: Name
    description: str | None = None
    parameters: Parameters | None = None
    strict: bool | None = None


class FunctionTool(Kept):
    type: Literal["function"]
    function: Function


class NamedFunction(Loose):
    name: str


class NamedChoice(Loose):
    type: Literal["function"]
    function: NamedFunction


class CalledFunction(Kept):
    name: Annotated[str, Field(min_length=1, max_length=200)]
    arguments: Either[str, dict[str, Any]] | None = None


class ToolCall(Kept):
    """A call in the history."""

    id: Annotated[str, Field(max_length=200)] | None = None
    function: CalledFunction


class SchemaFormat(Loose):
    name: Name
    schema_: Annotated[JsonSchema, Field(alias="schema")]
    strict: bool | None = None


class ResponseFormat(Loose):
    type: Literal["text", "json_object", "json_schema"] = "text"
    json_schema: SchemaFormat | None = None

    @model_validator(mode="after")
    def _has_its_schema(self) -> Self:
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise ValueError("json_schema goes together with type json_schema: send both or neither")
        return self

    def schema_of_answer(self) -> dict[str, Any] | None:
        """What the answer must obey."""
        if self.type == "json_object":
            return ANY_OBJECT
        wanted = self.json_schema
        return None if wanted is None else answer_schema(wanted.schema_, strict=wanted.strict)


Choice = Either[Literal["auto", "none", "required"], NamedChoice]


def check_tools(tools: list[FunctionTool] | None, choice: Choice | None) -> None:
    """Raises ValueError for tools and a choice that do not fit together."""
    named = choice.function.name if isinstance(choice, NamedChoice) else None
    names = [tool.function.name for tool in tools or ()]
    check_choice(names, must_call=choice == "required", named=named)


def tools_of(tools: list[FunctionTool] | None) -> list[dict[str, Any]] | None:
    """As the client sent them; None for none."""
    return [tool.model_dump(exclude_unset=True) for tool in tools] if tools else None


def choice_of(choice: Choice | None) -> ToolChoice:
    if isinstance(choice, NamedChoice):
        return {"name": choice.function.name}
    return choice or "auto"
