"""What became of versions: decisions about them, how users judged their answers, and the turns they are tried on."""

from __future__ import annotations

from typing import Any

from sqlalchemy import and_, exists, or_, select

from instar.flow.held_back import says_what_is_better
from instar.records import Decision, Fate, Kind, Sample, Source
from instar.store.base import Base
from instar.store.columns import AnySelect
from instar.store.decisions import add_activation, add_decision
from instar.store.documents import put_documents
from instar.store.facts import HELD_BACK
from instar.store.samples import samples_of, with_verdict
from instar.store.schema import decisions, judgements, turns

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
                add_activation(conn, activate, reason, now)
            put_documents(conn, documents or {})

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

    def held_back(self, learner: str, limit: int, *, longest: int | None = None) -> list[Sample]:
        query = _to_try(learner, longest).order_by(turns.c.seq.desc()).limit(limit)
        found: list[Sample] = []
        with self._db.reading() as conn:
            rows = conn.execute(query).all()
            while rows and len(found) < limit:
                found += filter(says_what_is_better, samples_of(conn, rows))
                rows = conn.execute(query.where(turns.c.seq < rows[-1].seq)).all()
        return found[:limit]


def _to_try(learner: str, longest: int | None) -> AnySelect:
    """Held-back turns that the user accepted, or rejected in a way that may say what would be better."""
    retry, verdict = turns.alias("retry"), judgements.alias("of_retry")
    accepted = exists().where(
        retry.c.parent_id == turns.c.id, verdict.c.seq == retry.c.verdict_seq, verdict.c.score == 1
    )
    said = judgements.c
    worded = (said.score == -1) & or_(said.hint.is_not(None), said.correction.is_not(None), accepted)
    query = with_verdict().where(
        turns.c.reason == HELD_BACK,
        turns.c.learner == learner,
        said.source == Source.USER.value,
        or_(said.score == 1, worded),
    )
    return query if longest is None else query.where(turns.c.prompt_len + turns.c.response_len <= longest)
