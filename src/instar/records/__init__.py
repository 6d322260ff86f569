"""The vocabulary of the whole flow, in the order in which things happen.

    request ─► Turn ─► NextState ─► Judgement ─► Sample ─► WeightedSample ─► UpdateJob ─► UpdateResult ─► Manifest

Shapes: `_T` is the number of response tokens, `_P` of prompt tokens. Log-probs are natural logarithms of the
raw policy, before temperature, top-p or any grammar.
"""

from __future__ import annotations

from instar.records.conversation import (
    Caller,
    Kind,
    Message,
    NextKind,
    NextState,
    Sampling,
    Turn,
    TurnOutcome,
    TurnStatus,
)
from instar.records.samples import HeldBackTurn, JudgedAnswer, Origin, Sample, WeightedSample
from instar.records.updates import GateReport, Update, UpdateJob, UpdateResult, job_lists
from instar.records.verdicts import EXPLICIT, Abstention, JudgeItem, Judgement, RatedTurn, Source, Verdict
from instar.records.versions import BASE, Activation, Decision, Fate, Manifest

__all__ = [
    "BASE",
    "EXPLICIT",
    "Abstention",
    "Activation",
    "Caller",
    "Decision",
    "Fate",
    "GateReport",
    "HeldBackTurn",
    "JudgeItem",
    "JudgedAnswer",
    "Judgement",
    "Kind",
    "Manifest",
    "Message",
    "NextKind",
    "NextState",
    "Origin",
    "RatedTurn",
    "Sample",
    "Sampling",
    "Source",
    "Turn",
    "TurnOutcome",
    "TurnStatus",
    "Update",
    "UpdateJob",
    "UpdateResult",
    "Verdict",
    "WeightedSample",
    "job_lists",
]
