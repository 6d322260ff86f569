"""Health, models, status, turns and feedback."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from instar.gateway.response_models.common import Fact, WallSeconds


class Alive(BaseModel):
    status: Literal["ok"]


class Readiness(BaseModel):
    status: Literal["ready", "starting"]
    version: str | None = None


class Model(BaseModel):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    context_length: Annotated[int, Field(description="Tokens of prompt and answer together")]
    max_model_len: Annotated[int, Field(description="The same by another name that clients look for")]


class ModelList(BaseModel):
    object: Literal["list"]
    data: list[Model]


class Loops(BaseModel):
    gateway: Fact
    engine: Fact
    judge: Fact
    trainer: Fact


class Training(BaseModel):
    enabled: bool
    mode: Annotated[str, Field(description="When an update may start, in words")]
    later: Annotated[str | None, Field(description="What the mode waits for now")]
    method: str
    waiting: int
    batch_size: int
    running: bool
    updates: int
    last: Fact | None
    reasons: dict[str, int]
    fidelity: Annotated[Fact | None, Field(description="How far engine and trainer disagree on log-probs")]


class Counts(BaseModel):
    turns: dict[str, int]
    judged: dict[str, int]
    waiting: dict[str, int]
    used: int
    published: Annotated[int, Field(description="Updates whose version has served")]
    reasons: dict[str, int]


class Judging(BaseModel):
    agreement: dict[str, Fact]
    own_ratings: Fact


class Status(BaseModel):
    active_version: str
    served_version: str | None
    waiting_version: str | None
    problem: str | None
    model: str
    loops: Loops
    training: Training
    counts: Counts
    judge: Judging


class Followed(BaseModel):
    kind: Literal["user_reply", "tool_result", "regenerate", "edit", "feedback"]
    text: str


class TurnView(BaseModel):
    id: str
    session_id: str
    episode_id: str
    parent_id: str | None
    kind: Literal["main", "tool_step", "retry", "side"]
    version: str
    status: Literal["open", "done", "cancelled", "failed"]
    finish_reason: str | None
    created_at: WallSeconds
    prompt_tokens: int
    response_tokens: int
    question: str
    answer: str
    next_states: list[Followed]
    score: int | None
    votes: Any
    link: str | None
    hint: str | None
    why: str | None
    learned: bool
    updates: list[str]
    reason: Annotated[str | None, Field(description="Why it is never learned from; null while it may be")]
    recognised: Annotated[
        str | None, Field(description="What told the kind, where that is not plainly conversation")
    ]
    kind_why: Annotated[str, Field(description="The same in words")]


class TurnList(BaseModel):
    object: Literal["list"]
    data: list[TurnView]


class FeedbackTaken(BaseModel):
    turn: str
    recorded: Literal[True]
    learnable: Annotated[
        bool, Field(description="Whether it may still be learned from; it is your verdict anyway")
    ]
    why: Annotated[str | None, Field(description="Why not, in words")]
