"""Running memory of feedback, kept in the method's JSON state: what is usual for this person or this tool.

state["recent"][baseline_key] = the last scores, ±1, newest last
state["hints"][learner]       = the last corrections in the user's own words, newest last
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from instar.records import Sample, Source

WINDOW = 32
"""Scores that make the baseline: about four batches."""
FEWEST_OF_EACH = 2
"""Fewer of one sign than this is no mix: an advantage would teach to avoid whatever was said, not to do better."""
HINTS_KEPT = 8


def with_scores(state: dict[str, Any], samples: Iterable[Sample]) -> dict[str, Any]:
    """A new state that has also seen these samples' scores and hints."""
    recent = {key: list(scores) for key, scores in state.get("recent", {}).items()}
    hints = {key: list(texts) for key, texts in state.get("hints", {}).items()}
    for sample in samples:
        if sample.score in (-1, 1):
            scores = recent.setdefault(sample.baseline_key, [])
            scores.append(sample.score)
            del scores[:-WINDOW]
        if sample.hint and sample.score == -1 and sample.source is Source.USER:
            texts = hints.setdefault(sample.learner, [])
            if sample.hint in texts:
                texts.remove(sample.hint)
            texts.append(sample.hint)
            del texts[:-HINTS_KEPT]
    return {**state, "recent": recent, "hints": hints}


def mixed(scores: Sequence[int]) -> bool:
    """Whether recent feedback holds enough of both signs to tell better from worse."""
    return min(scores.count(1), scores.count(-1)) >= FEWEST_OF_EACH


def advantage(score: int, scores: Sequence[int]) -> float:
    """(score − mean of the recent scores) / 2, within ±1."""
    return (score - sum(scores) / len(scores)) / 2
