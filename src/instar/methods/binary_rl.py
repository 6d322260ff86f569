"""Learning from thumbs: score ±1 → advantage over a running baseline → every token of the response alike.

GRPO's advantage (Shao et al., 2024) with the group replaced by the learner's recent feedback.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from instar.methods.baselines import advantage, mixed, with_scores
from instar.methods.weights import blank, cap_tools, spread
from instar.ports import TeacherPrompts
from instar.records import Origin, Sample, WeightedSample


def policy_gradient(sample: Sample, state: dict[str, Any]) -> WeightedSample:
    """The sample with its advantage as `pg_T`, or abstaining with a reason. `state` has seen its score."""
    weighted = blank(sample)

    def abstain(why: str) -> WeightedSample:
        return replace(weighted, abstained={"pg": why})

    if sample.origin is not Origin.SAMPLED:
        return abstain("not_sampled")
    if sample.score not in (-1, 1):
        return abstain("no_score")
    if len(sample.logprobs) != len(sample.response_ids):
        return abstain("no_logprobs")
    if len(sample.forced) not in (0, len(sample.response_ids)):
        return abstain("grammar_unknown")
    scores = state["recent"][sample.baseline_key]
    if not mixed(scores):
        return abstain("feedback_not_mixed")
    gain = advantage(sample.score, scores)
    if sample.was_cut and gain > 0:
        return abstain("cut_is_never_good")
    return replace(weighted, pg_T=spread(gain, sample))


class BinaryRL:
    name = "binary_rl"

    def weigh(
        self, samples: Sequence[Sample], prompts: TeacherPrompts, state: dict[str, Any]
    ) -> tuple[list[WeightedSample], dict[str, Any]]:
        state = with_scores(state, samples)
        return cap_tools([policy_gradient(s, state) for s in samples], samples), state
