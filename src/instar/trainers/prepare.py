"""What stays fixed during an update: π_old, the teacher's and the reference's likeliest tokens; and the anchors."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from instar.records import WeightedSample
from instar.trainers import losses
from instar.trainers.canaries import chat_of
from instar.trainers.policy import LOGITS_CHUNK, Policy, PrefixCache
from instar.trainers.sampling import sample

ANCHOR_TOKENS = 48
"""Tokens of base's answers that are held."""


@dataclass(frozen=True, slots=True)
class Target:
    """The K likeliest next tokens of a fixed model at each of T positions, with their log-probs."""

    ids_TK: Tensor
    logp_TK: Tensor


@dataclass(frozen=True, slots=True)
class Prepared:
    """A sample with everything that stays fixed during the update. `target` is the teacher's."""

    sample: WeightedSample
    old_logp_T: Tensor
    importance_T: Tensor
    target: Target | None
    reference: Target | None
    weights: dict[str, Tensor]

    @property
    def row(self) -> list[int]:
        return [*self.sample.prompt_ids, *self.sample.response_ids]

    @property
    def start(self) -> int:
        return len(self.sample.prompt_ids)


@dataclass(frozen=True, slots=True)
class Anchor:
    """Ids that are held to base from position `start` on: a neutral text, or base's own answer to a request."""

    ids: list[int]
    start: int = 1


class Preparer:
    """Computes what stays fixed, reading each long prompt once."""

    def __init__(
        self,
        policy: Policy,
        settings: dict[str, Any],
        prefixes: PrefixCache,
        base_prefixes: PrefixCache | None = None,
    ) -> None:
        """`prefixes`: as the policy reads them before the first step; `base_prefixes`: as base does.

        A hinted prompt is the plain one as far as the hint, and is taken from there as far as that.
        """
        self._policy = policy
        self._top_k = int(settings["top_k"])
        self._guidance = float(settings["guidance"])
        self._teacher_is_base = settings["teacher"] == "base"
        self._old, self._base = prefixes, base_prefixes or PrefixCache(policy)

    def __call__(self, sample: WeightedSample) -> Prepared:
        has_mu = len(sample.logprobs) == len(sample.response_ids)
        old_T = torch.zeros(len(sample.response_ids))
        if has_mu or any(sample.pg_T):  # a text that was not sampled has no policy to compare with
            old_T = self._logp_of_response(sample)
        mu_T = torch.as_tensor(sample.logprobs) if has_mu else old_T
        return Prepared(
            sample=sample,
            old_logp_T=old_T,
            importance_T=losses.importance_T(old_T, mu_T),
            target=self._teacher(sample) if any(sample.distill_T) else None,
            reference=self._reference(sample) if any(sample.kl_T) else None,
            weights={
                name: torch.as_tensor(getattr(sample, f"{name}_T"), dtype=torch.float32)
                for name in ("pg", "distill", "nll", "kl")
            },
        )

    def _hidden_TD(self, prompt: Sequence[int], sample: WeightedSample, *, base: bool) -> Tensor:
        mode: AbstractContextManager[None] = self._policy.as_base() if base else nullcontext()
        with mode:
            return self._policy.hidden_ND(
                [[*prompt, *sample.response_ids]], [len(prompt)], self._base if base else self._old
            )

    @torch.no_grad()
    def _logp_of_response(self, sample: WeightedSample) -> Tensor:
        hidden_TD = self._hidden_TD(sample.prompt_ids, sample, base=False)
        return self._policy.logp_of(hidden_TD, sample.response_ids)

    @torch.no_grad()
    def _teacher(self, sample: WeightedSample) -> Target:
        base = self._teacher_is_base
        hinted_TD = self._hidden_TD(sample.teacher_prompt_ids or [], sample, base=base)
        plain_TD = None
        if self._guidance != 1.0:
            plain_TD = self._hidden_TD(sample.prompt_ids, sample, base=base)
        return self._likeliest(hinted_TD, plain_TD)

    @torch.no_grad()
    def _reference(self, sample: WeightedSample) -> Target:
        return self._likeliest(self._hidden_TD(sample.prompt_ids, sample, base=True), None)

    def _likeliest(self, hidden_TD: Tensor, plain_TD: Tensor | None) -> Target:
        ids, values = [], []
        for at in range(0, len(hidden_TD), LOGITS_CHUNK):
            logp_TV = self._policy.logp_NV(hidden_TD[at : at + LOGITS_CHUNK])
            if plain_TD is not None:
                plain_TV = self._policy.logp_NV(plain_TD[at : at + LOGITS_CHUNK])
                logp_TV = losses.guided(plain_TV, logp_TV, self._guidance)
            top = logp_TV.topk(self._top_k, -1)
            ids.append(top.indices)
            values.append(top.values)
        return Target(torch.cat(ids), torch.cat(values))


@lru_cache(maxsize=1)
def default_anchors(policy: Policy) -> list[Anchor]:
    """The package's neutral texts in the ids of this model, and base's likeliest answers to the package's requests."""
    chat = chat_of(policy.model_dir)
    data = json.loads((Path(__file__).parent / "data" / "anchors.json").read_text("utf-8"))
    prompts = [chat.encode_prompt([{"role": "user", "content": text}]) for text in data["requests"]]
    with policy.as_base():
        answers = sample(
            policy, prompts, stop_ids=chat.stop_ids, max_tokens=ANCHOR_TOKENS, temperature=0.0, seed=0
        )
    asked = [Anchor([*p, *a.ids], len(p)) for p, a in zip(prompts, answers, strict=True)]
    return [*(Anchor(chat.encode(text)) for text in data["texts"]), *asked]
