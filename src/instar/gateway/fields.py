"""The types of fields that clients send, whichever API it is, and how much of each is taken."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag

MAX_N = 8
MAX_MESSAGES = 10_000
MAX_PARTS = 1_000
MAX_TOOLS = 128
MAX_TOOLS_CHARS = 512_000
"""Of JSON, all tools together: they are rendered into the prompt."""
MAX_SCHEMA_CHARS = 64_000
"""Of JSON, which may be compiled into a grammar."""
MAX_NAME_CHARS = 128
MAX_METADATA = 64


class Loose(BaseModel):
    """Takes unknown fields and drops them. Numbers must be numbers: "3" is a mistake worth telling."""

    model_config = ConfigDict(extra="ignore", strict=True, allow_inf_nan=False)


class Kept(Loose):
    """Takes unknown fields and keeps them: they are shown to the model."""

    model_config = ConfigDict(extra="allow")


class Exact(Loose):
    """Refuses unknown fields, for what is our own API."""

    model_config = ConfigDict(extra="forbid")


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


def _describe_an_object(schema: dict[str, Any]) -> dict[str, Any]:
    if schema.get("type", "object") != "object":
        raise ValueError('the parameters of a function are an object: write "type": "object"')
    return schema


JsonSchema = Annotated[dict[str, Any], _at_most(MAX_SCHEMA_CHARS)]
Parameters = Annotated[JsonSchema, AfterValidator(_describe_an_object)]
Parts = Annotated[list[dict[str, Any]], Field(max_length=MAX_PARTS)]
ToolsOf = Annotated[list[T], Field(max_length=MAX_TOOLS), _at_most(MAX_TOOLS_CHARS)]
Name = Annotated[str, Field(pattern=rf"^[a-zA-Z0-9_.-]{{1,{MAX_NAME_CHARS}}}$")]
ModelName = Annotated[str, Field(max_length=200)]
Metadata = Annotated[dict[str, Any], Field(max_length=MAX_METADATA)]
TokenLimit = Annotated[int, Field(ge=1, le=1_000_000)]
Temperature = Annotated[float, Field(ge=0, le=2)]
TopP = Annotated[float, Field(ge=0, le=1)]
StopString = Annotated[str, Field(max_length=500)]


def check_choice(names: Sequence[str], *, must_call: bool, named: str | None) -> None:
    """What one tool cannot know: `must_call` says that some tool, `named` which one has to be called. ValueError."""
    if len(set(names)) < len(names):
        raise ValueError("two tools have the same name")
    if must_call and not names:
        raise ValueError("tool_choice demands a call, but there are no tools")
    if named is not None and named not in names:
        raise ValueError(f"tool_choice names {named[:80]!r}, which is not among the tools")


def answer_schema(schema: dict[str, Any], *, strict: bool | None) -> dict[str, Any]:
    """A schema for the whole answer. Where it is not strict, what cannot be enforced is left to the model."""
    return {**schema, "x-guidance": {"lenient": not strict}}


ANY_OBJECT: dict[str, Any] = {"type": "object"}
"""The schema of an answer that may be any JSON object."""
