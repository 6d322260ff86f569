"""Why a turn is not learned from, in words for a person."""

from __future__ import annotations

from instar.flow.kinds import side_reasons

REASONS = {
    **side_reasons(),
    "ambiguous_session": "the same history was served in several conversations",
    "cancelled": "the client left before the end",
    "empty_answer": "nothing was answered",
    "failed": "the engine failed in mid-answer",
    "held_back": "kept for trying new versions on (gate.held_back)",
    "in_update": "an update is learning from it",
    "interrupted": "the server ended in mid-answer",
    "learned": "it was learned from before",
    "nothing_to_learn": "nothing to be learned: no words to go by, contradictions, or no better answer was found",
    "opted_out": "the client asked not to learn (X-Instar-Learn)",
    "poison": "judging or training failed three times",
    "rejected_by_gate": "two updates made of it did not pass the gate",
    "side": "its client says that it is none of the conversation (X-Turn-Type: side)",
    "too_long": "longer than an update can hold (train.memory_mib, train.max_tokens)",
    "stale": "answered by a version that is too old, or pinned",
}
"""Reasons as the store counts them, in words. One that is missing here is shown as it is."""
