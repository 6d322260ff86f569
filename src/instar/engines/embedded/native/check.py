"""Does the native step of this model, on this machine, give what torch gives?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from instar.engines.embedded.adapters import Adapter
from instar.engines.embedded.kv import StreamCache
from instar.engines.embedded.linear import LoraTerm, Product
from instar.engines.embedded.model import Model, Stream
from instar.engines.embedded.native.step import NativeStep

TOLERANCE = 0.15
_PROMPTS = (15, 6, 9)  # tokens of each stream before the steps that are compared
_STEPS = 3
_RANK, _SCALE = 3, 0.1


@torch.inference_mode()
def disagreement(model: Model, native: NativeStep) -> float:
    """Mean distance of its logits from torch's, in standard deviations of these; of the worst row.

    Rows of different length, of base and of an adapter, in one batch. Rounding makes 0.01 to 0.05 in bf16.
    """
    adapters = (None, _trial_adapter(model), None)
    here = [
        Stream(StreamCache(model.layout, length + _STEPS), adapter)
        for length, adapter in zip(_PROMPTS, adapters, strict=True)
    ]
    there = [Stream(StreamCache(model.layout, s.cache.capacity), s.adapter) for s in here]
    ids = [(place * 7_919 + 1) % model.vocab_size for place in range(sum(_PROMPTS) + _STEPS)]
    for stream, other, length in zip(here, there, _PROMPTS, strict=True):
        model.prefill(stream, ids[:length])
        other.cache.copy_from(stream.cache, length)
    worst = 0.0
    for step in range(_STEPS):
        last = ids[step : step + len(here)]
        wanted = model.decode_in_torch(here, last).float()
        found = native.decode(there, last)
        distance_B = (found - wanted).abs().mean(dim=-1) / wanted.std(dim=-1).clamp_min(1e-6)
        worst = max(worst, float(distance_B.nan_to_num(nan=float("inf")).max()))
    return worst


def _trial_adapter(model: Model) -> Adapter:
    """Random matrices for every layer, so large that leaving them out would be seen."""
    source = torch.Generator().manual_seed(0)
    products = {product.name: product for product in model.products.values()}
    terms = {
        name: random_term(product, list(product.slices.values()), source, _SCALE, _RANK)
        for name, product in products.items()
    }
    return Adapter("trial", Path(), terms)


def random_term(
    product: Product, parts: Sequence[slice], source: torch.Generator, scale: float, rank: int
) -> LoraTerm:
    """What an adapter adds to those outputs of a product: `scale` times the length of its input, about."""
    down = torch.randn(product.in_features, rank * len(parts), generator=source) / product.in_features**0.5
    up = torch.zeros(rank * len(parts), product.out_features)
    for place, outputs in enumerate(parts):
        size = (rank, outputs.stop - outputs.start)
        up[place * rank : (place + 1) * rank, outputs] = scale * torch.randn(size, generator=source)
    return LoraTerm(down, up)
