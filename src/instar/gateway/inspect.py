"""To look inside: health, models, status, turns; and to say what one thinks of an answer."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from instar.config import Settings
from instar.errors import RequestError
from instar.flow.fidelity import FIDELITY, summary
from instar.flow.reasons import REASONS
from instar.flow.schedule import in_words
from instar.flow.sessions import clean_session_id
from instar.flow.story import waiting_version
from instar.gateway import response_models as models
from instar.gateway.asking import version_of
from instar.gateway.bodies import read
from instar.gateway.keys import KeyRing
from instar.gateway.openapi import add_get, add_post
from instar.gateway.schemas import FeedbackBody
from instar.gateway.versions import VersionKeeper
from instar.gateway.versions_api import servable
from instar.ports import Engine, Registry, Store
from instar.records import BASE, NextKind, NextState
from instar.runtime import Clock

MAX_PAGE = 1000
TURN_ID = "^turn_[0-9a-f]{24}$"
_TURN_PARAMETERS = [
    {
        "name": "limit",
        "in": "query",
        "schema": {"type": "integer", "minimum": 1, "maximum": MAX_PAGE, "default": 100},
    },
    {"name": "session", "in": "query", "description": "only of this session", "schema": {"type": "string"}},
    {
        "name": "before",
        "in": "query",
        "description": "older than this turn",
        "schema": {"type": "string", "pattern": TURN_ID},
    },
]


@dataclass(slots=True)
class InspectApi:
    """Routes that print facts. `processes` tells, per loop, pid and restarts; `context_length` counts the tokens that
    a prompt and its answer may have together."""

    store: Store
    registry: Registry
    engine: Engine
    versions: VersionKeeper
    keys: KeyRing
    settings: Settings
    clock: Clock
    context_length: Callable[[], int]
    processes: Callable[[], dict[str, dict[str, Any]]]
    router: APIRouter = field(default_factory=APIRouter)

    def __post_init__(self) -> None:
        self._add_models()
        self._add_learning()

    def _add_models(self) -> None:
        add_get(self.router, "/health", self.health, "The gateway is alive", models.Alive)
        starting = {503: {"model": models.Readiness, "description": "The engine is still starting"}}
        add_get(
            self.router,
            "/ready",
            self.ready,
            "A model can be talked to",
            models.Readiness,
            responses=starting,
        )
        add_get(self.router, "/v1/models", self.models, "Models and versions by name", models.ModelList)
        add_get(self.router, "/v1/models/{model}", self.model, "One model", models.Model)

    def _add_learning(self) -> None:
        add_get(self.router, "/v1/status", self.status, "The four loops and the learning", models.Status)
        page = {"parameters": _TURN_PARAMETERS}
        about = "Recorded turns, newest first"
        add_get(self.router, "/v1/turns", self.turns, about, models.TurnList, openapi_extra=page)
        no_turn = {404: {"description": "There is no such turn"}}
        add_post(
            self.router,
            "/v1/feedback",
            self.feedback,
            "Judge an answer yourself",
            models.FeedbackTaken,
            FeedbackBody,
            responses=no_turn,
        )

    async def health(self) -> Response:
        return JSONResponse({"status": "ok"})

    async def ready(self) -> Response:
        if self.versions.ready and await self.engine.healthy():
            return JSONResponse({"status": "ready", "version": self.versions.current})
        return JSONResponse({"status": "starting"}, status_code=503, headers={"retry-after": "1"})

    async def models(self, request: Request) -> Response:
        self.keys.caller(request)
        name = self.settings.served_name
        versions = await asyncio.to_thread(servable, self.registry, self.store)
        names = [name, f"{name}@{BASE}", *(f"{name}@{v}" for v in versions)]
        return JSONResponse({"object": "list", "data": [self._model(n) for n in names]})

    async def model(self, request: Request, model: str) -> Response:
        self.keys.caller(request)
        await self.versions.check(version_of(model, self.settings.served_name))
        return JSONResponse(self._model(model))

    def _model(self, name: str) -> dict[str, Any]:
        """OpenAI's object, and the context under both names that clients look for."""
        tokens = self.context_length()
        size = {"context_length": tokens, "max_model_len": tokens}
        return {"id": name, "object": "model", "created": 0, "owned_by": "instar", **size}

    async def status(self, request: Request) -> Response:
        self.keys.caller(request)
        alive = await self.engine.healthy()
        return JSONResponse(await asyncio.to_thread(self._status, alive))

    def _status(self, engine_alive: bool) -> dict[str, Any]:
        counts = self.store.counts()
        newest = next(iter(self.store.updates(limit=1)), None)
        beats = self.store.heartbeats()
        return {
            "active_version": self.store.active_version(),
            "served_version": self.versions.current,
            "waiting_version": waiting_version(self.store.decisions()),
            "problem": self.versions.problem,
            "model": self.settings.model,
            "loops": self._loops(engine_alive, beats),
            "training": {
                "enabled": self.settings.train.enabled,
                "mode": in_words(self.settings.train),
                "later": beats.get("trainer", {}).get("later"),
                "method": self.settings.train.method,
                "waiting": counts["waiting"]["trainable"],
                "batch_size": self.settings.train.batch_size,
                "running": newest is not None and newest.status == "running",
                "updates": counts["published"],
                "last": asdict(newest) if newest else None,
                "reasons": counts.get("reasons", {}),
                "fidelity": summary(self.store.get_state(FIDELITY)),
            },
            "counts": counts,
            "judge": {
                "agreement": self._agreement(),
                "own_ratings": beats.get("judge", {}).get("own_ratings", {}),
            },
        }

    def _agreement(self) -> dict[str, dict[str, Any]]:
        """How those who read reactions agree with the user's own ratings, where both have judged a turn."""
        return {
            link: {**found, "share": found["agree"] / found["turns"]}
            for link, found in self.store.agreement().items()
        }

    def _loops(self, engine_alive: bool, beats: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        known = self.processes()
        names = ["gateway", "engine", "judge", "trainer"]
        loops = {name: {**known.get(name, {}), **beats.get(name, {})} for name in names}
        loops["gateway"]["alive"] = True
        loops["engine"]["alive"] = engine_alive
        return loops

    async def turns(self, request: Request) -> Response:
        self.keys.caller(request)
        query = request.query_params
        limit = _whole_number(query.get("limit", "100"), "limit", 1, MAX_PAGE)
        before = query.get("before")
        if before is not None and not re.fullmatch(TURN_ID, before):
            raise RequestError("before must be the id of a turn.", param="before")
        session = query.get("session")
        views = await asyncio.to_thread(
            self.store.turn_views,
            session_id=None if session is None else clean_session_id(session),
            limit=limit,
            before=before,
        )
        return JSONResponse({"object": "list", "data": views})

    async def feedback(self, request: Request) -> Response:
        self.keys.caller(request)
        body = await read(request, FeedbackBody, self.settings.max_body_bytes)
        if await asyncio.to_thread(self.store.turn, body.turn) is None:
            raise RequestError(
                f"There is no turn {body.turn!r}. Use the `id` of a response, or its header x-instar-turn.",
                status=404,
                code="turn_not_found",
                param="turn",
            )
        score = -1 if body.score is None and body.correction is not None else body.score
        state = NextState(
            turn_id=body.turn,
            kind=NextKind.FEEDBACK,
            text=body.comment or "",
            created_at=self.clock.now(),
            score=score,
            correction=body.correction,
        )
        reason = await asyncio.to_thread(self.store.add_feedback, state)
        why = None if reason is None else REASONS.get(reason, reason)
        return JSONResponse({"turn": body.turn, "recorded": True, "learnable": reason is None, "why": why})


def _whole_number(text: str, name: str, least: int, most: int) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10 and least <= int(text) <= most):
        raise RequestError(f"{name} must be a whole number from {least} to {most}.", param=name)
    return int(text)
