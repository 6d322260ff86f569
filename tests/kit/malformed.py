"""Requests that must be refused, made of the tables and of the application's own routes.

The routes, their fields and the fields' types come from the OpenAPI document, so a new route is covered as soon as it
is there; it needs one valid body in `VALID`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.kit.malformed_tables import (
    BODIES,
    CHAT,
    ENCODINGS,
    FIELDS,
    KEYS,
    METHODS,
    OF_TYPE,
    QUERIES,
    RAW,
    SPOILS,
    TRAVERSALS,
    UNKNOWN_PATHS,
    VALID,
    WRONG_TYPES,
)

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Bad:
    """One request. `raw` is sent as `on_the_wire` makes it, on a connection of its own."""

    what: str
    method: str = "POST"
    path: str = CHAT
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=lambda: {"content-type": "application/json"})
    raw: bytes | None = None


def all_bad(document: Document) -> list[Bad]:
    """Every request of the tables, for the routes of this application."""
    makers: list[Callable[[Document], Iterator[Bad]]] = [
        _bodies, _fields, _types_of_fields, _headers, _raw, _names, _paths, _methods, _queries,
    ]  # fmt: skip
    return [bad for make in makers for bad in make(document)]


def on_the_wire(raw: bytes, key: str) -> bytes:
    """The bytes of a raw request, for this key."""
    keyed = f"host: test\r\nauthorization: Bearer {key}\r\n"
    places = {
        "{post}": f"POST {CHAT} HTTP/1.1\r\n{keyed}content-type: application/json\r\n",
        "{get}": f"GET /v1/models HTTP/1.1\r\n{keyed}",
        "{key}": keyed,
    }
    for place, text in places.items():
        raw = raw.replace(place.encode(), text.encode())
    return raw


def routes_with_body(document: Document) -> list[str]:
    found = [path for path, ways in document["paths"].items() if "requestBody" in ways.get("post", {})]
    lacking = sorted(set(found) - set(VALID))
    assert not lacking, f"tests.kit.malformed.VALID needs a body for {lacking}"
    return found


def body_with(path: str, name: str, value: str) -> bytes:
    """The route's valid body with one field of this JSON text."""
    rest = {key: part for key, part in VALID[path].items() if key != name}
    if name == "top_logprobs" and value != "5":  # this one is refused alone: it needs logprobs
        rest["logprobs"] = True
    return (json.dumps(rest)[:-1] + f', "{name}": {value}' + "}").encode()


def _bodies(document: Document) -> Iterator[Bad]:
    for path in routes_with_body(document):
        for what, body in BODIES.items():
            if body.strip() or path != "/v1/versions/rollback":
                yield Bad(f"{path}: {what}", path=path, body=body)
        for what, spoil in SPOILS.items():
            body = json.dumps(VALID[path]).encode()[:-1] + b", " + spoil + b"}"
            yield Bad(f"{path}: valid but for {what}", path=path, body=body)


def _fields(_: Document) -> Iterator[Bad]:
    for path, fields in FIELDS.items():
        for name, values in fields.items():
            for value in values:
                yield Bad(f"{path}: {name} = {value[:60]}", path=path, body=body_with(path, name, value))


def _types_of_fields(document: Document) -> Iterator[Bad]:
    """Each field of each route with a value of every type that its schema does not allow."""
    for path in routes_with_body(document):
        [content] = document["paths"][path]["post"]["requestBody"]["content"].values()
        for name, schema in resolved(content["schema"], document).get("properties", {}).items():
            allowed = types_of(schema, document)
            for kind, value in OF_TYPE.items():
                if allowed and kind not in allowed:
                    yield Bad(f"{path}: {name} of type {kind}", path=path, body=body_with(path, name, value))


def resolved(schema: Any, document: Document) -> Any:
    reference = schema.get("$ref")
    if reference is None:
        return schema
    return resolved(document["components"]["schemas"][reference.rpartition("/")[2]], document)


def types_of(schema: Any, document: Document) -> set[str]:
    """JSON types that a schema may take; empty for any."""
    schema = resolved(schema, document)
    if options := schema.get("anyOf") or schema.get("oneOf") or schema.get("allOf"):
        found = [types_of(option, document) for option in options]
        return set().union(*found) if all(found) else set()
    kinds = schema.get("type", [])
    found_kinds = {kinds} if isinstance(kinds, str) else set(kinds)
    for value in schema.get("enum", [schema["const"]] if "const" in schema else []):
        found_kinds.add(
            {str: "string", bool: "boolean", int: "integer", float: "number"}.get(type(value), "null")
        )
    return found_kinds | ({"integer"} if "number" in found_kinds else set())


def _headers(document: Document) -> Iterator[Bad]:
    for path in routes_with_body(document):
        valid = json.dumps(VALID[path]).encode()
        for kind in WRONG_TYPES:
            yield Bad(f"{path}: content type {kind!r}", path=path, body=valid, headers={"content-type": kind})
        for encoding in ENCODINGS:
            headers = {"content-type": "application/json", "content-encoding": encoding}
            yield Bad(f"{path}: content encoding {encoding!r}", path=path, body=valid, headers=headers)
    for key in KEYS:
        yield Bad(f"key {key[:30]!r}", "GET", "/v1/models", headers={"authorization": key})


def _raw(_: Document) -> Iterator[Bad]:
    for what, sent in RAW.items():
        yield Bad(what, raw=sent)


def _names(document: Document) -> Iterator[Bad]:
    """Every route with a name in its path, each with every name that leads elsewhere."""
    for path, ways in document["paths"].items():
        if "{" not in path:
            continue
        before, after = path.partition("{")[0], path.rpartition("}")[2]
        for method in ways:
            for name in TRAVERSALS:
                target = f"{before}{name}{after}"
                raw = f"{method.upper()} {target} HTTP/1.1\r\n{{key}}content-length: 0\r\n\r\n"
                yield Bad(f"{method} {target[:80]}", raw=raw.encode())


def _paths(_: Document) -> Iterator[Bad]:
    for path in UNKNOWN_PATHS:
        yield Bad(f"path {path}", raw=f"GET {path} HTTP/1.1\r\n{{key}}\r\n".encode())


def _methods(document: Document) -> Iterator[Bad]:
    for path, ways in document["paths"].items():
        target = path.format(version="base", model="instar", **dict.fromkeys(("id", "name"), "x"))
        for method in METHODS:
            if method.lower() not in ways:
                raw = f"{method} {target} HTTP/1.1\r\n{{key}}\r\n".encode()
                yield Bad(f"{method} {target}", path=target, raw=raw)


def _queries(_: Document) -> Iterator[Bad]:
    for query in QUERIES:
        yield Bad(f"query {query[:60]}", "GET", f"/v1/turns?{query}", headers={})
