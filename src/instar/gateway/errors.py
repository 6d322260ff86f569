"""Errors as a client expects them: one shape, the right status, and what to do.

The shape is OpenAI's; under `/v1/messages` it is Anthropic's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from instar.errors import (
    ArtifactError,
    EngineError,
    EngineUnavailable,
    InstarError,
    Overloaded,
    RequestError,
    StoreError,
)
from instar.gateway.sse import data_event, named_event

MAX_PARAM_CHARS = 200
"""A field's path holds names that the client chose."""


def error_body(message: str, kind: str, code: str | None = None, param: str | None = None) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def describe(error: InstarError) -> tuple[int, dict[str, Any], dict[str, str]]:
    """HTTP status, body and headers for an error of ours."""
    match error:
        case RequestError():
            return error.status, error_body(str(error), error.kind, error.code, error.param), {}
        case EngineUnavailable():
            text = f"The engine does not answer; it is restarted by itself. ({error})"
            return 503, error_body(text, "server_error", "engine_unavailable"), {"retry-after": "2"}
        case Overloaded() | EngineError(status=429):
            return 429, error_body(str(error), "rate_limit_error", "overloaded"), {"retry-after": "1"}
        case EngineError(status=400):
            return 400, error_body(str(error), "invalid_request_error", "engine_refused"), {}
        case ArtifactError():
            return 409, error_body(str(error), "invalid_request_error", "version_unusable"), {}
        case StoreError():
            return 503, error_body(str(error), "server_error", "store_unavailable"), {"retry-after": "2"}
        case _:
            return 502, error_body(str(error), "server_error", "engine_error"), {}


_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def anthropic_error(status: int, body: dict[str, Any]) -> dict[str, Any]:
    """An error body of ours in Anthropic's shape."""
    kind = _ANTHROPIC_TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
    return {"type": "error", "error": {"type": kind, "message": body["error"]["message"]}}


def is_anthropic(path: str) -> bool:
    return path.startswith("/v1/messages")


def shaped(path: str, status: int, body: dict[str, Any]) -> dict[str, Any]:
    """An error body of ours as clients of this path expect it."""
    return anthropic_error(status, body) if is_anthropic(path) else body


def error_event(path: str, status: int, body: dict[str, Any]) -> bytes:
    """The same in the middle of a stream, where the status has been sent already."""
    told = shaped(path, status, body)
    return named_event(told) if "type" in told else data_event(told)


def _response(
    request: Request, status: int, body: dict[str, Any], headers: Mapping[str, str] | None = None
) -> JSONResponse:
    return JSONResponse(shaped(request.url.path, status, body), status_code=status, headers=headers)


def from_validation(error: ValidationError) -> RequestError:
    """The first thing wrong with a body, named by its path."""
    first = error.errors(include_url=False, include_input=False)[0]
    # pydantic names in brackets which of several alternatives it tried
    param = ".".join(str(part) for part in first["loc"] if "[" not in str(part))[:MAX_PARAM_CHARS]
    if first["type"].startswith("json"):
        return RequestError(f"The body is not valid JSON: {first['msg']}", code="invalid_json")
    where = f"{param}: " if param else ""
    return RequestError(f"{where}{first['msg']}", code="invalid_value", param=param or None)


def install(app: FastAPI) -> None:
    """Every way in which a request can be refused, in the one shape. For the rest there is boundary.py."""

    async def ours(request: Request, error: Exception) -> Response:
        assert isinstance(error, InstarError)
        return _response(request, *describe(error))

    async def http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        kind = "invalid_request_error" if error.status_code < 500 else "server_error"
        code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code)
        hint = " The API lives under /v1." if error.status_code == 404 else ""
        body = error_body(f"{error.detail}.{hint}", kind, code)
        return _response(request, error.status_code, body, error.headers)

    app.add_exception_handler(InstarError, ours)
    app.add_exception_handler(HTTPException, http)
