"""Where should a corrected answer have ended? Read from how the user's words change base's urge to stop.

Length is the one property of an answer that a single token decides, so the smallest revision there can be is to end
earlier: every word stays the model's own, only the stop token is new.

Let h(t) be base's probability of a stop token after t tokens of the rejected answer. Ending there has the probability
h(t) · Π_{s<t} (1 − h(s)), a discrete-time hazard. If base with the words in front would more likely than not have
ended before the answer did, and base without them would not, the answer ends at the median of that time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from instar.trainers.policy import Policy

FEWEST_TOKENS = 4
"""An answer of fewer tokens is none, so nothing ends before."""
LEAST_MASS = 0.5
"""Probability of ending earlier, with the words in front, from which an answer is ended."""
MOST_PLAIN = 0.5
"""Share of that probability which base may have without the words."""


@dataclass(frozen=True, slots=True)
class Ending:
    """`at` tokens stay. The masses are the probabilities of ending before the answer did, with and without words."""

    at: int
    hinted_mass: float
    plain_mass: float

    @property
    def is_asked_for(self) -> bool:
        return self.hinted_mass >= LEAST_MASS and self.plain_mass <= MOST_PLAIN * self.hinted_mass


def ending_time_T(stop_T: Tensor) -> Tensor:
    """Probability of ending after t tokens, from that of stopping there, both of shape (T,), t = 0 … T − 1."""
    stop_T = stop_T.clone()
    stop_T[:FEWEST_TOKENS] = 0.0
    alive_T = torch.cat([torch.ones(1), (1.0 - stop_T).cumprod(0)[:-1]])
    return stop_T * alive_T


@torch.no_grad()
def stop_probability_T(
    policy: Policy, prompt: Sequence[int], body: Sequence[int], stop_ids: Sequence[int]
) -> Tensor:
    """Probability of a stop token after each of 0 … len(body) − 1 tokens of an answer."""
    logp_TV = policy.logp_NV(policy.hidden_ND([[*prompt, *body]], [len(prompt)]))
    return logp_TV[:, list(stop_ids)].exp().sum(-1)


def earlier_ending(
    policy: Policy, prompt: Sequence[int], hinted: Sequence[int], body: Sequence[int], stop_ids: Sequence[int]
) -> Ending | None:
    """Where the answer would have ended, had the words been heeded; None where they ask for no such thing.

    `body` is the rejected answer without its stop token. To be called while the policy stands as base.
    """
    if len(body) <= FEWEST_TOKENS:
        return None
    hinted_T = ending_time_T(stop_probability_T(policy, hinted, body, stop_ids))
    plain_T = ending_time_T(stop_probability_T(policy, prompt, body, stop_ids))
    total = float(hinted_T.sum())
    median = int((hinted_T.cumsum(0) >= 0.5 * total).nonzero()[0])
    found = Ending(median, total, float(plain_T.sum()))
    return found if found.is_asked_for else None
