"""Values that are written as bare text: what type each has stands in its schema alone, and so does what it may be.

`typed` and `value_rule` read and enforce the same: whatever the rule allows is read as a value that obeys the schema.
"""

from __future__ import annotations

import json
from typing import Any

from instar.answers.lark import bounded, compact, object_schema, quoted
from instar.answers.parts import Tool, dumps, loads
from instar.errors import RequestError

_REFERENCES = 8
"""How many references are followed from one to the next."""
_LOOKS = 200
"""How many schemas are looked at to tell what one means: they may refer to each other without end."""
_OF_OBJECTS = frozenset({
    "allOf", "anyOf", "oneOf", "not", "if", "enum", "const", "minProperties", "maxProperties", "patternProperties",
    "propertyNames", "dependentRequired", "dependentSchemas", "dependencies",
})  # fmt: skip
"""Keywords about the arguments as a whole, which stand in no single one of them."""
_OF_TEXT = frozenset({"pattern", "minLength", "maxLength", "format", "enum", "const", "not", "if"})

Schema = dict[str, Any]


def arguments_schema(tool: Tool) -> Schema:
    """What the arguments of a call must obey, with a reference at its top followed."""
    schema = object_schema(tool)
    return {**schema, **_resolved(schema, schema)}


def properties_of(tool: Tool) -> dict[str, Any]:
    """Schemas of the arguments that a call may or must have. Raises RequestError where `strict` asks for more."""
    schema = arguments_schema(tool)
    if tool.strict and (left := sorted(_OF_OBJECTS & schema.keys())):
        raise _unenforceable(tool, f"{', '.join(left)} of its parameters")
    named, rest = schema.get("properties"), schema.get("additionalProperties")
    properties = dict(named) if isinstance(named, dict) else {}
    for name in required_of(schema):
        properties.setdefault(name, rest if isinstance(rest, dict) else {})
    return properties


def required_of(schema: Schema) -> list[str]:
    required = schema.get("required")
    return [name for name in required if isinstance(name, str)] if isinstance(required, list) else []


def written(value: Any) -> str:
    """As the model writes it."""
    return value if isinstance(value, str) else dumps(value)


def typed(text: str, schema: Any, root: Schema) -> Any:
    """A value as its schema, which is part of `root`, means it.

    One of those that are listed; else text where it may be a string, else JSON where it is JSON. Templates write
    Python's None and True, and so do models that were trained on them.
    """
    for choice in _choices(schema, root) or ():
        if written(choice) == text:
            return choice
    kinds, bare = _kinds(schema, root) or frozenset(), text.strip()
    if "null" in kinds and bare in ("null", "None"):
        return None
    if "string" in kinds:
        return text
    if "boolean" in kinds and bare in ("True", "False"):
        return bare == "True"
    try:
        value = loads(bare)
        json.dumps(value, allow_nan=False)
    except ValueError:
        return text
    return value


def value_rule(name: str, schema: Any, root: Schema, tool: Tool, closing: str) -> str:
    """A rule in Lark for a value up to and with the text `closing`. `text` is the rule for any text up to there.

    Raises RequestError where the tool is strict and the schema cannot be enforced.
    """
    choices = [written(choice) for choice in _choices(schema, root) or ()]
    if choices and all((choice + closing).find(closing) == len(choice) for choice in choices):
        return f"({' | '.join(quoted(choice + closing) for choice in dict.fromkeys(choices))})"
    if "string" in (_kinds(schema, root) or ()):
        if tool.strict and not _takes_any_text(schema, root):
            raise _unenforceable(tool, f"what its parameter {name!r} says of strings")
        return "text"
    definitions = {key: root[key] for key in ("$defs", "definitions") if key in root}
    whole = {**(schema if isinstance(schema, dict) else {}), **definitions}
    return f"%json {compact(bounded(whole, lenient=not tool.strict))} {quoted(closing)}"


def _unenforceable(tool: Tool, what: str) -> RequestError:
    return RequestError(
        f"This model writes arguments as bare text, so {what} cannot be enforced in the function {tool.name!r}, "
        "and it is strict. Leave it out, or strict.",
        param="tools",
        code="invalid_schema",
    )


def _choices(schema: Any, root: Schema, looks: list[Any] | None = None) -> list[Any] | None:
    """All values that are allowed, where the schema lists them."""
    schema, looks = _resolved(schema, root), [] if looks is None else looks
    looks.append(schema)
    if isinstance(schema.get("enum"), list):
        return list(schema["enum"])
    if "const" in schema:
        return [schema["const"]]
    if schema.get("type") in ("null", "boolean"):
        return [None] if schema["type"] == "null" else [True, False]
    options = _options(schema) if "type" not in schema and len(looks) < _LOOKS else []
    each = [_choices(option, root, looks) for option in options]
    return [choice for some in each for choice in some or ()] if each and None not in each else None


def _kinds(schema: Any, root: Schema, looks: list[Any] | None = None) -> frozenset[str] | None:
    """JSON types that a value may have; None where the schema does not tell."""
    listed = _choices(schema, root)
    if listed is not None:
        return frozenset(map(_kind, listed))
    schema, looks = _resolved(schema, root), [] if looks is None else looks
    looks.append(schema)
    kind = schema.get("type")
    if isinstance(kind, str | list):
        return frozenset([kind] if isinstance(kind, str) else (k for k in kind if isinstance(k, str)))
    if len(looks) >= _LOOKS:
        return None
    if options := _options(schema):
        each = [_kinds(option, root, looks) for option in options]
        return frozenset[str]().union(*(some or () for some in each)) if None not in each else None
    told = [some for part in _parts(schema) if (some := _kinds(part, root, looks)) is not None]
    return frozenset.intersection(*told) if told else None


def _takes_any_text(schema: Any, root: Schema, looks: list[Any] | None = None) -> bool:
    """Whether every string is allowed."""
    schema, looks = _resolved(schema, root), [] if looks is None else looks
    looks.append(schema)
    kind = schema.get("type", "string")
    if _OF_TEXT & schema.keys() or "string" not in ([kind] if isinstance(kind, str) else kind):
        return False
    if len(looks) >= _LOOKS:
        return False
    options = _options(schema)
    some = not options or any(_takes_any_text(option, root, looks) for option in options)
    return some and all(_takes_any_text(part, root, looks) for part in _parts(schema))


def _options(schema: Schema) -> list[Any]:
    """The alternatives of a schema."""
    options = schema.get("anyOf", schema.get("oneOf"))
    return options if isinstance(options, list) else []


def _parts(schema: Schema) -> list[Any]:
    """Schemas that all hold at once."""
    parts = schema.get("allOf")
    return parts if isinstance(parts, list) else []


def _kind(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return "null" if value is None else "boolean"
    names: dict[type, str] = {str: "string", int: "integer", float: "number", list: "array", dict: "object"}
    return names[type(value)]


def _resolved(schema: Any, root: Schema) -> Schema:
    """The schema that is meant, where one refers to another in the same document; {} for what is none."""
    for _ in range(_REFERENCES):
        reference = schema.get("$ref") if isinstance(schema, dict) else None
        if not isinstance(reference, str):
            break
        found: Any = root if reference.startswith("#") else None
        for step in filter(None, reference.removeprefix("#").split("/")):
            found = found.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(found, dict) else None
        schema = found if found is not root else {}
    return schema if isinstance(schema, dict) else {}
