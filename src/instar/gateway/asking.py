"""What every surface reads from a request beside its own fields: model, session, and whether it is learned from."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, TypeVar

from fastapi import Request
from pydantic import BaseModel

from instar.errors import RequestError
from instar.gateway.guard import parse, read_body
from instar.records import BASE

SESSION_HEADERS = ("x-session-id", "x-session-affinity", "session_id")
PARSE_IN_THREAD_ABOVE = 64 * 1024  # bytes; below, a thread costs more than the parsing

M = TypeVar("M", bound=BaseModel)


async def read(request: Request, model: type[M], limit_bytes: int) -> M:
    """The body as a model. Raises RequestError 400 or 413."""
    raw = await read_body(request, limit_bytes)
    if len(raw) > PARSE_IN_THREAD_ABOVE:
        return await asyncio.to_thread(parse, raw, model)
    return parse(raw, model)


def version_of(model: str, served_name: str) -> str | None:
    """`instar` → None (the current version), `instar@v7` → v7, `instar@base` → base. RequestError 404."""
    name, at, version = model.partition("@")
    known = version == BASE or (version[:1] == "v" and version[1:].isascii() and version[1:].isdigit())
    if name != served_name or (at and not known):
        raise RequestError(
            f"There is no model {model[:80]!r} here. Use {served_name!r} for the version in service, "
            f"{served_name + '@v7'!r} for a certain one, or {served_name + '@base'!r} for the untouched model.",
            status=404,
            code="model_not_found",
            param="model",
        )
    return version if at else None


def session_of(request: Request, *fields: Any) -> str | None:
    """The session that the client names, by a header or else by the first of these fields of its body."""
    for header in SESSION_HEADERS:
        if value := request.headers.get(header):
            return value
    return next((value for value in fields if isinstance(value, str) and value), None)


def wants_learning(request: Request, metadata: Mapping[str, Any] | None) -> bool:
    said = request.headers.get("x-instar-learn", (metadata or {}).get("instar_learn", "on"))
    return str(said).lower() not in {"off", "false", "0", "no"}


def is_side(request: Request) -> bool:
    return request.headers.get("x-turn-type", "").lower() == "side"
