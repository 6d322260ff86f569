"""What every surface reads from a request beside its own fields: model, session, and whether it is learned from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from fastapi import Request

from instar.config import Settings
from instar.errors import RequestError
from instar.flow.exchange import ChatRequest
from instar.gateway.session_hints import session_hints
from instar.records import BASE, Sampling

LEAST_TOP_P = 1e-6
"""Keeps the likeliest token alone, as clients mean it by 0, which engines refuse."""


def sampling_of(
    settings: Settings,
    *,
    max_tokens: int | None,
    temperature: float | None,
    top_p: float | None,
    seed: int | None = None,
    stop: Sequence[str] = (),
    top_logprobs: int = 0,
) -> Sampling:
    """What the client leaves out is the settings' business."""
    return Sampling(
        max_tokens=max_tokens or settings.max_tokens,
        temperature=settings.temperature if temperature is None else temperature,
        top_p=1.0 if top_p is None else max(top_p, LEAST_TOP_P),
        seed=seed,
        stop=tuple(stop),
        top_logprobs=top_logprobs,
    )


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


def as_sent(
    asked: ChatRequest,
    request: Request,
    settings: Settings,
    *,
    api: str,
    model: str,
    fields: Mapping[str, Any],
    top_p: float | None = None,
) -> ChatRequest:
    """`asked`, with what stands in the same place on every surface: version, session, whether it is learned from; and
    what is kept of the request: which `api` it came through, and how it was to be sampled.

    A session is named by a header, or else by a field of the body; `fields` are those that may, and `metadata`. Where
    none does, that of `asked` holds.
    """
    metadata = fields.get("metadata") or {}
    told = session_hints(request.headers, fields)
    sampling = asked.sampling
    how = {"api": api, "temperature": sampling.temperature, "top_p": top_p, "seed": sampling.seed}
    learn = request.headers.get("x-instar-learn", metadata.get("instar_learn", "on"))
    return replace(
        asked,
        version=version_of(model, settings.served_name),
        session_id=told.session_id or asked.session_id,
        learn=str(learn).lower() not in {"off", "false", "0", "no"},
        side=told.side,
        hints=told.hints,
        params={**how, **asked.params},
    )
