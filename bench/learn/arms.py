"""The arms: how, if at all, the model gets better at what its user wants."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

API, FAST = "api", "fast"
BOTH = (API, FAST)


@dataclass(frozen=True, slots=True)
class Arm:
    """`settings` are training settings beside the product's defaults.

    `method` None is the product's own (settings.method); "token_opd" and "published" are methods of the benchmark,
    which only the fast path can run. `remembers`: corrections go into the system prompt. `hinted`: held-out
    questions come with a correction in front. `gated`: what the product's gate rejects is not served.
    """

    name: str
    about: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    learns: bool = True
    method: str | None = None
    reactions: str = "meant"
    remembers: bool = False
    hinted: bool = False
    gated: bool = True
    full_weights: bool = False
    paths: tuple[str, ...] = BOTH

    @property
    def talks(self) -> bool:
        """Whether anything changes by talking; if not, one look is enough."""
        return self.learns or self.remembers


_PUBLISHED = {
    "lr": 1e-5,
    "batch_size": 16,
    "micro_batch": 16,
    "passes": 1,
    "anchor_kl": 0.0,
    "teacher": "policy",
}
"""Combined token distillation and policy gradient, one step of 16 turns at the rate of full fine-tuning."""

ARMS: dict[str, Arm] = {
    arm.name: arm
    for arm in (
        Arm("nothing", "the untouched model", learns=False),
        Arm("hinted", "the untouched model, a correction in front of every held-out question: the ceiling of what "
            "the words alone can do", learns=False, hinted=True),
        Arm("random", "ours, under reactions that mean nothing", reactions="random"),
        Arm("system_prompt", "no training: every correction is kept in the system prompt", learns=False,
            remembers=True),
        Arm("published_lora", "the published recipe as LoRA", _PUBLISHED, method="published", gated=False,
            paths=(FAST,)),
        Arm("published_full", "the published recipe, all weights", _PUBLISHED, method="published", gated=False,
            full_weights=True, paths=(FAST,)),
        Arm("binary_rl", "thumbs alone", {"method": "binary_rl"}),
        Arm("opd_token", "distillation, the advantage of the sampled token", method="token_opd", paths=(FAST,)),
        Arm("opd_topk", "distillation, reverse KL over the likeliest tokens", {"method": "opd"}),
        Arm("combined", "ours, the default", {"method": "combined"}),
    )
}  # fmt: skip
OURS = "combined"
