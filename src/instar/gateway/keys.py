"""Who may come in."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass

from starlette.requests import Request

from instar.errors import RequestError
from instar.records import Caller

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
