"""What a request may bring: JSON in UTF-8, not too much of it, and not ambiguous."""

from __future__ import annotations

import asyncio
import json
import math
from collections import Counter
from typing import Any, NoReturn, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request

from instar.errors import RequestError
from instar.gateway.errors import from_validation

PARSE_IN_THREAD_ABOVE = 64 * 1024  # bytes; below, a thread costs more than the parsing

M = TypeVar("M", bound=BaseModel)

JSON_TYPE = "application/json"


def _check_type(request: Request) -> None:
    """A body without a type is taken for JSON, as curl and scripts leave it out. Raises RequestError 415."""
    kind, *parameters = request.headers.get("content-type", JSON_TYPE).lower().split(";")
    pairs = (parameter.partition("=") for parameter in parameters)
    charsets = {value.strip().strip('"') for name, _, value in pairs if name.strip() == "charset"}
    encoding = request.headers.get("content-encoding", "identity").lower()
    if kind.strip() != JSON_TYPE or charsets - {"utf-8", "utf8"} or encoding != "identity":
        raise RequestError(
            "The body must be JSON in UTF-8, uncompressed. Send the header `Content-Type: application/json`.",
            status=415,
            code="unsupported_media_type",
        )


async def read(request: Request, model: type[M], limit_bytes: int) -> M:
    """The body as a model. Raises RequestError 400 or 413."""
    raw = await read_body(request, limit_bytes)
    if len(raw) > PARSE_IN_THREAD_ABOVE:
        return await asyncio.to_thread(parse, raw, model)
    return parse(raw, model)


async def read_body(request: Request, limit_bytes: int) -> bytes:
    """The body, refused with 413 before it is read further than `limit_bytes`, with 415 where it is not JSON."""
    too_large = RequestError(
        f"The body is larger than {limit_bytes} bytes (setting max_body_bytes).",
        status=413,
        code="request_too_large",
    )
    announced = request.headers.get("content-length", "")
    if announced.isdigit() and (len(announced) > 18 or int(announced) > limit_bytes):
        raise too_large
    _check_type(request)
    body = bytearray()
    try:
        async for part in request.stream():
            body += part
            if len(body) > limit_bytes:
                raise too_large
    except ClientDisconnect as error:
        raise RequestError("The client left while sending its request.", status=499) from error
    return bytes(body)


def parse(body: bytes, model: type[M]) -> M:
    """A JSON body as a model. Raises RequestError 400 that names the field."""
    _check_json(body)
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        raise from_validation(error) from error


def _check_json(body: bytes) -> None:
    """Refuse what parsers disagree about, and what cannot be written again: NaN, a number that becomes infinite, and a
    name that is given twice.

    Of `{"n": 1, "n": 8}` a proxy in front of us may see the one and we the other.
    """
    try:
        json.loads(
            body.decode("utf-8"),
            object_pairs_hook=_each_once,
            parse_constant=_no_constant,
            parse_float=_finite,
        )
    except RecursionError:
        raise _invalid("it is nested too deeply") from None
    except ValueError as error:  # bad UTF-8 as well
        raise _invalid(str(error)) from error


def _each_once(pairs: list[tuple[str, Any]]) -> None:
    names = {name for name, _ in pairs}
    if len(names) < len(pairs):
        twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"the name {twice[:40]!r} is given twice")


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"the number {text[:40]} is beyond all bounds")
    return number


def _invalid(why: str) -> RequestError:
    return RequestError(f"The body is not valid JSON: {why}", code="invalid_json")
