"""What follows from the recorded facts of a turn: which verdict counts, is there something to judge or to train.

Every transaction that adds a fact ends with `refresh`. No other place decides these things.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from typing import Any

from sqlalchemy import Connection, select, update

from instar.records import NextKind, Source, TurnStatus
from instar.store.columns import AnyRow
from instar.store.schema import judgements, next_states, reservations, turns, uses

EMPTY = "empty_answer"
HELD_BACK = "held_back"
POISON = "poison"
WORDLESS = {NextKind.TOOL_RESULT, NextKind.REGENERATE, NextKind.EDIT}


def refresh(conn: Connection, turn_ids: Collection[str]) -> None:
    """Compute the derived columns of these turns anew."""
    if not turn_ids:
        return
    said = _by_turn(conn.execute(select(next_states.c.turn_id, next_states.c.seq, next_states.c.kind)
                    .where(next_states.c.turn_id.in_(turn_ids))))  # fmt: skip
    judged = _by_turn(conn.execute(
        select(judgements.c.turn_id, judgements.c.seq, judgements.c.basis, judgements.c.source,
               judgements.c.score, judgements.c.correction)
        .where(judgements.c.turn_id.in_(turn_ids)).order_by(judgements.c.seq)))  # fmt: skip
    taken = {
        row.turn_id
        for table in (uses, reservations)
        for row in conn.execute(select(table.c.turn_id).where(table.c.turn_id.in_(turn_ids)))
    }
    columns = (turns.c.id, turns.c.status, turns.c.learn, turns.c.reason, turns.c.response_len)
    for turn in conn.execute(select(*columns).where(turns.c.id.in_(turn_ids))).all():
        derived = _derive(turn, said[turn.id], judged[turn.id], turn.id in taken)
        conn.execute(update(turns).where(turns.c.id == turn.id).values(derived))


def _by_turn(rows: Iterable[AnyRow]) -> defaultdict[str, list[AnyRow]]:
    found: defaultdict[str, list[AnyRow]] = defaultdict(list)
    for row in rows:
        found[row.turn_id].append(row)
    return found


def _derive(turn: AnyRow, said: list[AnyRow], judged: list[AnyRow], taken: bool) -> dict[str, Any]:
    verdict = deciding(judged)
    whole = turn.status == TurnStatus.DONE and turn.learn
    learnable = whole and turn.reason is None
    # What is held back is judged as ever: new versions are tried on it.
    usual = turn.reason in (None, HELD_BACK) and not taken
    # The user's own rating counts to the end, also where nothing more is learned from the turn.
    to_judge = (
        whole and turn.reason != POISON and has_news(said, judged) and (usual or rated_anew(said, judged))
    )
    teaches = verdict is not None and (verdict.score in (1, -1) or verdict.correction is not None)
    empty = learnable and teaches and turn.response_len == 0
    return {
        "verdict_seq": verdict.seq if verdict is not None else None,
        "reason": EMPTY if empty else turn.reason,
        "to_judge": to_judge and not empty,
        # While a newer word waits for the judge, the old verdict is not trained on.
        "to_train": learnable and not taken and not to_judge and teaches and not empty,
    }


def deciding(judged: list[AnyRow]) -> AnyRow | None:
    """The judgement that counts, of all judgements of a turn in the order in which they were made.

    The user's last word beats every tool's, and a word beats an abstention: a user's reply that nobody could
    read does not undo what the tool said.
    """
    spoken = [j for j in judged if j.score is not None or j.correction is not None]
    users = [j for j in spoken if j.source == Source.USER]
    for candidates in (users, spoken, judged):
        if candidates:
            return candidates[-1]
    return None


def rated_anew(said: list[AnyRow], judged: list[AnyRow]) -> bool:
    """Whether there is explicit feedback that no judgement is based on."""
    basis = max((j.basis for j in judged), default=0)
    return any(s.kind == NextKind.FEEDBACK and s.seq > basis for s in said)


def has_news(said: list[AnyRow], judged: list[AnyRow]) -> bool:
    """Whether a next state is worth a judgement that was not made yet.

    Explicit feedback always is. Otherwise one judgement is enough; only a step that no more than a tool has
    spoken about is judged again when its user does something, and one that its user has said no word about, when
    they speak.
    """
    basis = max((j.basis for j in judged), default=0)
    fresh = {s.kind for s in said if s.seq > basis}
    if not judged or NextKind.FEEDBACK in fresh:
        return bool(fresh)
    only_tools = all(j.source == Source.TOOL for j in judged)
    if only_tools and bool(fresh - {NextKind.TOOL_RESULT}):
        return True
    heard = {s.kind for s in said if s.seq <= basis}
    return NextKind.USER_REPLY in fresh and heard <= WORDLESS
