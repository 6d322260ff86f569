"""Judged turns as the trainer reads them: with the verdict that counts, and what was accepted or said instead."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, select, true

from instar.content import last_user_text, plain_text
from instar.flow.held_back import Lot
from instar.flow.lineage import updates_between
from instar.records import BASE, JudgedAnswer, Origin, Sample, Source, Turn
from instar.store.columns import AnyRow, AnySelect, unpack_ids
from instar.store.rows import read_turns
from instar.store.schema import judgements, turns

_VERSION = re.compile(r"v([1-9][0-9]*)")


def judged(after_seq: int, limit: int) -> AnySelect:
    waiting = with_verdict().where(turns.c.to_train == true(), turns.c.seq > after_seq)
    return waiting.order_by(turns.c.seq).limit(limit)


def with_verdict() -> AnySelect:
    """Turns and the judgement that counts: what `samples_of` reads."""
    verdict = judgements.c
    return select(turns, verdict.score, verdict.source, verdict.hint, verdict.correction).join_from(
        turns, judgements, judgements.c.seq == turns.c.verdict_seq
    )


def samples_of(conn: Connection, rows: Sequence[AnyRow], lot: Lot | None = None) -> list[Sample]:
    """With a `lot`, no answer that it holds back is what another turn learns instead."""
    rejected = [row.id for row in rows if row.score == -1]
    accepted, retried = _accepted(conn, rejected, lot), _retried(conn, rejected, lot)
    return [
        Sample(
            turn_id=turn.id,
            learner=turn.learner,
            version=turn.version,
            source=Source(row.source),
            origin=Origin.SAMPLED,
            request_messages=turn.messages,
            tools=turn.tools,
            prompt_ids=turn.prompt_ids,
            response_ids=turn.response_ids,
            # Log-probs that do not match the ids belong to something else: none are better than wrong ones.
            logprobs=turn.logprobs if len(turn.logprobs) == len(turn.response_ids) else [],
            forced=turn.forced,
            score=row.score,
            hint=row.hint,
            correction=row.correction,
            accepted=accepted.get(turn.id),
            retry_ids=retried.get(turn.id, []),
            was_cut=turn.was_cut,
            created_at=turn.created_at,
        )
        for row, turn in zip(rows, read_turns(conn, rows), strict=True)
    ]


def judged_answer(turn: Turn, row: AnyRow) -> JudgedAnswer:
    question = last_user_text(turn.messages)
    answer = _without_calls(turn.answer)
    return JudgedAnswer(turn.learner, question, answer, row.score, row.hint, turn.version)


def is_held_back(row: AnyRow, lot: Lot | None) -> bool:
    return lot is not None and lot.holds_back(row.learner, row.session_id, row.created_at)


def _accepted(conn: Connection, rejected: Sequence[str], lot: Lot | None) -> dict[str, str]:
    """Rejected turn → the answer to the user's correction, where the user was content with that one.

    Not one that was sampled under a grammar, here and below: its likelihood would be the grammar's.
    """
    first, retry = turns.alias("first"), turns.alias("retry")
    found = conn.execute(
        select(first.c.id, retry.c.answer, *_drawn_by(retry))
        .join_from(first, retry, retry.c.parent_id == first.c.id)
        .join(judgements, judgements.c.seq == retry.c.verdict_seq)
        .where(
            first.c.id.in_(rejected),
            retry.c.session_id == first.c.session_id,
            retry.c.episode_id != first.c.episode_id,  # a new word of the user lies between them
            retry.c.learn == true(),
            retry.c.forced.is_(None),
            judgements.c.score == 1,
        )
        .order_by(retry.c.seq)
    )
    texts = {row.id: _without_calls(row.answer) for row in found if not is_held_back(row, lot)}
    return {turn_id: text for turn_id, text in texts.items() if text}


def _retried(conn: Connection, rejected: Sequence[str], lot: Lot | None) -> dict[str, list[int]]:
    """Rejected turn → ids of the complete answer to the user's correction, judged or not."""
    first, retry = turns.alias("first"), turns.alias("retry")
    found = conn.execute(
        select(first.c.id, retry.c.response_ids, *_drawn_by(retry))
        .join_from(first, retry, retry.c.parent_id == first.c.id)
        .where(
            first.c.id.in_(rejected),
            retry.c.session_id == first.c.session_id,
            retry.c.episode_id != first.c.episode_id,
            retry.c.learn == true(),
            retry.c.forced.is_(None),
            retry.c.status == "done",
            retry.c.finish_reason == "stop",
        )
        .order_by(retry.c.seq)
    )
    return {row.id: unpack_ids(row.response_ids) for row in found if not is_held_back(row, lot)}


def _drawn_by(table: Any) -> list[Any]:
    """What `is_held_back` looks at."""
    return [table.c.learner, table.c.session_id, table.c.created_at]


def _without_calls(answer: Any) -> str:
    """ "" for an answer that calls a tool: its text alone is not what was accepted."""
    if not isinstance(answer, dict) or answer.get("tool_calls"):
        return ""
    return plain_text(answer.get("content"))


def is_stale(row: AnyRow, current: int, max_staleness: int, parents: Mapping[str, str]) -> bool:
    """Numbers decide only where no update tells how the two versions are related."""
    number = version_number(row.version)
    if row.pinned or number is None:
        return True
    apart = updates_between(f"v{current}" if current else BASE, row.version, parents)
    return (current - number if apart is None else apart) > max_staleness


def without_logprobs(sample: Sample) -> Sample:
    return Sample(**{**{name: getattr(sample, name) for name in Sample.__slots__}, "logprobs": []})


def version_number(version: str) -> int | None:
    """`v7` → 7, base → 0; None for a name that is neither."""
    if version == BASE:
        return 0
    match = _VERSION.fullmatch(version)
    return int(match[1]) if match else None
