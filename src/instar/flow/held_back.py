"""Turns that are never trained on, so that a version can be tried on what it has not seen.

A session is held back or not by a hash of its name: every turn of it alike, for ever, and nothing need be remembered.
"""

from __future__ import annotations

import hashlib

from instar.content import last_user_text
from instar.ports import TeacherPrompts
from instar.records import HeldBackTurn, Sample

LIMIT = 32
"""Newest held-back turns that a version is tried on: what an update can afford."""


def is_held_back(session_id: str, share: float) -> bool:
    """Whether a session belongs to this share of all sessions."""
    digest = hashlib.sha256(session_id.encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big") < share * 2**64


def to_try(sample: Sample, prompts: TeacherPrompts) -> HeldBackTurn:
    """A judged turn as the trainer sees it, with what the user wanted instead where that is known."""
    corrected = sample.score == -1
    wanted = (sample.correction or sample.accepted) if corrected else None
    return HeldBackTurn(
        turn_id=sample.turn_id,
        score=sample.score or 0,
        question=last_user_text(sample.request_messages),
        prompt_ids=sample.prompt_ids,
        response_ids=sample.response_ids,
        hinted_ids=prompts.hinted(sample, sample.hint) if corrected and sample.hint else [],
        wanted_ids=prompts.encode_answer(wanted) if wanted and wanted.strip() else [],
    )
