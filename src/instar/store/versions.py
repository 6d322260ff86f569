"""What became of versions: decisions about them, how users judged their answers, and the turns they are tried on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import and_, insert, or_, select

from instar.records import Decision, Fate, Kind, Sample, Source
from instar.store.base import Base
from instar.store.decisions import add_decision
from instar.store.documents import put_document
from instar.store.facts import HELD_BACK
from instar.store.schema import activations, decisions, judgements, turns
from instar.store.training import samples_of, with_verdict

_ANSWERS_A_USER = or_(
    turns.c.kind == Kind.MAIN.value,
    and_(
        turns.c.kind == Kind.RETRY.value, turns.c.episode_id == turns.c.id
    ),  # the other retries are tool steps
)


class Versions(Base):
    def decide(
        self,
        version: str,
        fate: Fate,
        reason: str,
        *,
        activate: str | None = None,
        documents: dict[str, dict[str, Any]] | None = None,
    ) -> None:
        now = self._clock.now()
        with self._db.writing() as conn:
            add_decision(conn, version, fate, reason, now)
            if activate is not None:
                row = {"version": activate, "reason": reason, "created_at": now}
                conn.execute(insert(activations).values(row))
            for name, value in (documents or {}).items():
                put_document(conn, name, value)

    def decisions(self, limit: int = 1000) -> list[Decision]:
        """Newest first."""
        with self._db.reading() as conn:
            rows = conn.execute(select(decisions).order_by(decisions.c.seq.desc()).limit(limit))
            return [Decision(r.version, Fate(r.fate), r.reason, r.created_at) for r in rows]

    def live_scores(self, version: str) -> list[int]:
        mine = (turns.c.version == version) & (turns.c.pinned.is_(False)) & _ANSWERS_A_USER
        said = judgements.c.score.in_((1, -1)) & (judgements.c.source == Source.USER.value)
        query = (
            select(judgements.c.score)
            .join_from(turns, judgements, judgements.c.seq == turns.c.verdict_seq)
            .where(mine, said)
            .order_by(turns.c.seq)
        )
        with self._db.reading() as conn:
            return [int(score) for score in conn.execute(query).scalars()]

    def held_back(self, learners: Sequence[str], limit: int) -> list[Sample]:
        mine = (turns.c.reason == HELD_BACK) & turns.c.learner.in_(learners)
        query = (
            with_verdict()
            .where(mine, judgements.c.score.in_((1, -1)))
            .order_by(turns.c.seq.desc())
            .limit(limit)
        )
        with self._db.reading() as conn:
            return samples_of(conn, conn.execute(query).all())
