"""The default: thumbs and corrections in one update, and the likelihood of what the user wrote or accepted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from difflib import SequenceMatcher
from typing import Any

from instar.methods.baselines import with_scores
from instar.methods.binary_rl import policy_gradient
from instar.methods.opd import distillation
from instar.methods.weights import Weights, blank, cap_tools
from instar.ports import TeacherPrompts
from instar.records import Origin, Sample, WeightedSample

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


def likelihood(sample: Sample, prompts: TeacherPrompts) -> list[WeightedSample]:
    """What the user would have wanted, as samples of their own: the edit if there is one, else the retry."""
    text, origin = sample.correction, Origin.EDIT
    if not (text and text.strip()):
        text, origin = sample.accepted, Origin.ACCEPTED_RETRY
    if not (text and text.strip()):
        return []
    ids = prompts.encode_answer(text)
    wanted = blank(replace(sample, response_ids=ids, logprobs=[], origin=origin))
    return [replace(wanted, nll_T=lesson_T(sample.response_ids, ids))]


def both(sample: Sample, prompts: TeacherPrompts, state: dict[str, Any]) -> WeightedSample:
    """Policy gradient and distillation on the same tokens."""
    scored, taught = policy_gradient(sample, state), distillation(sample, prompts, state)
    return replace(taught, pg_T=scored.pg_T, abstained={**scored.abstained, **taught.abstained})


class Combined:
    name = "combined"

    def weigh(
        self, samples: Sequence[Sample], prompts: TeacherPrompts, state: dict[str, Any]
    ) -> tuple[list[WeightedSample], dict[str, Any]]:
        state = with_scores(state, samples)
        weighted: list[WeightedSample] = []
        for sample in samples:
            weighted += [both(sample, prompts, state), *likelihood(sample, prompts)]
        return cap_tools(weighted, samples), state
