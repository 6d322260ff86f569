"""What people look at: turns with all that is known of them, counts, versions in force, loops that live."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, func, select

from instar.content import plain_text
from instar.records import EXPLICIT, Activation, NextKind, Source, TurnStatus
from instar.store.base import Base
from instar.store.columns import AnyRow, AnySelect
from instar.store.decisions import active_version, add_activation
from instar.store.judging import count_unjudged
from instar.store.rows import questions
from instar.store.schema import RATED, activations, judgements, next_states, turns, updates, uses
from instar.store.training import count_trainable

_TURN_KEYS = (
    "id", "session_id", "episode_id", "parent_id", "kind", "version", "status", "finish_reason", "created_at",
)  # fmt: skip
_NEWEST = 64
"""Turns, by their beginning, among which the one that ended last is looked for."""
LONGEST_ANSWER_S = 3600.0
"""A turn that is open for longer was left so: nobody is being answered any more."""
_VERDICT_KEYS = ("score", "votes", "link", "hint", "why")


_PUBLISHED = (
    select(func.count()).select_from(updates).where(updates.c.version.in_(select(activations.c.version)))
)
"""Updates whose version has served: not those that wait for a person or did not pass."""


class Status(Base):
    def turn_views(
        self,
        *,
        session_id: str | None = None,
        limit: int = 100,
        before: str | None = None,
        turn_ids: Sequence[str] | None = None,
    ) -> list[dict[str, Any]]:
        with self._db.reading() as conn:
            page = _page(session_id, limit, before)
            rows = conn.execute(page if turn_ids is None else page.where(turns.c.id.in_(turn_ids))).all()
            said = _next_states(conn, [row.id for row in rows])
            used = _updates_of(conn, [row.id for row in rows])
            asked = questions(conn, rows)
            return [
                {name: getattr(row, name) for name in (*_TURN_KEYS, *_VERDICT_KEYS)}
                | {
                    "prompt_tokens": row.prompt_len,
                    "response_tokens": row.response_len,
                    "question": question,
                    "answer": plain_text(row.answer.get("content")) if isinstance(row.answer, dict) else "",
                    "next_states": said.get(row.id, []),
                    "learned": row.id in used,
                    "updates": used.get(row.id, []),
                    "reason": row.reason,
                    "recognised": row.params.get("recognised"),
                    "kind_why": row.params.get("why", ""),
                }
                for row, question in zip(rows, asked, strict=True)
            ]

    def last_activity_at(self) -> float | None:
        newest = [
            select(table.c.created_at).order_by(table.c.seq.desc()).limit(1)
            for table in (next_states, judgements)
        ]
        newest.append(select(turns.c.closed_at).order_by(turns.c.seq.desc()).limit(1))
        last = select(turns.c.seq).order_by(turns.c.seq.desc()).limit(1).scalar_subquery()
        now = self._clock.now()
        with self._db.reading() as conn:
            if conn.execute(_being_answered(now).where(turns.c.seq == last)).first():
                return now
            found = [conn.execute(query).scalar() for query in newest]
        return _nearest(found, now)

    def last_served_at(self) -> float | None:
        ended = select(turns.c.closed_at).order_by(turns.c.seq.desc()).limit(_NEWEST)
        now = self._clock.now()
        with self._db.reading() as conn:
            if conn.execute(_being_answered(now)).first():
                return now
            found = conn.execute(ended).scalars().all()
        return _nearest(found, now)

    def active_version(self) -> str:
        with self._db.reading() as conn:
            return active_version(conn)

    def activate(self, version: str, reason: str) -> None:
        with self._db.writing() as conn:
            add_activation(conn, version, reason, self._clock.now())

    def activations(self, limit: int = 100) -> list[Activation]:
        """Newest first: the first one is in force."""
        with self._db.reading() as conn:
            rows = conn.execute(select(activations).order_by(activations.c.seq.desc()).limit(limit))
            return [Activation(row.version, row.reason, row.created_at) for row in rows]

    def counts(self) -> dict[str, Any]:
        """`judged` counts the verdicts that are in force, under "1", "-1", "0" and "none" (nobody could tell)."""
        in_force = select(judgements.c.score, func.count()).join_from(
            turns, judgements, judgements.c.seq == turns.c.verdict_seq
        )
        with self._db.reading() as conn:
            judged = _tally(conn.execute(in_force.group_by(judgements.c.score)).all())
            return {
                "turns": _tally(conn.execute(_grouped(turns.c.status)).all()),
                "judged": judged,
                "waiting": {"unjudged": count_unjudged(conn), "trainable": count_trainable(conn)},
                "used": conn.execute(select(func.count(uses.c.turn_id.distinct()))).scalar_one(),
                "published": conn.execute(_PUBLISHED).scalar_one(),
                "reasons": _tally(
                    conn.execute(_grouped(turns.c.reason).where(turns.c.reason.is_not(None))).all()
                ),
            }

    def agreement(self) -> dict[str, dict[str, int]]:
        own = (next_states.c.kind == NextKind.FEEDBACK) & RATED
        rated = select(next_states.c.turn_id, next_states.c.score).where(own).order_by(next_states.c.seq)
        read = (
            select(judgements.c.turn_id, judgements.c.link, judgements.c.score)
            .where(judgements.c.turn_id.in_(select(next_states.c.turn_id).where(own)))
            .where(judgements.c.source == Source.USER, judgements.c.link != EXPLICIT)
            .where(judgements.c.score.is_not(None))
            .order_by(judgements.c.seq)
        )
        with self._db.reading() as conn:
            ratings = {row.turn_id: -1 if row.score is None else row.score for row in conn.execute(rated)}
            readings = {(row.link, row.turn_id): row.score for row in conn.execute(read)}
        found: dict[str, dict[str, int]] = {}
        for (link, turn_id), score in sorted(readings.items()):
            rating = _sign(ratings[turn_id])
            figures = found.setdefault(link, {"turns": 0, "agree": 0, "wrong_sign": 0})
            figures["turns"] += 1
            figures["agree"] += score == rating
            figures["wrong_sign"] += rating != 0 and score == -rating
        return found


def _nearest(times: Sequence[float | None], now: float) -> float | None:
    """Of those that are known, the one nearest to `now`, whatever the date was before."""
    return min((at for at in times if at is not None), key=lambda at: abs(now - at), default=None)


def _being_answered(now: float) -> AnySelect:
    began = func.abs(turns.c.created_at - now) < LONGEST_ANSWER_S
    return select(turns.c.id).where(turns.c.status == TurnStatus.OPEN.value, began).limit(1)


def _sign(score: int) -> int:
    return (score > 0) - (score < 0)


def _page(session_id: str | None, limit: int, before: str | None) -> AnySelect:
    columns = [turns.c[name] for name in _TURN_KEYS] + [judgements.c[name] for name in _VERDICT_KEYS]
    more = (
        turns.c.reason, turns.c.answer, turns.c.prompt_len, turns.c.response_len, turns.c.message_hashes,
        turns.c.question_at, turns.c.params,
    )  # fmt: skip
    query = select(*columns, *more).outerjoin_from(turns, judgements, judgements.c.seq == turns.c.verdict_seq)
    if session_id is not None:
        query = query.where(turns.c.session_id == session_id)
    if before is not None:
        query = query.where(turns.c.seq < select(turns.c.seq).where(turns.c.id == before).scalar_subquery())
    return query.order_by(turns.c.seq.desc()).limit(limit)


def _next_states(conn: Connection, turn_ids: Sequence[str]) -> dict[str, list[dict[str, str]]]:
    found: dict[str, list[dict[str, str]]] = {}
    rows = select(next_states).where(next_states.c.turn_id.in_(turn_ids)).order_by(next_states.c.seq)
    for row in conn.execute(rows):
        found.setdefault(row.turn_id, []).append({"kind": row.kind, "text": row.text})
    return found


def _updates_of(conn: Connection, turn_ids: Sequence[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for row in conn.execute(
        select(uses.c.turn_id, uses.c.update_id).where(uses.c.turn_id.in_(turn_ids)).distinct()
    ):
        found.setdefault(row.turn_id, []).append(row.update_id)
    return found


def _grouped(column: ColumnElement[Any]) -> AnySelect:
    return select(column, func.count()).group_by(column)


def _tally(rows: Sequence[AnyRow]) -> dict[str, int]:
    return {"none" if key is None else str(key): number for key, number in rows}
