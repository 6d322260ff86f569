"""What clients get, for the OpenAPI document. Nothing is built from these: tests hold real answers against them.

The Responses API and Anthropic's have theirs in packages of their own.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

Fact = dict[str, Any]
WallSeconds = Annotated[float, Field(description="Seconds since 1970-01-01 UTC")]


class ErrorObject(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class Error(BaseModel):
    """Every answer with a status of 400 or more, and the last event of a stream that could not be ended."""

    error: ErrorObject


class AnthropicErrorObject(BaseModel):
    type: str
    message: str


class AnthropicError(BaseModel):
    """The same under `/v1/messages`; in a stream it is the event `error`."""

    type: Literal["error"]
    error: AnthropicErrorObject


class TokenLogprob(BaseModel):
    token: str
    logprob: float
    bytes: list[int] | None


class ContentLogprob(TokenLogprob):
    top_logprobs: list[TokenLogprob]


class Logprobs(BaseModel):
    content: list[ContentLogprob] | None
    refusal: None


class AnswerMessage(BaseModel):
    role: Literal["assistant"]
    content: str | None
    refusal: str | None
    reasoning_content: str | None = None
    tool_calls: list[Fact] | None = None


class ChatChoice(BaseModel):
    index: Annotated[int, Field(ge=0)]
    message: AnswerMessage
    logprobs: Logprobs | None
    finish_reason: Literal["stop", "length", "tool_calls"]


class Usage(BaseModel):
    prompt_tokens: Annotated[int, Field(ge=0)]
    completion_tokens: Annotated[int, Field(ge=0)]
    total_tokens: Annotated[int, Field(ge=0)]


class ChatCompletion(BaseModel):
    id: Annotated[str, Field(description="The turn's id, for `POST /v1/feedback`")]
    object: Literal["chat.completion"]
    created: int
    model: str
    system_fingerprint: Annotated[str, Field(description="The version that answered")]
    choices: Annotated[list[ChatChoice], Field(min_length=1)]
    usage: Usage


class Delta(BaseModel):
    role: Literal["assistant"] | None = None
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[Fact] | None = None


class ChunkChoice(BaseModel):
    index: Annotated[int, Field(ge=0)]
    delta: Delta
    logprobs: Logprobs | None
    finish_reason: Literal["stop", "length", "tool_calls"] | None


class ChatChunk(BaseModel):
    """One event of a stream; the last one but `[DONE]` has the usage, where that was asked for, and no choices."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChunkChoice]
    usage: Usage | None = None


class TokenLists(BaseModel):
    """Parallel lists, one entry a token."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class TextChoice(BaseModel):
    index: Annotated[int, Field(ge=0)]
    text: str
    logprobs: TokenLists | None
    finish_reason: Literal["stop", "length"] | None


class TextChunk(BaseModel):
    """One event of a stream; the last one but `[DONE]` has the usage, where that was asked for, and no choices."""

    id: Annotated[str, Field(description="The turn's id, for `POST /v1/feedback`")]
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: Annotated[str, Field(description="The version that answered")]
    choices: list[TextChoice]
    usage: Usage | None = None


class TextCompletion(TextChunk):
    """A whole answer."""

    choices: Annotated[list[TextChoice], Field(min_length=1)]
    usage: Usage


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
    kind: Literal["main", "tool_step", "side"]
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


class TurnList(BaseModel):
    object: Literal["list"]
    data: list[TurnView]


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


class FeedbackTaken(BaseModel):
    turn: str
    recorded: Literal[True]
