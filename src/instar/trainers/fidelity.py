"""Do engine and trainer mean the same by a log-prob? The tokens of an answer, scored again by the trainer.

Δ = log π_old − μ: the trainer's log-prob of a sampled token less the engine's, in nats. Under the version that sampled
it they differ by rounding alone: hardly in fp32, by 0.03 to 0.05 a token in bf16. A turn that differs by more on
average was sampled by something else than it says, and is set aside: its log-probs can neither tell how old it is nor
correct for that. Turns of older versions differ by what was learned since; of them nothing is concluded. All that
remains is corrected for token by token (losses.importance_T).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from instar.records import Origin, WeightedSample
from instar.trainers.prepare import Prepared

TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 0.2}
"""Mean |Δ| of a turn up to which its log-probs are the policy's, by what the trainer computes in."""
FAR = 50.0
"""Nats beyond which it does not matter how far apart two log-probs are."""
ALL_SET_ASIDE = (
    "Engine and trainer disagree about how likely these answers are, so nothing was learned from them."
)


def compare(prepared: Sequence[Prepared], parent: str, dtype: torch.dtype) -> dict[str, Any]:
    """Figures over the turns that `parent` sampled itself: mean |Δ|, mean of exp Δ, largest |Δ|, and the turns whose
    mean |Δ| is above the tolerance. The figures are None where there is no such turn."""
    gaps = {p.sample.turn_id: gap_T(p) for p in prepared if p.sample.version == parent and is_scored(p)}
    means = {turn_id: float(gap.abs().mean()) for turn_id, gap in gaps.items()}
    tolerance = TOLERANCE[dtype]
    facts: dict[str, Any] = {
        "dtype": str(dtype).removeprefix("torch."),
        "tolerance": tolerance,
        "turns": len(gaps),
        "tokens": sum(map(len, gaps.values())),
        "mean": None,
        "ratio": None,
        "largest": None,
        "set_aside": {turn_id: mean for turn_id, mean in means.items() if not mean <= tolerance},
    }
    if gaps:
        gap_N = torch.cat(list(gaps.values()))
        facts["mean"] = float(gap_N.abs().mean())
        facts["ratio"] = float(gap_N.exp().mean())
        facts["largest"] = float(gap_N.abs().max())
    return facts


def is_apart(sample: WeightedSample, set_aside: Mapping[str, float]) -> bool:
    """Whether this is the answer whose log-probs are not to be believed, and not a correction of it."""
    return sample.turn_id in set_aside and sample.origin is Origin.SAMPLED


def is_scored(prepared: Prepared) -> bool:
    sample = prepared.sample
    return sample.origin is Origin.SAMPLED and len(sample.logprobs) == len(sample.response_ids)


def gap_T(prepared: Prepared) -> Tensor:
    """Δ of each token; what is no number counts as far apart."""
    gap = prepared.old_logp_T - torch.as_tensor(prepared.sample.logprobs)
    return gap.nan_to_num(nan=FAR).clamp(-FAR, FAR)


def mismatch(prepared: Sequence[Prepared]) -> float | None:
    """Mean |Δ| over all sampled tokens, whichever version sampled them. None without log-probs."""
    gaps = [gap_T(p).abs() for p in prepared if len(p.sample.logprobs) == len(p.sample.response_ids)]
    return float(torch.cat(gaps).mean()) if gaps else None
