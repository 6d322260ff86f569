"""The trainer's side of the store: samples, and updates that use each of them once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, delete, func, insert, select, true, update
from sqlalchemy.exc import IntegrityError

from instar.errors import StoreError
from instar.flow.held_back import Lot
from instar.records import Fate, JudgedAnswer, Sample, Source, Update
from instar.runtime import new_id
from instar.store.base import Base
from instar.store.columns import AnyRow
from instar.store.decisions import active_version, add_activation, add_decision
from instar.store.documents import put_document, put_documents, read_document
from instar.store.facts import HELD_BACK, POISON, refresh
from instar.store.rows import read_turns
from instar.store.samples import (
    is_held_back,
    is_stale,
    judged,
    judged_answer,
    samples_of,
    version_number,
    without_logprobs,
)
from instar.store.schema import judgements, reservations, turns, update_turns, updates, uses

STALE = "stale"
TOO_LONG = "too_long"
REJECTED = "rejected_by_gate"
NOTHING = "nothing_to_learn"

_GIVE_UP_AFTER = {"rejected": (2, REJECTED), "failed": (3, POISON), "unused": (1, NOTHING)}
"""Ending of an update → after how many such endings a turn is left alone, and the reason it then carries."""

LOT = "held_back"
"""Name of the document with the salt that draws what is held back."""


class Training(Base):
    def trainable(
        self,
        limit: int,
        *,
        current: int,
        max_staleness: int,
        held_back: float = 0.0,
        longest: int | None = None,
    ) -> list[Sample]:
        samples: list[Sample] = []
        long: list[str] = []
        stale: list[str] = []
        held: list[str] = []
        lot = self._lot(held_back)
        with self._db.reading() as conn:
            after, parents = 0, None
            while len(samples) < limit:
                rows = conn.execute(judged(after, limit)).all()
                if not rows:
                    break
                after = rows[-1].seq
                parents = _parents(conn) if parents is None else parents
                for row, sample in zip(rows, samples_of(conn, rows, lot), strict=True):
                    if is_held_back(row, lot):
                        held.append(row.id)
                    elif longest is not None and row.prompt_len + row.response_len > longest:
                        long.append(row.id)
                    elif not is_stale(row, current, max_staleness, parents):
                        samples.append(sample)
                    elif sample.correction or sample.accepted or (sample.score == -1 and sample.hint):
                        samples.append(without_logprobs(sample))
                    else:
                        stale.append(row.id)
        self._mark(held, HELD_BACK)
        self._mark(stale, STALE)
        self._mark(long, TOO_LONG)
        return samples[:limit]

    def verdicts(self, learner: str, limit: int, *, held_back: float = 0.0) -> list[JudgedAnswer]:
        lot = self._lot(held_back)
        with self._db.reading() as conn:
            rows = conn.execute(
                select(turns, judgements.c.score, judgements.c.hint)
                .join_from(turns, judgements, judgements.c.seq == turns.c.verdict_seq)
                .where(
                    turns.c.learner == learner,
                    turns.c.learn == true(),
                    turns.c.reason.is_distinct_from(HELD_BACK),
                    judgements.c.source == Source.USER,
                    judgements.c.score.in_((1, -1)),
                )
                .order_by(turns.c.seq.desc())
                .limit(limit)
            ).all()
            rows = [row for row in rows if not is_held_back(row, lot)]
            read = read_turns(conn, rows)
        told = [judged_answer(turn, row) for row, turn in zip(rows, read, strict=True)]
        return [judged for judged in reversed(told) if judged.answer.strip()]

    def leave_out_long(self, turn_ids: Sequence[str]) -> None:
        self._mark(turn_ids, TOO_LONG)

    def _lot(self, share: float) -> Lot | None:
        """Who is held back. The salt is drawn when it is first asked for, and kept for ever."""
        if not share:
            return None
        with self._db.reading() as conn:
            salt = read_document(conn, LOT)
        if salt is None:
            salt = {"salt": new_id("salt")}
            with self._db.writing() as conn:
                put_document(conn, LOT, salt)
        return Lot(share, salt["salt"])

    def _mark(self, turn_ids: Sequence[str], reason: str) -> None:
        if turn_ids:
            with self._db.writing() as conn:
                _give_up(conn, turn_ids, reason)

    def begin_update(
        self, turn_ids: Sequence[str], parent: str, job: str, *, scale: float = 1.0, passes: int = 1
    ) -> Update:
        update_id, now = new_id("upd"), self._clock.now()
        with self._db.writing() as conn:
            _check_free(conn, turn_ids)
            number = (conn.execute(select(func.max(updates.c.number))).scalar() or 0) + 1
            row = {
                "id": update_id,
                "number": number,
                "parent": parent,
                "status": "running",
                "running": 1,
                "created_at": now,
                "scale": scale,
                "passes": passes,
                "job": job,
            }
            conn.execute(insert(updates).values(row))
            _reserve(conn, update_id, turn_ids)
            return Update(update_id, number, parent, "running", list(turn_ids), now, scale=scale)

    def running_update(self) -> tuple[Update, str] | None:
        with self._db.reading() as conn:
            row = conn.execute(select(updates).where(updates.c.running == 1)).first()
            return None if row is None else (_updates(conn, [row])[0], row.job)

    def finish_update(
        self,
        update_id: str,
        *,
        status: str,
        version: str | None,
        note: str | None,
        activate: bool,
        waits: bool = False,
        if_active: str | None = None,
        documents: dict[str, dict[str, Any]] | None = None,
    ) -> str:
        if status != "proposed" and status not in _GIVE_UP_AFTER:
            raise StoreError(f"An update cannot end as {status!r}.")
        if (status == "proposed" and version is None) or (activate and status != "proposed"):
            raise StoreError("Only an update that proposes a version can be activated, and it must name it.")
        now = self._clock.now()
        with self._db.writing() as conn:
            row = conn.execute(
                select(updates).where(updates.c.id == update_id, updates.c.running == 1)
            ).first()
            if row is None:
                raise StoreError(
                    f"Update {update_id} is not running: it was finished before, or never begun."
                )
            active = active_version(conn)
            if status == "proposed" and if_active not in (None, active):
                status, activate, waits, documents = "superseded", False, False, None
                note = f"{active} was put in force while it was computed from {row.parent}."
            turn_ids = _turns_of(conn, [update_id])[update_id]
            ended = {"status": status, "running": None, "version": version, "note": note, "finished_at": now}
            conn.execute(update(updates).where(updates.c.id == update_id).values(**ended, job=None))
            conn.execute(delete(reservations).where(reservations.c.update_id == update_id))
            if status == "proposed":
                _use(conn, update_id, turn_ids, row.passes)
            elif status in _GIVE_UP_AFTER:
                times, reason = _GIVE_UP_AFTER[status]
                _give_up(conn, _ended_so(conn, turn_ids, status, times), reason)
            refresh(conn, turn_ids)
            put_documents(conn, documents or {})
            if waits and version is not None:
                add_decision(conn, version, Fate.WAITS, "It passed the gate and waits for a person.", now)
            if status == "superseded" and version is not None:
                add_decision(conn, version, Fate.SUPERSEDED, str(note), now)
            if activate:
                add_activation(conn, str(version), f"made by update {row.number}", now)
        return status

    def updates(self, limit: int = 100) -> list[Update]:
        """Newest first."""
        with self._db.reading() as conn:
            rows = conn.execute(select(updates).order_by(updates.c.number.desc()).limit(limit)).all()
            return _updates(conn, rows)

    def parents(self) -> dict[str, str]:
        with self._db.reading() as conn:
            return _parents(conn)

    def rejected_before(self, turn_ids: Sequence[str]) -> bool:
        with self._db.reading() as conn:
            return bool(_ended_so(conn, turn_ids, "rejected", 1))

    def next_version_number(self) -> int:
        """Counts every version ever named, also of updates that failed after their version was on disk."""
        with self._db.reading() as conn:
            named = conn.execute(select(updates.c.version).where(updates.c.version.is_not(None))).scalars()
            return 1 + max((version_number(name) or 0 for name in named), default=0)


def _check_free(conn: Connection, turn_ids: Sequence[str]) -> None:
    if not turn_ids or len(set(turn_ids)) != len(turn_ids):
        raise StoreError("An update needs samples, each of them once.")
    running = conn.execute(select(updates.c.id).where(updates.c.running == 1)).scalar()
    if running is not None:
        raise StoreError(f"Update {running} is running; it must be finished first.")
    known = set(conn.execute(select(turns.c.id).where(turns.c.id.in_(turn_ids))).scalars())
    if missing := [turn_id for turn_id in turn_ids if turn_id not in known]:
        raise StoreError(f"There is no turn {missing[0]}.")
    for table, what in ((uses, "used"), (reservations, "reserved")):
        taken = conn.execute(select(table.c.turn_id).where(table.c.turn_id.in_(turn_ids))).scalar()
        if taken is not None:
            raise StoreError(f"Turn {taken} is {what} already.")


def _reserve(conn: Connection, update_id: str, turn_ids: Sequence[str]) -> None:
    try:
        conn.execute(insert(reservations), [{"turn_id": t, "update_id": update_id} for t in turn_ids])
    except IntegrityError as error:
        raise StoreError("One of these turns is reserved already.") from error
    conn.execute(
        insert(update_turns),
        [{"update_id": update_id, "position": i, "turn_id": t} for i, t in enumerate(turn_ids)],
    )
    refresh(conn, turn_ids)


def _use(conn: Connection, update_id: str, turn_ids: Sequence[str], passes: int) -> None:
    rows = [{"turn_id": t, "update_id": update_id, "pass": p} for t in turn_ids for p in range(passes)]
    conn.execute(insert(uses), rows)


def _ended_so(conn: Connection, turn_ids: Sequence[str], status: str, times: int) -> list[str]:
    """Those of these turns that were in at least `times` updates which ended that way."""
    return list(
        conn.execute(
            select(update_turns.c.turn_id)
            .join_from(update_turns, updates, updates.c.id == update_turns.c.update_id)
            .where(update_turns.c.turn_id.in_(turn_ids), updates.c.status == status)
            .group_by(update_turns.c.turn_id)
            .having(func.count() >= times)
        ).scalars()
    )


def _give_up(conn: Connection, turn_ids: Sequence[str], reason: str) -> None:
    if turn_ids:
        unreasoned = turns.c.id.in_(turn_ids) & turns.c.reason.is_(None)
        conn.execute(update(turns).where(unreasoned).values(reason=reason))
        refresh(conn, turn_ids)


def _updates(conn: Connection, rows: Sequence[AnyRow]) -> list[Update]:
    members = _turns_of(conn, [row.id for row in rows])
    return [
        Update(
            id=row.id,
            number=row.number,
            parent=row.parent,
            status=row.status,
            turn_ids=members[row.id],
            created_at=row.created_at,
            version=row.version,
            scale=row.scale,
            note=row.note,
            finished_at=row.finished_at,
        )
        for row in rows
    ]


def _parents(conn: Connection) -> dict[str, str]:
    named = select(updates.c.version, updates.c.parent).where(updates.c.version.is_not(None))
    return {row.version: row.parent for row in conn.execute(named)}


def _turns_of(conn: Connection, update_ids: Sequence[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {update_id: [] for update_id in update_ids}
    rows = (
        select(update_turns).where(update_turns.c.update_id.in_(update_ids)).order_by(update_turns.c.position)
    )
    for row in conn.execute(rows):
        found[row.update_id].append(row.turn_id)
    return found


def count_trainable(conn: Connection) -> int:
    return conn.execute(
        select(func.count()).select_from(turns).where(turns.c.to_train == true())
    ).scalar_one()
