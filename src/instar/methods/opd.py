"""On-policy distillation: the same model, shown the user's correction, teaches the one that was not shown it.

A teacher prompt carries the sample's own hint last, after a few other recent corrections of the same learner: a
small model follows three wordings of one wish far better than one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from instar.methods.baselines import with_scores
from instar.methods.weights import blank, cap_tools, spread
from instar.ports import TeacherPrompts
from instar.records import Origin, Sample, WeightedSample

OTHER_HINTS = 2
"""Recent corrections of the same learner shown to the teacher beside the sample's own."""


def teacher_words(hint: str, recent: Sequence[str]) -> str:
    """The other recent hints, then the sample's own: the last word counts most."""
    others = [text for text in recent if text != hint][-OTHER_HINTS:] if OTHER_HINTS else []
    return " ".join([*others, hint])


def distillation(sample: Sample, prompts: TeacherPrompts, state: dict[str, Any]) -> WeightedSample:
    """The sample with weight on `distill_T`, or abstaining with a reason."""
    weighted = blank(sample)

    def abstain(why: str) -> WeightedSample:
        return replace(weighted, abstained={"distill": why})

    if sample.origin is not Origin.SAMPLED:
        return abstain("not_sampled")
    if sample.score != -1:
        return abstain("nothing_to_correct")
    if not (sample.hint and sample.hint.strip()):
        return abstain("no_hint")
    if len(sample.logprobs) != len(sample.response_ids):
        return abstain("no_logprobs")
    if len(sample.forced) not in (0, len(sample.response_ids)):
        return abstain("grammar_unknown")
    words = teacher_words(sample.hint, state.get("hints", {}).get(sample.learner, []))
    return replace(
        weighted,
        distill_T=spread(1.0, sample),
        teacher_prompt_ids=prompts.hinted(sample, words),
    )


class OnPolicyDistillation:
    name = "opd"

    def weigh(
        self, samples: Sequence[Sample], prompts: TeacherPrompts, state: dict[str, Any]
    ) -> tuple[list[WeightedSample], dict[str, Any]]:
        state = with_scores(state, samples)
        return cap_tools([distillation(s, prompts, state) for s in samples], samples), state
