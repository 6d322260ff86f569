"""Methods that are measured beside the product's own and are no part of it.

Both pull on the token that was sampled by how much likelier a teacher, shown the user's words, finds it:

    advantage_t = log π_teacher(a_t | request + words) − log π(a_t | request), clipped

`TokenDistillation` does that alone, with the product's own teacher prompts. `Published` is the recipe of
Gen-Verse/OpenClaw-RL as its report states it, written anew: the thumb (±1) on every token plus the advantage above,
both with weight 1; the teacher is the policy itself, its hint stands behind the question.

They need the model, so they run where it is: on the fast path.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from instar.chat_format import ChatFormat
from instar.content import text_of
from instar.methods.baselines import with_scores
from instar.methods.opd import teacher_words
from instar.methods.weights import blank
from instar.ports import TeacherPrompts
from instar.records import Origin, Sample, WeightedSample
from instar.trainers.canaries import token_logp
from instar.trainers.policy import Policy

CLIP = 1.0
"""Largest token advantage of distillation alone (nats)."""
PUBLISHED_CLIP = 5.0
"""The published recipe's: it only keeps a single token from deciding an update."""
SHORTEST_HINT = 10
"""Characters below which the published recipe takes a hint for none."""


class TokenMethod:
    """What both share: the advantage of each sampled token under the teacher."""

    name = "token"

    def __init__(self, policy: Callable[[], Policy], chat: ChatFormat, *, teacher_is_base: bool) -> None:
        self._policy, self._chat, self._teacher_is_base = policy, chat, teacher_is_base

    def weigh(
        self, samples: Sequence[Sample], prompts: TeacherPrompts, state: dict[str, Any]
    ) -> tuple[list[WeightedSample], dict[str, Any]]:
        """Implements `ports.Method`. A sample whose log-probs are missing abstains."""
        state = with_scores(state, samples)
        return [self._weigh(s, prompts, state) for s in samples], state

    def _weigh(self, sample: Sample, prompts: TeacherPrompts, state: dict[str, Any]) -> WeightedSample:
        empty = blank(sample)
        if sample.origin is not Origin.SAMPLED or len(sample.logprobs) != len(sample.response_ids):
            return replace(empty, abstained={"pg": "no_logprobs"})
        advantage_T = self.advantage_T(sample, prompts, state)
        if advantage_T is None:
            return replace(empty, abstained={"pg": "nothing_to_learn"})
        return replace(empty, pg_T=[a / len(advantage_T) for a in advantage_T])

    def advantage_T(
        self, sample: Sample, prompts: TeacherPrompts, state: dict[str, Any]
    ) -> list[float] | None:
        raise NotImplementedError

    def _likelier_T(self, sample: Sample, hinted: list[int], clip: float) -> list[float]:
        """The clipped difference of log-probs, shape (T,)."""
        policy, ids = self._policy(), sample.response_ids
        (plain_T,) = token_logp(policy, [sample.prompt_ids], [ids])
        if self._teacher_is_base:
            with policy.as_base():
                (teacher_T,) = token_logp(policy, [hinted], [ids])
        else:
            (teacher_T,) = token_logp(policy, [hinted], [ids])
        return clipped(teacher_T - plain_T, clip)


def clipped(difference_T: Tensor, most: float) -> list[float]:
    values: list[float] = difference_T.clamp(-most, most).tolist()
    return values


class TokenDistillation(TokenMethod):
    name = "token_opd"

    def advantage_T(
        self, sample: Sample, prompts: TeacherPrompts, state: dict[str, Any]
    ) -> list[float] | None:
        if sample.score != -1 or not sample.hint:
            return None
        words = teacher_words(sample.hint, state.get("hints", {}).get(sample.learner, []))
        return self._likelier_T(sample, prompts.hinted(sample, words), CLIP)


class Published(TokenMethod):
    name = "published"

    def advantage_T(
        self, sample: Sample, prompts: TeacherPrompts, state: dict[str, Any]
    ) -> list[float] | None:
        if sample.score not in (-1, 1):
            return None
        thumb, hint = float(sample.score), (sample.hint or "").strip()
        if len(hint) < SHORTEST_HINT:
            return [thumb] * len(sample.response_ids)
        *before, last = sample.request_messages
        asked = {**last, "content": f"{text_of(last['content'])}\n\n[user's hint]\n{hint}"}
        hinted = self._chat.encode_prompt([*before, asked])
        return [thumb + gain for gain in self._likelier_T(sample, hinted, PUBLISHED_CLIP)]
