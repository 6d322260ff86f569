"""Who may come in, and how much they may bring."""

from __future__ import annotations

import hashlib
import hmac
import json
import math
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeVar

from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive, Scope, Send

from instar.errors import Overloaded, RequestError
from instar.gateway.errors import from_validation
from instar.records import Caller

M = TypeVar("M", bound=BaseModel)

PROXY = "proxy"
"""Role of a key behind which several people are."""


@dataclass(frozen=True, slots=True)
class KeyRing:
    """Knows keys by their sha256 only. One key, one learner; but a proxy's key, which speaks for several people."""

    digests: dict[str, Caller]

    @classmethod
    def of(cls, key: str, proxy_key: str | None = None) -> KeyRing:
        """`proxy_key` is that of a client whose `user` field is believed."""
        digests = {_digest(key): Caller(key_id=_digest(key)[:16], learner="default")}
        if proxy_key is not None:
            digest = _digest(proxy_key)
            digests[digest] = Caller(key_id=digest[:16], learner=PROXY, role=PROXY)
        return cls(digests)

    def caller(self, request: Request) -> Caller:
        """Raises RequestError 401. Compares in constant time."""
        given = _given_keys(request)
        if not given:
            raise RequestError(
                "No API key. Send the header `Authorization: Bearer <key>` or `X-Api-Key: <key>`; "
                "`instar serve` prints the key.",
                status=401,
                code="missing_api_key",
                kind="authentication_error",
            )
        for digest in map(_digest, given):
            for known, caller in self.digests.items():
                if hmac.compare_digest(known, digest):
                    return caller
        raise RequestError(
            "This API key is not known. `instar serve` prints the right one; it is kept in the data folder's "
            "file `api_key`.",
            status=401,
            code="invalid_api_key",
            kind="authentication_error",
        )


def _given_keys(request: Request) -> list[str]:
    """As OpenAI's clients send it, and as Anthropic's do. A proxy may have filled one of the two with its own."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    bearer = token.strip() if scheme.lower() == "bearer" else ""
    return [key for key in (bearer, request.headers.get("x-api-key", "").strip()) if key]


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


@dataclass(slots=True)
class WaitingRoom:
    """Holds as many answers as may be sampled or wait to be; who comes later is told so at once.

    Nothing was read of a request that is turned away, and nothing is recorded of it.
    """

    places: int
    taken: int = field(default=0, init=False)

    @contextmanager
    def place(self) -> Iterator[None]:
        """Raises Overloaded (429) when all places are taken."""
        if self.taken >= self.places:
            raise Overloaded(
                f"{self.places} requests are being answered or wait already (settings engine.max_streams and "
                "engine.max_waiting). Try again in a moment."
            )
        self.taken += 1
        try:
            yield
        finally:
            self.taken -= 1


class CountedRoute(APIRoute):
    """A route that takes much: each request has a place in the `WaitingRoom` until its last byte is sent.

    The room is at `app.state.waiting_room`.
    """

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        room: WaitingRoom = scope["app"].state.waiting_room
        with room.place():
            await super().handle(scope, receive, send)


class AnsweringRoute(CountedRoute):
    """A route that samples answers. `openapi.add_answering` adds such routes."""


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
