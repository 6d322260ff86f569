"""What a surface asks of the flow, whichever API it speaks, and the events that it gets in return."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from instar.answers import CallPart, Shown, Thought
from instar.flow.constraint import ToolChoice
from instar.flow.kinds import Hints
from instar.records import Message, Sampling, Turn


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """What a client asked for, whichever API it came through. `version` None means the current one."""

    messages: list[Message]
    sampling: Sampling
    n: int = 1
    version: str | None = None
    learn: bool = True
    side: bool = False
    session_id: str | None = None
    hints: Hints = field(default_factory=Hints)
    tools: list[Any] | None = None
    tool_choice: ToolChoice = "auto"
    parallel_tool_calls: bool = True
    response_schema: dict[str, Any] | None = None
    """JSON schema that the whole answer must obey; `{"type": "object"}` for any JSON object. `"x-guidance": {"lenient":
    true}` in it leaves keywords that cannot be enforced to the model; without it they are refused."""
    prompt_ids: list[int] | None = None
    """Ids that are continued as they are, in place of `messages`, which then say the same in words for the record."""
    params: dict[str, Any] = field(default_factory=dict)

    @property
    def offered(self) -> list[Any] | None:
        """The tools that the model is told of."""
        return self.tools or None if self.tool_choice != "none" else None


@dataclass(frozen=True, slots=True)
class Piece:
    """Some of one choice, with the tokens that make it. What is shown may lag behind tokens.

    `shown` has text, thoughts and calls in the order in which they came; `text`, `reasoning` and `calls` are each of
    them alone.
    """

    choice: int
    shown: Shown
    ids: list[int]
    logprobs: list[float]
    top: list[list[tuple[int, float]]] | None = None

    @property
    def text(self) -> str:
        """What the user is to read."""
        return "".join(part for part in self.shown if isinstance(part, str))

    @property
    def reasoning(self) -> str:
        """What the model thought aloud."""
        return "".join(part.text for part in self.shown if isinstance(part, Thought))

    @property
    def calls(self) -> tuple[CallPart, ...]:
        return tuple(part for part in self.shown if isinstance(part, CallPart))


@dataclass(frozen=True, slots=True)
class Ended:
    """A choice is complete and, on receipt of this, durably recorded.

    `message` is the answer in OpenAI's shape: role, content, and reasoning_content and tool_calls where there are any.
    `finish_reason` is stop, length or tool_calls; `stop_string` the one of the client's that ended it.
    """

    choice: int
    finish_reason: str
    response_tokens: int
    message: Message
    stop_string: str | None = None

    @property
    def text(self) -> str:
        return self.message.get("content") or ""


@dataclass(frozen=True, slots=True)
class Serving:
    """A request that was accepted: its turns (one per choice) are open, sampling may begin.

    `ended` holds the ids of turns that were closed, however they ended.
    """

    request: ChatRequest
    turns: list[Turn]
    prompt_ids: list[int]
    version: str
    ended: set[str] = field(default_factory=set)
