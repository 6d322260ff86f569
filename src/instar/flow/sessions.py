"""Where a request belongs: its session, the turn it continues, what it is, and what it says about earlier turns.

Order of evidence for the session: the id that the client sends; else the one in its Runtime line; else the longest
stored history that this request begins with. If that history was served in several sessions, nothing is guessed: the
turn is marked `ambiguous_session`. A history counts only if it was served under the same key to the same learner.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from instar.flow.conversation import (
    GENERATION,
    is_summed_up,
    last_answer,
    prefix_hashes,
    request_hash,
    runtime_session,
    same_message,
)
from instar.flow.kinds import Hints, What, recognise
from instar.flow.next_states import SESSION_DONE, Asked, next_states
from instar.ports import Store
from instar.records import Caller, Kind, Message, NextState, Turn, TurnStatus
from instar.runtime import new_id

AMBIGUOUS = "ambiguous_session"
_MAX_ID = 200
_OWN = "sess"
_GENERATIONS_BACK = 3


@dataclass(frozen=True, slots=True)
class Place:
    """Where a request belongs.

    `served` maps the index of a message to the turn that sampled it. `says` are the next states that the
    request carries for earlier turns; `by_turn_id` of each is the turn that is being placed. `reason` is why the
    turn is never learned from, if so.
    """

    session_id: str
    episode_id: str | None
    parent: Turn | None
    what: What
    request_hash: str
    served: dict[int, Turn] = field(default_factory=dict)
    says: list[NextState] = field(default_factory=list)
    reason: str | None = None

    @property
    def kind(self) -> Kind:
        return self.what.kind

    @property
    def notes(self) -> dict[str, str | bool]:
        """What is kept with the turn for readers: what it was recognised by, and why."""
        return {"recognised": self.what.name, "why": self.what.why} if self.what.name else {}


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
    tools: Sequence[Any] = (),
    hints: Hints | None = None,
) -> Place:
    """Read the store (never write) and say where this request belongs."""
    hints = hints or Hints()
    named = explicit_session or runtime_session(messages)
    session = clean_session_id(named) if named else None
    what = recognise(messages, session=session, has_tools=bool(tools), side=side, hints=hints)
    hashes = prefix_hashes(messages)
    asked = Asked(
        caller,
        messages,
        hashes,
        request_hash(hashes, messages),
        what,
        hints,
        turn_id,
        now,
        tools=tools,
        is_named=bool(explicit_session),
    )
    found = _History(store, asked, session).find()
    if found is None:
        return Place(new_id(_OWN), None, None, what, asked.request_hash, reason=what.reason or AMBIGUOUS)
    parent, index, served = found
    session_id = session or (parent.session_id if parent else new_id(_OWN))
    closed = parent is not None and bool(parent.params.get(SESSION_DONE))
    known = parent is not None or session is not None
    says = next_states(store, asked, session_id, parent, index) if known and not closed else []
    if index != last_answer(messages):
        parent = None  # an answer that is not ours stands between
    episode = parent.episode_id if parent and what.after_tools else None
    return Place(session_id, episode, parent, what, asked.request_hash, served, says, what.reason)


Found = tuple[Turn | None, int | None, dict[int, Turn]]
"""The turn that is continued, the index of its answer, and all our answers by index."""


@dataclass(frozen=True, slots=True)
class _History:
    """Looks for our answers in the history that a request carries."""

    store: Store
    asked: Asked
    session: str | None

    def find(self) -> Found | None:
        """None where several sessions are as likely."""
        messages = self.asked.messages
        ends = {self.asked.hashes[i]: i for i, m in enumerate(messages) if m.get("role") == "assistant"}
        if not ends:
            return None, None, {}
        turns = self._mine(self.store.find_by_context(self.asked.caller.key_id, list(ends), self.session))
        if self.session and not turns:
            turns = self._begun_unnamed(list(ends))
        if not turns:
            return self._by_last_answer(self.session, {}) or (None, None, {})
        longest = max(ends[t.context_hash or ""] for t in turns)
        parents = [t for t in turns if t.context_hash == self.asked.hashes[longest]]
        if self.session is None and len({t.session_id for t in parents}) > 1:
            return None
        where = parents[0].session_id
        served = {ends[t.context_hash or ""]: t for t in reversed(turns) if t.session_id == where}
        whole = longest == last_answer(messages)
        return (None if whole else self._by_last_answer(where, served)) or (parents[0], longest, served)

    def _mine(self, turns: Sequence[Turn]) -> list[Turn]:
        return [t for t in turns if t.learner == self.asked.caller.learner]

    def _begun_unnamed(self, ends: Sequence[str]) -> list[Turn]:
        """Some clients name a conversation only from its second request on."""
        turns = self._mine(self.store.find_by_context(self.asked.caller.key_id, ends))
        unnamed = [t for t in turns if t.session_id.startswith(f"{_OWN}_")]
        return unnamed if len({t.session_id for t in unnamed}) == 1 else []

    def _by_last_answer(self, session: str | None, served: dict[int, Turn]) -> Found | None:
        """The last answer of the session, if the history ends in it: what stands before may be left out, summed up,
        or written anew. Examples that a client puts before a conversation end in an answer as well. So where a name may
        stand for several conversations, an earlier answer of ours (`served`) or a summary must show which one it is;
        and only a summary shows that something came before a new name."""
        index = last_answer(self.asked.messages)
        if index is None or session is None:
            return None
        summed_up = is_summed_up(self.asked.messages[:index])
        if self.session and self.asked.may_be_shared and not (served or summed_up):
            return None
        sessions = _with_predecessors(session) if summed_up else [session]
        turns = self.store.newest_of(self.asked.caller.key_id, sessions, 8)
        done = (t for t in self._mine(turns) if t.status is TurnStatus.DONE and t.kind is not Kind.SIDE)
        last = next(done, None)
        if last is None or last.answer is None or not same_message(self.asked.messages[index], last.answer):
            return None
        return last, index, {**served, index: last}


def _with_predecessors(session: str) -> list[str]:
    """A session, and those before it if its name is one of a row (`<id>:<n>`): compactions begin a new one."""
    counted = GENERATION.fullmatch(session)
    if counted is None:
        return [session]
    n = int(counted[2])
    return [session, *(f"{counted[1]}:{k}" for k in range(max(0, n - _GENERATIONS_BACK), n))]
