"""Turns that are never trained on, so that a version can be tried on what it has not seen.

Which ones is drawn by lot, with a salt of this installation: an hour of a learner's session is held back or it is not,
all turns of it alike, for ever. The name of a session alone must not decide: many clients have one name for all that
is ever said, and of such a learner either nothing would be learned, or nothing be held back.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from instar.content import last_user_text
from instar.flow.conversation import GENERATION
from instar.ports import TeacherPrompts
from instar.records import HeldBackTurn, Sample

LIMIT = 32
"""Newest held-back turns of a learner that a version is tried on, of those that say something: what an update can
afford."""
BLOCK_S = 3600.0
"""What is said within so long is mostly one conversation, and of one kind."""


@dataclass(frozen=True, slots=True)
class Lot:
    """Draws this share of all hours of all sessions."""

    share: float
    salt: str

    def holds_back(self, learner: str, session_id: str, at: float) -> bool:
        """Whether a turn that began at `at`, in wall seconds, belongs to the share. A compaction's new name for its
        session (`<id>:<n>`) changes nothing."""
        counted = GENERATION.fullmatch(session_id)
        drawn = (self.salt, learner, counted[1] if counted else session_id, str(int(at // BLOCK_S)))
        digest = hashlib.sha256("\x00".join(drawn).encode("utf-8", "surrogatepass")).digest()
        return int.from_bytes(digest[:8], "big") < self.share * 2**64


def says_what_is_better(sample: Sample) -> bool:
    """Whether two versions can be told apart by it: a rejection without words says nothing of what would be better."""
    wanted = sample.correction or sample.accepted or sample.hint or ""
    return bool(sample.response_ids) and (sample.score == 1 or bool(wanted.strip()))


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
