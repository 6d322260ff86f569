"""The default: thumbs and corrections in one update.

A correction teaches by the best text there is for it, in this order: what the user wrote instead, the retry that the
user accepted, the best revision that the model itself can give (trainers/revise.py): distillation of whole answers
from the hinted model, of those that prove themselves. Distillation token by token (`opd`) also copies where the
hinted model strays, and thumbs alone reward whatever is short; so the thumbs push gently here (docs/log.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from instar.methods.baselines import with_scores
from instar.methods.binary_rl import policy_gradient
from instar.methods.weights import blank, cap_tools, lesson_T, scaled
from instar.ports import TeacherPrompts
from instar.records import Origin, Sample, WeightedSample

PUSHED = 0.1
"""Weight of the thumbs beside a revision's 1."""


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


def revision(sample: Sample, prompts: TeacherPrompts) -> WeightedSample | None:
    """Asks the trainer for the best revision of a corrected answer; None where nobody said what to do instead.

    An answer under a grammar is not revised: a revision would be sampled, and learned, without the grammar.
    """
    if sample.forced:
        return None
    if sample.score != -1 or not sample.hint or sample.origin is not Origin.SAMPLED:
        return None
    return replace(
        blank(sample),
        teacher_prompt_ids=prompts.hinted(sample, sample.hint),
        revise=1.0,
        revisions=[sample.retry_ids] if sample.retry_ids else [],
    )


def lesson(sample: Sample, prompts: TeacherPrompts, state: dict[str, Any]) -> list[WeightedSample]:
    """Everything that one turn teaches."""
    scored = scaled(policy_gradient(sample, state), PUSHED)
    if wanted := likelihood(sample, prompts):
        return [scored, *wanted]
    revised = revision(sample, prompts)
    return [scored if revised is None else replace(revised, pg_T=scored.pg_T, abstained=scored.abstained)]


class Combined:
    name = "combined"

    def weigh(
        self, samples: Sequence[Sample], prompts: TeacherPrompts, state: dict[str, Any]
    ) -> tuple[list[WeightedSample], dict[str, Any]]:
        state = with_scores(state, samples)
        weighted: list[WeightedSample] = []
        for sample in samples:
            weighted += lesson(sample, prompts, state)
        return cap_tools(weighted, samples), state
