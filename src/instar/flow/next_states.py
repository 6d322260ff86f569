"""What a request says about the turns before it: tools' results, the user's reply, another try, an edit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from instar.flow.conversation import (
    instructions,
    last_answer,
    request_hash,
    results_after,
    said_after,
    user_text,
    words_at,
)
from instar.flow.kinds import Hints, What
from instar.ports import Store
from instar.records import Caller, Kind, Message, NextKind, NextState, Turn, TurnStatus

_UNANSWERED = {TurnStatus.FAILED, TurnStatus.CANCELLED}

SESSION_DONE = "session_done"
"""Parameter of a turn that its client called the last of its session: nothing that comes later is about it."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that is being placed, and what was found out about it. `hashes` are those of `prefix_hashes`.

    `is_named`: its client named the session, outside of the messages.
    """

    caller: Caller
    messages: Sequence[Message]
    hashes: Sequence[str]
    request_hash: str
    what: What
    hints: Hints
    turn_id: str
    now: float
    tools: Sequence[Any] = ()
    is_named: bool = True

    @property
    def may_be_shared(self) -> bool:
        """Whether other conversations may have the same session: what stands in a message stays at `/new`."""
        return self.hints.shared_id or not self.is_named

    def says(self, turn: Turn, kind: NextKind, text: str) -> NextState:
        return NextState(turn.id, kind, text, created_at=self.now, by_turn_id=self.turn_id)


def next_states(
    store: Store, asked: Asked, session_id: str, parent: Turn | None, index: int | None
) -> list[NextState]:
    """All that `asked` says of earlier turns. `parent` is the turn it continues, `index` that answer's place."""
    if asked.what.kind is Kind.SIDE:
        return []
    told: list[NextState] = []
    if parent is not None and index is not None and parent.kind is not Kind.SIDE:
        told = _answered_to(store, asked, session_id, parent, index)
    if asked.what.kind is Kind.RETRY:
        return told  # whoever asks again since nothing came does not say that it was bad
    again = _regenerated(store, asked, session_id, parent)
    return told + (again or _edited(store, asked, session_id, parent, index))


def _answered_to(store: Store, asked: Asked, session_id: str, parent: Turn, index: int) -> list[NextState]:
    """Tool results go to the step that asked for them; the user's reply to every step of the episode."""
    results = results_after(asked.messages, index)
    told = [asked.says(parent, NextKind.TOOL_RESULT, text) for text in results]
    said = said_after(asked.messages, index)
    reply = words_at(asked.messages, _first_said(store, asked, session_id, parent, said))
    if reply.strip():
        told += [asked.says(step, NextKind.USER_REPLY, reply) for step in _ancestry(store, parent)]
    return told


def _first_said(
    store: Store, asked: Asked, session_id: str, parent: Turn, said: Sequence[int]
) -> Sequence[int]:
    """The messages that reply to an answer: those up to the first request, since what the user says when that one
    failed, or was stopped, is about the silence."""
    first = user_text(asked.messages[said[0]]) if said else None
    if first and first.joined and any(turn.status in _UNANSWERED for turn in store.children(parent.id)):
        return []
    for n, i in enumerate(said[:-1], 1):
        until = request_hash(asked.hashes[: i + 1], asked.messages[: i + 1])
        if store.find_by_request(asked.caller.key_id, session_id, until):
            return said[:n]
    return said


def _ancestry(store: Store, last: Turn) -> list[Turn]:
    """The steps of an episode that led to its last one; answers on other branches heard no reply."""
    by_id = {turn.id: turn for turn in store.episode(last.episode_id)}
    steps = [last]
    while steps[-1].parent_id in by_id and steps[-1].id != last.episode_id:
        steps.append(by_id[steps[-1].parent_id or ""])
    return steps


def _regenerated(store: Store, asked: Asked, session_id: str, parent: Turn | None) -> list[NextState]:
    """Asking the very same again, after an answer that was delivered, says that it was not wanted.

    But only a person says so: a step that an agent takes twice is its own affair, and so are other instructions.
    """
    if asked.what.kind is not Kind.MAIN:
        return []
    if parent is None and asked.may_be_shared:
        return []  # the first message of another conversation under the same id
    same = store.find_by_request(asked.caller.key_id, session_id, asked.request_hash)
    before = next((turn for turn in same if _counts(turn, asked)), None)
    if before is None or not _asked_alike(store.turn(before.id), asked):
        return []
    return [asked.says(before, NextKind.REGENERATE, "")]


def _asked_alike(turn: Turn | None, asked: Asked) -> bool:
    """Whether the model was told the same beside the conversation: system messages and tools."""
    if turn is None or list(asked.tools) != turn.tools:
        return False
    return instructions(turn.messages) == instructions(asked.messages)


def _edited(
    store: Store, asked: Asked, session_id: str, parent: Turn | None, index: int | None
) -> list[NextState]:
    """Another message in the place of one that was answered: the user changed it and asks again.

    Where what they said before still stands there, they have only said more.
    """
    said = said_after(asked.messages, index)
    text = user_text(asked.messages[said[0]]) if len(said) == 1 else None
    direct = index == last_answer(asked.messages)
    if asked.what.kind is not Kind.MAIN or text is None or text.joined or not direct:
        return []
    beside = store.children(parent.id) if parent else _only_message(store, asked, session_id)
    answered = (turn for turn in beside if _counts(turn, asked) and _replies(turn))
    before = next(answered, None)
    if before is None or before.request_hash == asked.request_hash:
        return []
    return [asked.says(before, NextKind.EDIT, text.words)]


def _only_message(store: Store, asked: Asked, session_id: str) -> list[Turn]:
    """The answer to a chat's first message, if nothing was said since. An id that is no chat window's may have been
    given to several conversations."""
    if not asked.hints.chat_id:
        return []
    newest = store.newest_of(asked.caller.key_id, [session_id], 8)
    first = next((turn for turn in newest if turn.kind is not Kind.SIDE and turn.parent_id is None), None)
    whole = (
        store.turn(first.id) if first else None
    )  # behind an answer that is not ours no parent is known either
    return [whole] if whole and last_answer(whole.messages) is None else []


def _counts(turn: Turn, asked: Asked) -> bool:
    """Whether the user had this answer before them, and may still say something about it."""
    delivered = turn.status is TurnStatus.DONE and turn.kind is not Kind.SIDE
    return delivered and turn.learner == asked.caller.learner and not turn.params.get(SESSION_DONE)


def _replies(turn: Turn) -> bool:
    """Whether it answers what a user said, and not a tool."""
    return turn.kind in (Kind.MAIN, Kind.RETRY) and turn.episode_id == turn.id
