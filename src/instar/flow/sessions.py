"""Where a request belongs: its session, the turn it continues, and what it says about earlier turns.

Order of evidence: an explicit session id; else the longest stored history that this request begins with. If that
history was served in several sessions, nothing is guessed: the turn is marked `ambiguous_session`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from instar.flow.conversation import prefix_hashes, reply_after
from instar.ports import Store
from instar.records import Caller, Kind, Message, NextKind, NextState, Turn, TurnStatus
from instar.runtime import new_id

AMBIGUOUS = "ambiguous_session"
_MAX_ID = 200


@dataclass(frozen=True, slots=True)
class Place:
    """Where a request belongs.

    `served` maps the index of a message to the turn that sampled it. `says` are the next states that the
    request carries for earlier turns; `by_turn_id` of each is the turn that is being placed.
    """

    session_id: str
    episode_id: str | None
    parent: Turn | None
    kind: Kind
    request_hash: str
    served: dict[int, Turn] = field(default_factory=dict)
    says: list[NextState] = field(default_factory=list)
    reason: str | None = None


def clean_session_id(raw: str) -> str:
    """A client's session id, safe to store and to log: long or unprintable ones are replaced by a hash."""
    if raw.isprintable() and len(raw) <= _MAX_ID:
        return raw
    return "sha256-" + hashlib.sha256(raw.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def place(
    store: Store,
    caller: Caller,
    messages: Sequence[Message],
    *,
    turn_id: str,
    now: float,
    explicit_session: str | None = None,
    side: bool = False,
) -> Place:
    """Read the store (never write) and say where this request belongs."""
    hashes = prefix_hashes(messages)
    session = clean_session_id(explicit_session) if explicit_session else None
    kind = _kind(messages, side)
    ends = {hashes[i]: i for i, m in enumerate(messages) if m.get("role") == "assistant"}
    found = store.find_by_context(caller.key_id, list(ends), session) if ends else []
    longest = max((ends[t.context_hash] for t in found if t.context_hash), default=None)
    parents = [t for t in found if t.context_hash == hashes[longest]] if longest is not None else []
    if session is None and len({t.session_id for t in parents}) > 1:
        return Place(new_id("sess"), None, None, kind, hashes[-1], reason=AMBIGUOUS)
    parent = parents[0] if parents else None
    session_id = session or (parent.session_id if parent else new_id("sess"))
    served = {
        ends[t.context_hash]: t for t in reversed(found) if t.context_hash and t.session_id == session_id
    }
    says: list[NextState] = []
    if kind is not Kind.SIDE:
        says = _says(store, caller, messages, parent, longest, turn_id, now)
        if parent or session:
            says += _regenerates(store, caller, session_id, hashes[-1], turn_id, now)
    episode = parent.episode_id if parent and kind is Kind.TOOL_STEP else None
    return Place(session_id, episode, parent, kind, hashes[-1], served, says)


def _kind(messages: Sequence[Message], side: bool) -> Kind:
    if side:
        return Kind.SIDE
    return Kind.TOOL_STEP if messages[-1].get("role") in {"tool", "function"} else Kind.MAIN


def _says(
    store: Store,
    caller: Caller,
    messages: Sequence[Message],
    parent: Turn | None,
    index: int | None,
    turn_id: str,
    now: float,
) -> list[NextState]:
    """Tool results go to the step that asked for them; the user's reply to every step of the episode."""
    if parent is None or index is None or parent.kind is Kind.SIDE:
        return []
    tools, reply = reply_after(messages, index)
    state = _state_maker(now, turn_id)
    says = [state(parent.id, NextKind.TOOL_RESULT, text) for text in tools]
    if reply is not None and reply.strip():
        steps = _ancestry(store.episode(parent.episode_id), parent)
        says += [state(step.id, NextKind.USER_REPLY, reply) for step in steps]
    return says


def _state_maker(now: float, turn_id: str) -> Callable[[str, NextKind, str], NextState]:
    return lambda target, kind, text: NextState(target, kind, text, created_at=now, by_turn_id=turn_id)


def _ancestry(episode: Sequence[Turn], last: Turn) -> list[Turn]:
    """The steps of an episode that led to its last one; answers on other branches heard no reply."""
    by_id = {turn.id: turn for turn in episode}
    steps = [last]
    while steps[-1].parent_id in by_id and steps[-1].id != last.episode_id:
        steps.append(by_id[steps[-1].parent_id or ""])
    return steps


def _regenerates(
    store: Store, caller: Caller, session_id: str, request_hash: str, turn_id: str, now: float
) -> list[NextState]:
    """Asking the very same again, after an answer that was delivered, says that it was not wanted."""
    for turn in store.find_by_request(caller.key_id, session_id, request_hash):
        if turn.status is TurnStatus.DONE and turn.kind is not Kind.SIDE:
            return [NextState(turn.id, NextKind.REGENERATE, "", created_at=now, by_turn_id=turn_id)]
    return []
