"""What a client asked for, whichever API it came through."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from instar.records import Message, Sampling

ToolChoice = Literal["auto", "none", "required"] | dict[str, str]
"""A dict names the one function to call: `{"name": …}`."""


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
    tools: list[Any] | None = None
    tool_choice: ToolChoice = "auto"
    parallel_tool_calls: bool = True
    response_schema: dict[str, Any] | None = None
    """JSON schema that the whole answer must obey; `{"type": "object"}` for any JSON object. `"x-guidance": {"lenient":
    true}` in it leaves keywords that cannot be enforced to the model; without it they are refused."""
    params: dict[str, Any] = field(default_factory=dict)
