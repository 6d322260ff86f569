"""Does what a person says of answers hang together? Where it does not, nothing is learned from it.

Liked and disliked answers that nothing tells apart are what reactions by lot look like. The head of answer_scorer.py
is tested on them by cross-validation, and where it does no better than a coin, they are taken for contradictory. A wish
that the head's features do not show at all would look the same, so edits, which say what they want, are learned from
anyway; and a change of mind, when everything is disliked for a while, is none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from instar.methods.weights import scaled
from instar.records import JudgedAnswer, Origin, WeightedSample
from instar.trainers.answer_scorer import FEWEST as FEWEST_TO_FIT
from instar.trainers.answer_scorer import AnswerScorer, as_table, cross_validated, rarer

WINDOW = 32
"""Newest verdicts of a learner that are looked at."""
ENOUGH = 24
FEWEST = 6
"""Of each kind among these."""
RECENT = 12
FEWEST_RECENT = 2
"""Of each kind among the newest: a user who dislikes everything since yesterday has changed their mind. By lot, with
four praises in ten, fewer come in one dozen out of fifty; of eight it was one in ten."""
CHANCE = 0.6
"""Balanced accuracy up to which it might as well be a coin. Measured: docs/log.md."""

DOUBT = 1 / 16
"""Weight of what unclear verdicts teach. The learning rate goes with its root, so this is a quarter of a step."""
CONTRADICTION = (
    f"What was said of the last {WINDOW} answers contradicts itself: nothing in them tells those that were liked from "
    "those that were not."
)


def contradicts_itself(history: Sequence[JudgedAnswer]) -> bool:
    """Whether one learner's verdicts, oldest first, look like drawn by lot. False where there are too few."""
    told = [h for h in history if h.score][-WINDOW:]
    if len(told) < ENOUGH or rarer(told) < FEWEST or rarer(told[-RECENT:]) < FEWEST_RECENT:
        return False
    _, rows_NF, accepted_N = as_table(told)
    return cross_validated(rows_NF, accepted_N) <= CHANCE


def is_unclear(history: Sequence[JudgedAnswer], scorer: AnswerScorer | None) -> bool:
    """Whether there are liked and disliked answers, enough of each to fit on, that nothing tells apart yet.

    Not where all is disliked lately: that is a beginning, or a change of mind. `scorer` is what was fitted on them.
    """
    told = [h for h in history if h.score]
    return scorer is None and rarer(told) >= FEWEST_TO_FIT and rarer(told[-RECENT:]) >= FEWEST_RECENT


def consistent(
    samples: Sequence[WeightedSample],
    history: Sequence[JudgedAnswer],
    scorers: Mapping[str, AnswerScorer | None],
) -> tuple[list[WeightedSample], str]:
    """The samples that may be learned from, and a sentence if there were others. `scorers` by learner.

    While a learner's verdicts are unclear their samples count `DOUBT`: a small step in case it is a wish, and little
    harm in case it is none.
    """
    by_learner = {s.learner: [h for h in history if h.learner == s.learner] for s in samples}
    against = {name for name, told in by_learner.items() if contradicts_itself(told)}
    unclear = {
        name
        for name, told in by_learner.items()
        if name not in against and is_unclear(told, scorers.get(name))
    }
    kept = [s for s in samples if s.learner not in against or s.origin is Origin.EDIT]
    weighed = [scaled(s, DOUBT) if s.learner in unclear and s.origin is not Origin.EDIT else s for s in kept]
    return weighed, CONTRADICTION if against else ""
