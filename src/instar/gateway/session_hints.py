"""What a request says of its session and of itself in headers and fields, the same for every API.

The names are those that clients really send (docs/clients.md lists them). None of them is trusted with more than to
tell conversations apart under one key.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from instar.flow.kinds import Hints
from instar.gateway.keys import PROXY
from instar.records import Caller

CHAT_HEADERS = ("x-openwebui-chat-id", "x-conversation-id")
"""Ids of a chat window, in which a person may edit what was said."""
SESSION_HEADERS = (
    "x-session-id", "x-session-affinity", "session_id", "session-id", "x-claude-code-session-id",
    "x-litellm-session-id", *CHAT_HEADERS,
)  # fmt: skip
SESSION_FIELDS = ("session_id", "litellm_session_id")
METADATA_FIELDS = ("session_id", "litellm_session_id", "conversation_id")
SHARED_FIELD = "prompt_cache_key"
"""The last to be believed: agents put their session there, others one key for all their conversations."""

_NO_ID = {"", "null", "none", "undefined", "new"}
"""What clients send where a conversation has no id yet."""
_YES = {"1", "true", "yes", "on"}
_MAX_USER = 200


@dataclass(frozen=True, slots=True)
class SessionHints:
    """What goes into a ChatRequest under the same names."""

    session_id: str | None = None
    side: bool = False
    hints: Hints = field(default_factory=Hints)


def session_hints(headers: Mapping[str, str], body: Mapping[str, Any]) -> SessionHints:
    """`headers` by lower-case name, `body` as it was sent. Values of a wrong type are passed over."""
    source, session = _session(headers, body)
    turn_type = headers.get("x-turn-type", "").strip().lower()
    return SessionHints(
        session,
        side=turn_type == "side",
        hints=Hints(
            main=turn_type == "main",
            done=headers.get("x-session-done", "").strip().lower() in _YES,
            again=headers.get("x-stainless-retry-count", "0").strip() not in {"", "0"},
            shared_id=source == SHARED_FIELD,
            chat_id=source in CHAT_HEADERS,
        ),
    )


def speaker(caller: Caller, user: Any) -> Caller:
    """Who speaks: whoever the key belongs to; behind a proxy's key, the person that its field `user` names."""
    if caller.role != PROXY or not isinstance(user, str) or not user.strip():
        return caller
    name = user.strip()
    if not name.isprintable() or len(name) > _MAX_USER:
        name = "sha256-" + hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    return replace(caller, learner=f"{caller.learner}/{name}")


def _session(headers: Mapping[str, str], body: Mapping[str, Any]) -> tuple[str, str | None]:
    """Name of the header or field, and the id in it."""
    metadata = body.get("metadata")
    nested = metadata if isinstance(metadata, Mapping) else {}
    found = [
        *((name, headers.get(name)) for name in SESSION_HEADERS),
        *((name, body.get(name)) for name in SESSION_FIELDS),
        *((name, nested.get(name)) for name in METADATA_FIELDS),
        (SHARED_FIELD, body.get(SHARED_FIELD)),
    ]
    return next(((name, value) for name, value in found if _is_id(value)), ("", None))


def _is_id(value: Any) -> bool:
    return isinstance(value, str) and value.strip().lower() not in _NO_ID and not value.startswith("{{")
