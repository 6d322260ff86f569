"""What is said: requests, the turns that answer them, and what follows."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

Message = dict[str, Any]
"""One chat message as the client sent it: role, content, and what else came along."""


class Kind(StrEnum):
    """What a model step is within its conversation."""

    MAIN = "main"  # answers a user's message
    TOOL_STEP = "tool_step"  # goes on after tool results
    RETRY = "retry"  # either of them again, since the client has no answer to the first try
    SIDE = "side"  # titles, summaries, heartbeats: never feedback, never learned from


class TurnStatus(StrEnum):
    OPEN = "open"  # being sampled
    DONE = "done"  # recorded and acknowledged
    CANCELLED = "cancelled"  # the client left before the end
    FAILED = "failed"  # the engine failed, or the server died in mid-answer


class NextKind(StrEnum):
    """What followed a model step."""

    USER_REPLY = "user_reply"
    TOOL_RESULT = "tool_result"
    REGENERATE = "regenerate"
    EDIT = "edit"
    FEEDBACK = "feedback"  # POST /v1/feedback


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sent a request: found from the API key, never from a header."""

    key_id: str
    learner: str
    role: str = "user"


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to sample one answer. `temperature` 0 is greedy; `max_tokens` counts response tokens.

    `grammar` is what the answer must obey, as the wire contract's `structured_outputs`; None: it is free.
    """

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    top_logprobs: int = 0
    grammar: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Turn:
    """One model step: what was asked, what was sampled, under which version.

    `context_hash` identifies the conversation up to and including this answer; a later request whose history
    hashes to the same value continues it. `request_hash` identifies the conversation up to, without, it.

    `tools` are those that the model was told of. `forced` says of each response token whether a grammar decided it;
    empty where the answer was free.
    """

    id: str
    session_id: str
    episode_id: str
    parent_id: str | None
    key_id: str
    learner: str
    kind: Kind
    version: str
    pinned: bool
    messages: list[Message]
    request_hash: str
    created_at: float
    learn: bool = True
    reason: str | None = None
    choice: int = 0
    params: dict[str, Any] = field(default_factory=dict)
    status: TurnStatus = TurnStatus.OPEN
    prompt_ids: list[int] = field(default_factory=list)
    response_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    forced: list[bool] = field(default_factory=list)
    tools: list[Any] = field(default_factory=list)
    answer: Message | None = None
    context_hash: str | None = None
    finish_reason: str | None = None
    closed_at: float | None = None

    @property
    def was_cut(self) -> bool:
        """The token limit ended the answer: never a +1, trains no stop token."""
        return self.finish_reason == "length"


@dataclass(frozen=True, slots=True)
class TurnOutcome:
    """What is known of a turn once sampling ended; written in one commit before the client's last byte.

    `learn`/`reason` are given only when the ending itself decides against learning.
    """

    status: TurnStatus
    prompt_ids: list[int]
    response_ids: list[int]
    logprobs: list[float]
    answer: Message | None
    context_hash: str | None
    finish_reason: str | None
    closed_at: float
    reason: str | None = None
    forced: list[bool] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class NextState:
    """What followed a turn. `by_turn_id` is the turn whose request carried it, where there is one.

    `score`, `correction` are given for explicit feedback only; `text` is the user's or the tool's own words.
    """

    turn_id: str
    kind: NextKind
    text: str
    created_at: float
    by_turn_id: str | None = None
    score: int | None = None
    correction: str | None = None
