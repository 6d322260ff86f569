"""What learners rated outright, with the words that they said beside it."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, exists, select, true

from instar.records import NextKind, NextState, RatedTurn
from instar.store.base import Base
from instar.store.columns import AnySelect
from instar.store.rows import next_state, questions
from instar.store.schema import RATED, next_states, turns

WORDS = (NextKind.USER_REPLY.value, NextKind.FEEDBACK.value)


class Rated(Base):
    def newest_rating(self) -> int:
        newest = select(next_states.c.seq).where(RATED).order_by(next_states.c.seq.desc()).limit(1)
        with self._db.reading() as conn:
            return conn.execute(newest).scalar() or 0

    def rated_turns(self, learner: str, limit: int) -> list[RatedTurn]:
        with self._db.reading() as conn:
            rows = conn.execute(_rated_with_words(learner, limit)).all()
            rows = list({row.id: row for row in rows}.values())  # who rates twice is heard once
            said = _said(conn, [row.id for row in rows])
            asked = questions(conn, rows)
        return [RatedTurn(row.id, question, said[row.id]) for row, question in zip(rows, asked, strict=True)]


def _rated_with_words(learner: str, limit: int) -> AnySelect:
    """Walks the ratings from the newest on, until there are enough."""
    said = next_states.alias("said")
    words = exists().where(said.c.turn_id == turns.c.id, said.c.kind.in_(WORDS), said.c.text != "")
    return (
        select(turns.c.id, turns.c.message_hashes, turns.c.question_at)
        .join_from(next_states, turns, turns.c.id == next_states.c.turn_id)
        .where(RATED, turns.c.learner == learner, turns.c.learn == true(), words)
        .order_by(next_states.c.seq.desc())
        .limit(limit)
    )


def _said(conn: Connection, turn_ids: Sequence[str]) -> dict[str, list[NextState]]:
    found: dict[str, list[NextState]] = {turn_id: [] for turn_id in turn_ids}
    rows = select(next_states).where(next_states.c.turn_id.in_(turn_ids), next_states.c.kind.in_(WORDS))
    for row in conn.execute(rows.order_by(next_states.c.seq)):
        found[row.turn_id].append(next_state(row))
    return found
