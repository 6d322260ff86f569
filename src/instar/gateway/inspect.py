"""To look inside and to steer: status, turns, versions, feedback, models."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from fastapi import APIRouter, Request
from pydantic import BaseModel
from starlette.responses import JSONResponse, Response

from instar.config import Settings
from instar.errors import ArtifactError, RequestError
from instar.flow.story import learned_from, state_of, waiting_version
from instar.gateway import response_models as models
from instar.gateway.asking import version_of
from instar.gateway.guard import KeyRing, parse, read_body
from instar.gateway.openapi import request_body
from instar.gateway.schemas import FeedbackBody, RollbackBody
from instar.gateway.versions import VersionKeeper
from instar.ports import Engine, Registry, Store
from instar.records import BASE, Decision, Fate, NextKind, NextState
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
    """Routes that print facts. `processes` tells, per loop, pid and restarts; `context_length` counts tokens."""

    store: Store
    registry: Registry
    engine: Engine
    versions: VersionKeeper
    keys: KeyRing
    settings: Settings
    clock: Clock
    context_length: int
    processes: Callable[[], dict[str, dict[str, Any]]]
    router: APIRouter = field(default_factory=APIRouter)

    def __post_init__(self) -> None:
        self._add_models()
        self._add_learning()
        self._add_versions()

    def _add_models(self) -> None:
        self._get("/health", self.health, "The gateway is alive", models.Alive)
        starting = {503: {"model": models.Readiness, "description": "The engine is still starting"}}
        self._get("/ready", self.ready, "A model can be talked to", models.Readiness, responses=starting)
        self._get("/v1/models", self.models, "Models and versions by name", models.ModelList)
        self._get("/v1/models/{model}", self.model, "One model", models.Model)

    def _add_learning(self) -> None:
        self._get("/v1/status", self.status, "The four loops and the learning", models.Status)
        page = {"parameters": _TURN_PARAMETERS}
        about = "Recorded turns, newest first"
        self._get("/v1/turns", self.turns, about, models.TurnList, openapi_extra=page)
        no_turn = {404: {"model": models.Error, "description": "There is no such turn"}}
        self._post(
            "/v1/feedback",
            self.feedback,
            "Judge an answer yourself",
            models.FeedbackTaken,
            FeedbackBody,
            responses=no_turn,
        )

    def _add_versions(self) -> None:
        self._get("/v1/versions", self.list_versions, "Versions, newest first", models.VersionList)
        about = "One version: lineage, gate, history"
        self._get("/v1/versions/{version}", self.version, about, models.VersionStory)
        for verb, route, summary, answer in (
            ("activate", self.activate, "Serve this version from now on", models.Activated),
            ("approve", self.approve, "Let a version serve that waits for a person", models.Activated),
            ("reject", self.reject, "Never let a version serve that waits for a person", models.Rejected),
        ):
            self._post(f"/v1/versions/{{version}}/{verb}", route, summary, answer)
        no_version = {404: {"model": models.Error, "description": "There is no such version"}}
        self._post(
            "/v1/versions/rollback",
            self.roll_back,
            "Take the version in force back: serve its parent, or the one named",
            models.RolledBack,
            RollbackBody,
            responses=no_version,
        )

    def _get(
        self, path: str, route: Callable[..., Any], summary: str, answer: type[BaseModel], **more: Any
    ) -> None:
        self.router.add_api_route(
            path, route, methods=["GET"], summary=summary, response_model=answer, **more
        )

    def _post(
        self,
        path: str,
        route: Callable[..., Any],
        summary: str,
        answer: type[BaseModel],
        body: type[BaseModel] | None = None,
        **more: Any,
    ) -> None:
        if body is not None:
            more["openapi_extra"] = {"requestBody": request_body(body)}
        self.router.add_api_route(
            path, route, methods=["POST"], summary=summary, response_model=answer, **more
        )

    async def health(self) -> Response:
        return JSONResponse({"status": "ok"})

    async def ready(self) -> Response:
        if self.versions.ready:
            return JSONResponse({"status": "ready", "version": self.versions.current})
        return JSONResponse({"status": "starting"}, status_code=503, headers={"retry-after": "1"})

    async def models(self, request: Request) -> Response:
        self.keys.caller(request)
        name = self.settings.served_name
        versions = await asyncio.to_thread(self._servable)
        names = [name, f"{name}@{BASE}", *(f"{name}@{v}" for v in versions)]
        return JSONResponse({"object": "list", "data": [self._model(n) for n in names]})

    async def model(self, request: Request, model: str) -> Response:
        self.keys.caller(request)
        version = version_of(model, self.settings.served_name)
        if version not in (None, BASE, *await asyncio.to_thread(self._servable)):
            raise RequestError(f"There is no version {version}.", status=404, code="model_not_found")
        return JSONResponse(self._model(model))

    def _model(self, name: str) -> dict[str, Any]:
        """OpenAI's object, and the context under both names that clients look for."""
        size = {"context_length": self.context_length, "max_model_len": self.context_length}
        return {"id": name, "object": "model", "created": 0, "owned_by": "instar", **size}

    async def status(self, request: Request) -> Response:
        self.keys.caller(request)
        alive = await self.engine.healthy()
        return JSONResponse(await asyncio.to_thread(self._status, alive))

    def _status(self, engine_alive: bool) -> dict[str, Any]:
        counts = self.store.counts()
        updates = self.store.updates(limit=20)
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
                "method": self.settings.train.method,
                "waiting": counts["waiting"]["trainable"],
                "batch_size": self.settings.train.batch_size,
                "running": any(u.status == "running" for u in updates),
                "updates": sum(u.status == "proposed" for u in updates),
                "last": asdict(updates[0]) if updates else None,
                "reasons": counts.get("reasons", {}),
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
        views = await asyncio.to_thread(
            self.store.turn_views, session_id=query.get("session"), limit=limit, before=before
        )
        return JSONResponse({"object": "list", "data": views})

    async def list_versions(self, request: Request) -> Response:
        self.keys.caller(request)
        return JSONResponse({"object": "list", "data": await asyncio.to_thread(self._versions)})

    def _versions(self) -> list[dict[str, Any]]:
        active = self.store.active_version()
        decisions = self.store.decisions()
        activated: dict[str, float] = {}
        for line in self.store.activations(limit=MAX_PAGE):
            activated.setdefault(line.version, line.created_at)
        base = {"name": BASE, "parent": None, "created_at": None, "note": "the untouched model"}
        rows = [base, *(self._version_row(v) for v in self.registry.versions())]
        return [
            {
                **row,
                **_state(row, active, decisions),
                "active": row["name"] == active,
                "activated_at": activated.get(row["name"]),
            }
            for row in reversed(rows)
        ]

    def _servable(self) -> list[str]:
        """Versions that a client may name: damaged ones answer for themselves, refused ones are not offered."""
        rows = map(self._version_row, self.registry.versions())
        return [r["name"] for r in rows if (r.get("gate") or {}).get("passed") is not False]

    def _version_row(self, version: str) -> dict[str, Any]:
        try:
            manifest = self.registry.manifest(version)
        except ArtifactError as error:
            return {"name": version, "parent": None, "created_at": None, "damaged": str(error)}
        return asdict(manifest)

    async def version(self, request: Request, version: str) -> Response:
        self.keys.caller(request)
        rows = {row["name"]: row for row in await asyncio.to_thread(self._versions)}
        if version not in rows:
            raise _no_version(version)
        story = await asyncio.to_thread(self._story, rows[version], list(rows.values()))
        return JSONResponse({**rows[version], **story})

    def _story(self, row: dict[str, Any], rows: list[dict[str, Any]]) -> dict[str, Any]:
        """Lineage both ways, what it learned from, and its history, oldest first."""
        turn_ids = row.get("turn_ids") or []
        views = self.store.turn_views(turn_ids=turn_ids, limit=len(turn_ids)) if turn_ids else []
        served = [
            (a.version, a.created_at, "serves", a.reason) for a in self.store.activations(limit=MAX_PAGE)
        ]
        decided = [(d.version, d.created_at, d.fate.value, d.reason) for d in self.store.decisions()]
        lines = sorted((at, what, why) for name, at, what, why in [*served, *decided] if name == row["name"])
        return {
            "children": [r["name"] for r in reversed(rows) if r.get("parent") == row["name"]],
            "learned_from": learned_from(views),
            "history": [{"at": at, "what": what, "why": why} for at, what, why in lines],
        }

    async def activate(self, request: Request, version: str) -> Response:
        self.keys.caller(request)
        await self._check_there(version)
        before = self.versions.current
        await self.versions.activate(version, reason="asked for by hand")
        return JSONResponse({"active_version": version, "before": before})

    async def _check_there(self, version: str) -> None:
        if version not in (BASE, *await asyncio.to_thread(self.registry.versions)):
            raise _no_version(version)

    async def roll_back(self, request: Request) -> Response:
        self.keys.caller(request)
        body = parse(await read_body(request, self.settings.max_body_bytes) or b"{}", RollbackBody)
        current = await asyncio.to_thread(self.store.active_version)
        if current == BASE:
            raise RequestError("The untouched model is served: there is nothing to take back.", status=409)
        to = body.to or (await asyncio.to_thread(self.registry.manifest, current)).parent
        await self._check_there(to)
        if to == current:
            raise RequestError(f"{to} is the version that is served now.", status=409, param="to")
        reason = body.reason or f"{current} was taken back by hand."
        await self.versions.activate(to, reason, fate=Fate.ROLLED_BACK, about=current)
        return JSONResponse({"active_version": to, "before": current, "reason": reason})

    async def approve(self, request: Request, version: str) -> Response:
        self.keys.caller(request)
        await self._check_waits(version)
        before = self.versions.current
        await self.versions.activate(version, reason="A person approved it.", fate=Fate.APPROVED)
        return JSONResponse({"active_version": version, "before": before})

    async def reject(self, request: Request, version: str) -> Response:
        self.keys.caller(request)
        await self._check_waits(version)
        await asyncio.to_thread(self.store.decide, version, Fate.REJECTED, "A person rejected it.")
        return JSONResponse({"rejected": version, "active_version": self.versions.current})

    async def _check_waits(self, version: str) -> None:
        await self._check_there(version)
        if waiting_version(await asyncio.to_thread(self.store.decisions)) != version:
            raise RequestError(f"{version} does not wait for approval.", status=409, code="not_waiting")

    async def feedback(self, request: Request) -> Response:
        self.keys.caller(request)
        body = parse(await read_body(request, self.settings.max_body_bytes), FeedbackBody)
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
        await asyncio.to_thread(self.store.add_feedback, state)
        return JSONResponse({"turn": body.turn, "recorded": True})


def _state(row: dict[str, Any], active: str, decisions: Sequence[Decision]) -> dict[str, str]:
    state, why = state_of(row["name"], active, row.get("gate") or {}, decisions)
    return {"state": state, "state_why": why}


def _no_version(version: str) -> RequestError:
    return RequestError(
        f"There is no version {version[:40]!r}. `instar versions list` shows what is there.",
        status=404,
        code="version_not_found",
    )


def _whole_number(text: str, name: str, least: int, most: int) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10 and least <= int(text) <= most):
        raise RequestError(f"{name} must be a whole number from {least} to {most}.", param=name)
    return int(text)
