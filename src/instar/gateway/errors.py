"""Errors as an OpenAI client expects them: one shape, the right status, and what to do."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
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


def error_response(error: InstarError) -> JSONResponse:
    status, body, headers = describe(error)
    return JSONResponse(body, status_code=status, headers=headers)


def error_event(error: InstarError) -> bytes:
    """The same in the middle of a stream, where the status has been sent already."""
    return b"data: " + json.dumps(describe(error)[1]).encode() + b"\n\n"


def from_validation(error: ValidationError) -> RequestError:
    """The first thing wrong with a body, named by its path."""
    found = error.errors(include_url=False, include_input=False)
    first = _most_telling(found)
    param = ".".join(str(part) for part in first["loc"] if not _is_alternative(part))[:MAX_PARAM_CHARS]
    if first["type"].startswith("json"):
        return RequestError(f"The body is not valid JSON: {first['msg']}", code="invalid_json")
    where = f"{param}: " if param else ""
    return RequestError(f"{where}{first['msg']}", code="invalid_value", param=param or None)


def _most_telling(found: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """A field that takes a text or a list complains once for each: the list that is too long is no text either."""
    first = found[0]
    place = first["loc"][:-1]
    alternatives = [error for error in found if error["loc"][: len(place)] == place]
    return next((error for error in alternatives if not error["type"].endswith("_type")), first)


def _is_alternative(part: int | str) -> bool:
    """pydantic names in the path which alternative it tried."""
    return isinstance(part, str) and (part in {"str", "constrained-str"} or "[" in part)


def install(app: FastAPI) -> None:
    """Every way in which a request can be refused, in the one shape. For the rest there is boundary.py."""

    async def ours(_: Request, error: Exception) -> Response:
        assert isinstance(error, InstarError)
        return error_response(error)

    async def http(_: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        kind = "invalid_request_error" if error.status_code < 500 else "server_error"
        code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code)
        hint = " The API lives under /v1." if error.status_code == 404 else ""
        body = error_body(f"{error.detail}.{hint}", kind, code)
        return JSONResponse(body, status_code=error.status_code, headers=error.headers)

    app.add_exception_handler(InstarError, ours)
    app.add_exception_handler(HTTPException, http)
