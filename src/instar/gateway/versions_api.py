"""Versions over HTTP: what there is, why, and which one is to serve."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from instar.config import Settings
from instar.errors import ArtifactError, RequestError
from instar.flow.story import history_of, is_rejected, learned_from, state_of, waiting_version
from instar.gateway import response_models as models
from instar.gateway.bodies import parse, read_body
from instar.gateway.keys import KeyRing
from instar.gateway.openapi import add_get, add_post
from instar.gateway.schemas import RollbackBody
from instar.gateway.versions import VersionKeeper
from instar.ports import Registry, Store
from instar.records import BASE, Decision, Fate

MAX_LINES = 1000
"""Of the history of activations."""


@dataclass(slots=True)
class VersionsApi:
    """Routes under `/v1/versions`."""

    store: Store
    registry: Registry
    versions: VersionKeeper
    keys: KeyRing
    settings: Settings
    router: APIRouter = field(default_factory=APIRouter)

    def __post_init__(self) -> None:
        add_get(self.router, "/v1/versions", self.list_versions, "Versions, newest first", models.VersionList)
        about = "One version: lineage, gate, history"
        add_get(self.router, "/v1/versions/{version}", self.version, about, models.VersionStory)
        for verb, route, summary, answer in (
            ("activate", self.activate, "Serve this version from now on", models.Activated),
            ("approve", self.approve, "Let a version serve that waits for a person", models.Activated),
            ("reject", self.reject, "Never let a version serve that waits for a person", models.Rejected),
        ):
            add_post(self.router, f"/v1/versions/{{version}}/{verb}", route, summary, answer)
        no_version = {404: {"description": "There is no such version"}}
        add_post(
            self.router,
            "/v1/versions/rollback",
            self.roll_back,
            "Take the version in force back: serve its parent, or the one named",
            models.RolledBack,
            RollbackBody,
            responses=no_version,
        )

    async def list_versions(self, request: Request) -> Response:
        self.keys.caller(request)
        return JSONResponse({"object": "list", "data": await asyncio.to_thread(self._versions)})

    def _versions(self) -> list[dict[str, Any]]:
        active = self.store.active_version()
        decisions = self.store.decisions()
        activated: dict[str, float] = {}
        for line in self.store.activations(limit=MAX_LINES):
            activated.setdefault(line.version, line.created_at)
        base = {"name": BASE, "parent": None, "created_at": None, "note": "the untouched model"}
        rows = [base, *(_version_row(self.registry, v) for v in self.registry.versions())]
        return [
            {
                **row,
                **_state(row, active, decisions),
                "active": row["name"] == active,
                "activated_at": activated.get(row["name"]),
            }
            for row in reversed(rows)
        ]

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
        activations = self.store.activations(limit=MAX_LINES)
        return {
            "children": [r["name"] for r in reversed(rows) if r.get("parent") == row["name"]],
            "learned_from": learned_from(views),
            "history": history_of(row["name"], activations, self.store.decisions()),
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
        to = body.to
        if to is None:
            to = await asyncio.to_thread(self._parent, current)
        await self._check_there(to)
        if to == current:
            raise RequestError(f"{to} is the version that is served now.", status=409, param="to")
        reason = body.reason or f"{current} was taken back by hand."
        await self.versions.activate(to, reason, fate=Fate.ROLLED_BACK, about=current)
        return JSONResponse({"active_version": to, "before": current, "reason": reason})

    def _parent(self, version: str) -> str:
        """By its manifest, or, where that is lost, by the update that made it: a damaged version must be left, too."""
        try:
            return self.registry.manifest(version).parent
        except ArtifactError as error:
            parent = self.store.parents().get(version)
            if parent is None:
                message = f"{error} It is not known what {version} came from: name the version to go back to."
                raise RequestError(message, status=409, param="to") from error
            return parent

    async def approve(self, request: Request, version: str) -> Response:
        self.keys.caller(request)
        await self._check_waits(version)
        await self._check_there(version)
        before = self.versions.current
        await self.versions.activate(version, reason="A person approved it.", fate=Fate.APPROVED)
        return JSONResponse({"active_version": version, "before": before})

    async def reject(self, request: Request, version: str) -> Response:
        self.keys.caller(request)
        await self._check_waits(version)
        await asyncio.to_thread(self.store.decide, version, Fate.REJECTED, "A person rejected it.")
        return JSONResponse({"rejected": version, "active_version": self.versions.current})

    async def _check_waits(self, version: str) -> None:
        """One that waits may have lost its folder: it must be possible to reject it, or training waits for ever."""
        if waiting_version(await asyncio.to_thread(self.store.decisions)) != version:
            await self._check_there(version)
            raise RequestError(f"{version} does not wait for approval.", status=409, code="not_waiting")


def servable(registry: Registry, store: Store) -> list[str]:
    """Versions that a client may name: damaged ones answer for themselves, refused ones are not offered, be it that
    the gate or a person refused them."""
    rows = (_version_row(registry, name) for name in registry.versions())
    passed = [r["name"] for r in rows if (r.get("gate") or {}).get("passed") is not False]
    decisions = store.decisions()
    return [name for name in passed if not is_rejected(name, decisions)]


def _version_row(registry: Registry, version: str) -> dict[str, Any]:
    try:
        manifest = registry.manifest(version)
    except ArtifactError as error:
        return {"name": version, "parent": None, "created_at": None, "damaged": str(error)}
    return asdict(manifest)


def _state(row: dict[str, Any], active: str, decisions: Sequence[Decision]) -> dict[str, str]:
    state, why = state_of(row["name"], active, row.get("gate") or {}, decisions)
    return {"state": state, "state_why": why}


def _no_version(version: str) -> RequestError:
    return RequestError(
        f"There is no version {version[:40]!r}. `instar versions list` shows what is there.",
        status=404,
        code="version_not_found",
    )
