"""What all methods share: an empty weighted sample, and the rules that hold whatever the method.

Normalisation: a component's weights over one sample add up to that sample's say, 1 at most for an ordinary one,
so **each sample counts equally**, long or short. Per-token normalisation would let one rambling answer outvote
seven short ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from difflib import SequenceMatcher

from instar.content import last_user_text
from instar.records import Sample, Source, WeightedSample

TOOL_SHARE = 0.25
"""Most of a batch's weight that tool verdicts may have, or every successful `ls` would drown the person."""

Weights = list[float]


def blank(sample: Sample) -> WeightedSample:
    """The sample with no weight on anything."""
    zeros = [0.0] * len(sample.response_ids)
    return WeightedSample(
        turn_id=sample.turn_id,
        origin=sample.origin,
        prompt_ids=list(sample.prompt_ids),
        response_ids=list(sample.response_ids),
        logprobs=list(sample.logprobs),
        pg_T=zeros,
        distill_T=list(zeros),
        nll_T=list(zeros),
        kl_T=list(zeros),
        learner=sample.learner,
        question=last_user_text(sample.request_messages),
        version=sample.version,
    )


def spread(say: float, sample: Sample) -> Weights:
    """`say` laid evenly over the tokens of the response that the model chose itself.

    Of a token that a grammar decided nothing can be learned: praise would teach what the model had no say in.
    """
    length = len(sample.response_ids)
    free = [not forced for forced in sample.forced] or [True] * length
    count = sum(free)
    return [say / count if chosen else 0.0 for chosen in free]


def say_of(weighted: WeightedSample) -> float:
    """How much a sample pulls, all components together."""
    tokens = (*weighted.pg_T, *weighted.distill_T, *weighted.nll_T, *weighted.kl_T)
    return sum(map(abs, tokens)) + weighted.revise


def scaled(weighted: WeightedSample, factor: float) -> WeightedSample:
    """All weights times `factor`."""

    def times(weights: Weights) -> Weights:
        return [w * factor for w in weights]

    return replace(
        weighted,
        pg_T=times(weighted.pg_T),
        distill_T=times(weighted.distill_T),
        nll_T=times(weighted.nll_T),
        kl_T=times(weighted.kl_T),
        revise=weighted.revise * factor,
    )


def cap_tools(weighted: Sequence[WeightedSample], samples: Sequence[Sample]) -> list[WeightedSample]:
    """Scale down the samples that a tool judged until they have a quarter of the batch's weight at most.

    A batch without any verdict of a person moves the model by a quarter of what the person could.
    """
    by_tool = {s.turn_id for s in samples if s.source is Source.TOOL}
    tool = sum(say_of(w) for w in weighted if w.turn_id in by_tool)
    user = sum(say_of(w) for w in weighted if w.turn_id not in by_tool)
    allowed = TOOL_SHARE / (1 - TOOL_SHARE) * user if user else TOOL_SHARE * tool
    if tool <= allowed:
        return list(weighted)
    return [scaled(w, allowed / tool) if w.turn_id in by_tool else w for w in weighted]


UNCHANGED = 0.2
"""Weight of an edit's token that the user left as it was, beside 1 for a changed one: the change is the lesson."""


def changed_T(before: Sequence[int], after: Sequence[int]) -> list[bool]:
    """For each token of `after`, whether it is not simply carried over from `before`."""
    changed = [True] * len(after)
    for block in SequenceMatcher(None, before, after, autojunk=False).get_matching_blocks():
        changed[block.b : block.b + block.size] = [False] * block.size
    return changed


def lesson_T(before: Sequence[int], after: Sequence[int]) -> Weights:
    """Likelihood weights that add up to 1, five times as much on a changed token as on an unchanged one."""
    raw = [1.0 if new else UNCHANGED for new in changed_T(before, after)]
    return [w / sum(raw) for w in raw]
