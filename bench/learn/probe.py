"""Measures that need the model itself: how far it is from base, and what base thinks of its answers."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from bench.prompts import UNRELATED
from bench.talk import Message
from instar.chat_format import ChatFormat
from instar.trainers.losses import forward_kl_T
from instar.trainers.policy import Policy
from instar.trainers.sampling import sample

CONTINUATION_TOKENS = 24
ROWS = 4
"""Rows of one pass: 4 × 24 positions × 49,152 log-probs in fp32 are 19 MB."""


class Probe:
    """Remembers base's own continuations, so one probe serves all cells of a process."""

    def __init__(self, chat: ChatFormat) -> None:
        self._chat = chat
        self._continuations: list[list[int]] = []

    @torch.no_grad()
    def unrelated_kl(self, policy: Policy, system: Sequence[Message] = ()) -> float:
        """KL(policy ‖ base) in nats a token, over the beginnings of base's own greedy answers to unrelated prompts.

        With `system` messages the policy is shown them and base is not: what stands in the system prompt moves
        unrelated answers too.
        """
        asked = [[{"role": "user", "content": q}] for q in UNRELATED]
        plain = [self._chat.encode_prompt(messages) for messages in asked]
        shown = [self._chat.encode_prompt([*system, *messages]) for messages in asked]
        answers = self._base_continuations(policy, plain)
        total, count = 0.0, 0
        for at in range(0, len(answers), ROWS):
            part = slice(at, at + ROWS)
            now_NV = self._logp_NV(policy, shown[part], answers[part])
            with policy.as_base():
                base_NV = self._logp_NV(policy, plain[part], answers[part])
            total += float(forward_kl_T(base_NV, now_NV).sum())
            count += len(now_NV)
        return total / count

    def _base_continuations(self, policy: Policy, prompts: Sequence[list[int]]) -> list[list[int]]:
        if not self._continuations:
            with policy.as_base():
                found = sample(
                    policy,
                    prompts,
                    stop_ids=self._chat.stop_ids,
                    max_tokens=CONTINUATION_TOKENS,
                    temperature=0.0,
                    seed=0,
                )
            self._continuations = [a.ids for a in found]
        return self._continuations

    @staticmethod
    def _logp_NV(policy: Policy, prompts: Sequence[list[int]], answers: Sequence[list[int]]) -> torch.Tensor:
        rows = [[*p, *a] for p, a in zip(prompts, answers, strict=True)]
        return policy.logp_NV(policy.hidden_ND(rows, [len(p) for p in prompts]))

    @torch.no_grad()
    def base_logp(self, policy: Policy, question: str, answer: str) -> float | None:
        """Base's mean log-prob a token of an answer, the stop token left out; None for an answer without tokens."""
        ids = self._chat.encode(answer)
        if not ids:
            return None
        prompt = self._chat.encode_prompt([{"role": "user", "content": question}])
        with policy.as_base():
            logp_TV = self._logp_NV(policy, [prompt], [ids])
        return float(logp_TV.gather(1, torch.as_tensor(ids)[:, None]).mean())
