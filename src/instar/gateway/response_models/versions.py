"""Versions and what is done with them."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel

from instar.gateway.response_models.common import WallSeconds


class Version(BaseModel):
    """Beside these, what the version's manifest says; `damaged` in its place where that cannot be read."""

    name: str
    parent: str | None
    created_at: WallSeconds | None
    state: str
    state_why: str
    active: bool
    activated_at: WallSeconds | None
    damaged: str | None = None


class VersionList(BaseModel):
    object: Literal["list"]
    data: list[Version]


class LearnedFrom(BaseModel):
    turns: int
    good: int
    bad: int
    sessions: int
    hints: list[str]


class Event(BaseModel):
    at: WallSeconds
    what: str
    why: str


class VersionStory(Version):
    children: list[str]
    learned_from: LearnedFrom
    history: list[Event]


class Activated(BaseModel):
    active_version: str
    before: str | None


class RolledBack(Activated):
    reason: str


class Rejected(BaseModel):
    rejected: str
    active_version: str | None
