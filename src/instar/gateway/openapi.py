"""The OpenAPI document, at `/openapi.json`: what FastAPI finds, and what is true of all our routes.

Routes are added by `add_get`, `add_post` or, where they sample, `add_answering`, with what they take and answer. The
rest is added here by what a route is: the key, the error shape with each status that can come, the headers of those
that sample. So a new route is documented without having to repeat any of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.responses import JSONResponse, Response

from instar.gateway.bodies import JSON_TYPE
from instar.gateway.errors import is_anthropic
from instar.gateway.keys import KeyRing
from instar.gateway.response_models import AnthropicError, Error
from instar.gateway.waiting_room import AnsweringRoute

OPEN = frozenset({"/health", "/ready"})
"""Routes that need no key."""

EVENTS_TYPE = "text/event-stream"
_BEARER, _X_API_KEY = "bearer", "x-api-key"
_ANYWHERE = {
    400: "The request is not valid; the message names the field",
    408: "The request did not arrive in time",
    431: "The headers are too large",
    500: "A fault of the server; its log says what",
    503: "Something that is needed does not answer now: the engine, the database; or the server stops",
}
_CLOSED = {401: "No key, or one that is not known"}
_WITH_BODY = {
    413: "The body is larger than the setting `max_body_bytes`",
    415: "The body is not JSON in UTF-8",
}
_WITH_NAME = {404: "There is nothing of this name"}
_ON_VERSIONS = {
    409: "The version cannot be used so",
    429: "The engine's places for versions are all in use",
    502: "The engine answered with an error",
}
_SAMPLING = {**_WITH_NAME, **_ON_VERSIONS, 429: "Too many requests are being answered or wait already"}
_REQUEST_HEADERS = {
    "X-Session-Id": "The conversation that the request belongs to; found from its history where there is none",
    "X-Turn-Type": "`side` marks what is no conversation (titles, summaries): it is never learned from; `main` "
    "what is one for certain",
    "X-Session-Done": "`1` marks the last turn of its session",
    "X-Instar-Learn": "`off` keeps this turn out of learning",
}
_ANSWER_HEADERS = {
    "x-instar-turn": "Ids of the turns, one for each choice",
    "x-instar-version": "The version that answers",
}
_RETRY = {"retry-after": "Seconds until another try makes sense"}


def add_get(
    router: APIRouter,
    path: str,
    endpoint: Callable[..., Any],
    summary: str,
    answer: type[BaseModel],
    **more: Any,
) -> None:
    router.add_api_route(path, endpoint, methods=["GET"], summary=summary, response_model=answer, **more)


def add_post(
    router: APIRouter,
    path: str,
    endpoint: Callable[..., Any],
    summary: str,
    answer: type[BaseModel],
    body: type[BaseModel] | None = None,
    **more: Any,
) -> None:
    """A route that takes no body, or one of this model. `more` is FastAPI's."""
    if body is not None:
        schema = {"content": {JSON_TYPE: {"schema": body.model_json_schema()}}, "required": True}
        more["openapi_extra"] = {"requestBody": schema}
    router.add_api_route(path, endpoint, methods=["POST"], summary=summary, response_model=answer, **more)


def add_answering(
    router: APIRouter,
    path: str,
    endpoint: Callable[..., Any],
    summary: str,
    *,
    body: type[BaseModel],
    answer: type[BaseModel],
    events: dict[str, Any],
) -> None:
    """A route that samples: its answer comes whole or, as `events_of` describes it, in a stream."""
    stream = {200: {"content": {EVENTS_TYPE: events}}}
    add_post(
        router, path, endpoint, summary, answer, body, responses=stream, route_class_override=AnsweringRoute
    )


def document(app: FastAPI, keys: KeyRing) -> None:
    """Give the application its document and the route to it. Call it when all routes are there."""

    async def document_of(request: Request) -> Response:
        keys.caller(request)
        return JSONResponse(app.openapi())

    app.add_api_route("/openapi.json", document_of, methods=["GET"], summary="This document")
    app.openapi = lambda: app.openapi_schema or _remember(app)  # type: ignore[method-assign]


def _remember(app: FastAPI) -> dict[str, Any]:
    app.openapi_schema = build(app)
    return app.openapi_schema


def build(app: FastAPI) -> dict[str, Any]:
    found: dict[str, Any] = get_openapi(title=app.title, version=app.version, routes=app.routes)
    parts = found.setdefault("components", {})
    schemas = parts.setdefault("schemas", {})
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    _, errors = models_json_schema(
        [(Error, "serialization"), (AnthropicError, "serialization")],
        ref_template="#/components/schemas/{model}",
    )
    schemas.update(errors["$defs"])
    parts["securitySchemes"] = {
        _BEARER: {"type": "http", "scheme": "bearer"},
        _X_API_KEY: {"type": "apiKey", "in": "header", "name": "X-Api-Key"},
    }
    sampling = set(_paths_that_sample(app))
    for path, ways in found["paths"].items():
        for method, operation in ways.items():
            _complete(operation, path, samples=path in sampling)
            ways[method] = _hoisted(operation, schemas)
    return found


def _paths_that_sample(app: FastAPI) -> Iterator[str]:
    for route in app.routes:
        for inner in getattr(getattr(route, "original_router", None), "routes", [route]):
            if isinstance(inner, AnsweringRoute):
                yield inner.path


def _complete(operation: dict[str, Any], path: str, *, samples: bool) -> None:
    closed = path not in OPEN
    by_name = "parameters" in operation and any(p["in"] == "path" for p in operation["parameters"])
    statuses = {
        **_ANYWHERE,
        **(_CLOSED if closed else {}),
        **(_WITH_BODY if "requestBody" in operation else {}),
        **(_WITH_NAME if by_name else {}),
        **(_ON_VERSIONS if "/versions/" in path and path != "/v1/versions/{version}" else {}),
        **(_SAMPLING if samples else {}),
    }
    if closed:
        operation["security"] = [{_BEARER: []}, {_X_API_KEY: []}]
    answers = operation["responses"]
    answers.pop("422", None)
    for status, meaning in statuses.items():
        answers.setdefault(str(status), {"description": meaning})
    for status, answer in answers.items():
        if int(status) >= 400 and "content" not in answer:
            answer.update(_error(path, status))
    if samples:
        _complete_sampling(operation)


def _error(path: str, status: str) -> dict[str, Any]:
    name = (AnthropicError if is_anthropic(path) else Error).__name__
    content = {JSON_TYPE: {"schema": {"$ref": f"#/components/schemas/{name}"}}}
    return {"content": content} | ({"headers": _headers(_RETRY)} if status == "429" else {})


def _headers(meanings: dict[str, str]) -> dict[str, Any]:
    text = {"required": True, "schema": {"type": "string"}}
    return {name: {"description": meaning, **text} for name, meaning in meanings.items()}


def _complete_sampling(operation: dict[str, Any]) -> None:
    parameters = operation.setdefault("parameters", [])
    parameters += [
        {"name": name, "in": "header", "description": meaning, "schema": {"type": "string"}}
        for name, meaning in _REQUEST_HEADERS.items()
    ]
    operation["responses"]["200"]["headers"] = _headers(_ANSWER_HEADERS)


def events_of(model: type[BaseModel], *others: str, error: type[BaseModel] = Error) -> dict[str, Any]:
    """Events whose data is JSON of this model.

    An error may take the place of one. `others` are data that are no JSON, such as `[DONE]`.
    """
    told = {"anyOf": [model.model_json_schema(), {"$ref": f"#/components/schemas/{error.__name__}"}]}
    json_text = {"type": "string", "contentMediaType": JSON_TYPE, "contentSchema": told}
    kinds: list[dict[str, Any]] = [*({"type": "string", "const": text} for text in others), json_text]
    return {"itemSchema": {"anyOf": [_event(kind) for kind in kinds]}}


def _event(data: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": {"data": data}, "required": ["data"]}


def _hoisted(part: Any, schemas: dict[str, Any]) -> Any:
    """Move the definitions of models' schemas to where references in a whole document can find them."""
    if isinstance(part, list):
        return [_hoisted(inner, schemas) for inner in part]
    if not isinstance(part, dict):
        return part
    if "$defs" not in part:
        return {key: _hoisted(inner, schemas) for key, inner in part.items()}
    title = str(part["title"])
    taken = {name for name, known in schemas.items() if known != part["$defs"].get(name, known)}
    names = {name: f"{title}_{name}" if name in taken else name for name in part["$defs"]}
    for name, definition in part["$defs"].items():
        schemas[names[name]] = _pointed(definition, names)
    schemas[title] = _pointed({key: value for key, value in part.items() if key != "$defs"}, names)
    return {"$ref": f"#/components/schemas/{title}"}


def _pointed(part: Any, names: dict[str, str]) -> Any:
    match part:
        case list():
            return [_pointed(inner, names) for inner in part]
        case dict():
            return {key: _pointed(inner, names) for key, inner in part.items()}
        case str() if part.startswith("#/$defs/"):
            return f"#/components/schemas/{names[part.removeprefix('#/$defs/')]}"
        case _:
            return part
