"""Does what a person says of answers hang together? Where it does not, nothing is learned from it.

Liked and disliked answers that nothing tells apart are what reactions by lot look like. The head of answer_scorer.py
is tested on them by cross-validation, and where it does no better than a coin, they are taken for contradictory. A wish
that the head's features do not show at all would look the same, so edits, which say what they want, are learned from
anyway; and a change of mind, when everything is disliked for a while, is none.

Before there are enough for that, a whole step is taken only where something speaks against a lot: nearly all answers
were disliked, the head tells them apart, or versions that learned are praised more than base was.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from instar.flow.evidence import fisher
from instar.methods.weights import scaled
from instar.records import BASE, JudgedAnswer, Origin, WeightedSample
from instar.trainers.answer_scorer import AnswerScorer, as_table, cross_validated, rarer

WINDOW = 32
"""Newest verdicts of a learner that are looked at."""
ENOUGH = 24
FEWEST = 6
"""Of each kind among these."""
RECENT = 12
"""Newest verdicts by which a change of mind is told: a user who dislikes everything since yesterday has changed it."""
LOT = 0.4
"""Share of the rarer verdict in the lots that are reckoned with. A coin would have .5, and is told more easily."""
RARE = 0.02
"""Chance under a lot up to which verdicts are taken for one-sided: no praise among 8, one among 12, two among 16."""
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
    if len(told) < ENOUGH or rarer(told) < FEWEST or is_one_sided(told[-RECENT:]):
        return False
    _, rows_NF, accepted_N = as_table(told)
    return cross_validated(rows_NF, accepted_N) <= CHANCE


def is_one_sided(told: Sequence[JudgedAnswer]) -> bool:
    """Whether a lot would hardly give so few of the rarer verdict: the lower tail of the binomial distribution."""
    count = len(told)
    tail = sum(math.comb(count, k) * LOT**k * (1 - LOT) ** (count - k) for k in range(rarer(told) + 1))
    return tail <= RARE


def praise_grew(told: Sequence[JudgedAnswer]) -> bool:
    """Whether base was praised less than the versions that learned are: by Fisher's exact test, one-sided."""
    good, bad, good_of_base, bad_of_base = (
        sum(h.score == score and (h.version == BASE) is of_base for h in told)
        for of_base in (False, True)
        for score in (1, -1)
    )
    return fisher(good_of_base, bad_of_base, good, bad) <= RARE


def is_unclear(history: Sequence[JudgedAnswer], scorer: AnswerScorer | None) -> bool:
    """Whether there are liked and disliked answers that might as well be a lot. `scorer` is what was fitted on them.

    Not where nearly all is disliked, or has been lately: that is a beginning, or a change of mind.
    """
    told = [h for h in history if h.score]
    if scorer or not rarer(told):
        return False
    return not (is_one_sided(told) or is_one_sided(told[-RECENT:]) or praise_grew(told))


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
