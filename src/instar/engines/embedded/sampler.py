"""From logits to sampled ids, with the raw log-probs of what was sampled."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from instar.engines.grammar import Matcher
from instar.errors import RequestError

_GREEDY_BELOW = 1e-5
_FREE: tuple[bool, RequestError | None] = (False, None)
_LIKELIEST = 64


@dataclass(frozen=True, slots=True)
class Choosing:
    """How one row is sampled. `alternatives`: how many of the likeliest tokens to tell beside it.

    `matcher` is where its answer stands in its grammar; None: it is free.
    """

    temperature: float
    top_p: float
    source: random.Random
    alternatives: int = 0
    matcher: Matcher | None = None


@dataclass(frozen=True, slots=True)
class Sampled:
    """`logprob` is ln p under the raw policy: before temperature, top-p and grammar, from a float32 log-softmax.

    `forced`: a grammar decided the token. `error`: it could not be followed any further.
    """

    token_id: int
    logprob: float
    top: list[tuple[int, float]]
    forced: bool = False
    error: RequestError | None = None


def sample(logits_BV: Tensor, rows: Sequence[Choosing]) -> list[Sampled]:
    """One token per row. A row whose logits are not finite gets the log-prob NaN."""
    logits = logits_BV.float()
    total_B = torch.logsumexp(logits, dim=-1)
    ids_B = torch.argmax(logits, dim=-1)
    warm = [i for i, row in enumerate(rows) if row.temperature >= _GREEDY_BELOW]
    if warm:
        ids_B[warm] = _warm(logits if len(warm) == len(rows) else logits[warm], [rows[i] for i in warm])
    bound = [_obey(logits[i], row, ids_B, i) if row.matcher else _FREE for i, row in enumerate(rows)]
    logprob_B = logits.gather(1, ids_B[:, None])[:, 0] - total_B
    most = max(row.alternatives for row in rows)
    tops: list[list[tuple[int, float]]] = [[] for _ in rows]
    if most:
        values, places = logits.topk(most, dim=-1)
        known = (values - total_B[:, None]).tolist()
        tops = [
            list(zip(ids[: row.alternatives], found[: row.alternatives], strict=True))
            for row, ids, found in zip(rows, places.tolist(), known, strict=True)
        ]
    found_ids, logprobs = ids_B.tolist(), logprob_B.tolist()
    found = zip(found_ids, logprobs, tops, bound, strict=True)
    return [Sampled(i, lp, top, forced, error) for i, lp, top, (forced, error) in found]


def _obey(logits_V: Tensor, row: Choosing, ids_B: Tensor, at: int) -> tuple[bool, RequestError | None]:
    """Hold row `at` to its grammar: whether that decided the token, and why it cannot go on.

    The token that the model drew stays where it is allowed; else one is drawn among those that are. Together that is
    sampling from the model's distribution restricted to what is allowed and scaled up (rejection, then renormalised),
    and it tells the model's own tokens from those that it would not have said.
    """
    assert row.matcher is not None
    try:
        allowed = row.matcher.allowed_V()
    except RequestError as error:
        return True, error
    drawn = int(ids_B[at])
    forced = not allowed[drawn]
    if forced and allowed.any():
        masked = logits_V.masked_fill(~torch.from_numpy(allowed).to(logits_V.device), -math.inf)
        is_warm = row.temperature >= _GREEDY_BELOW
        drawn = int(_warm(masked[None], [row])[0] if is_warm else masked.argmax())
        ids_B[at] = drawn
    row.matcher.take(drawn)
    return forced or int(allowed.sum()) <= 1, None


def _warm(logits: Tensor, rows: Sequence[Choosing]) -> Tensor:
    """Sample each row at its temperature and top-p. The random number is drawn once per row and token."""
    draws = torch.tensor([row.source.random() for row in rows], dtype=torch.float64, device=logits.device)
    temperatures = torch.tensor([row.temperature for row in rows], device=logits.device)
    scaled = logits / temperatures[:, None]
    cut = [i for i, row in enumerate(rows) if row.top_p < 1]
    if not cut:
        return _inverse(torch.softmax(scaled, dim=-1), draws)
    ids = torch.empty(len(rows), dtype=torch.long, device=logits.device)
    whole = [i for i, row in enumerate(rows) if row.top_p >= 1]
    if whole:
        ids[whole] = _inverse(torch.softmax(scaled[whole], dim=-1), draws[whole])
    ids[cut] = _nucleus(scaled[cut], torch.tensor([rows[i].top_p for i in cut]).to(logits), draws[cut])
    return ids


def _inverse(weights: Tensor, draws: Tensor) -> Tensor:
    """Inverse of the cumulative distribution: exact, and without a sort. `weights` need not sum to 1."""
    cumulative = weights.cumsum(-1, dtype=torch.float64)
    wanted = (draws * cumulative[:, -1])[:, None]
    found = torch.searchsorted(cumulative, wanted, right=True)[:, 0]
    return found.clamp_(max=weights.shape[-1] - 1)


def _nucleus(scaled: Tensor, top_p: Tensor, draws: Tensor) -> Tensor:
    """The smallest set of likeliest tokens whose mass reaches top_p (Holtzman et al. 2020, eq. 2).

    The 64 likeliest nearly always hold that mass; only the rows where they do not pay for a full sort.
    """
    total = torch.logsumexp(scaled, dim=-1, keepdim=True)
    count = min(_LIKELIEST, scaled.shape[-1])
    values, places = scaled.topk(count, dim=-1)
    ids, is_short = _from_sorted((values - total).exp(), places, top_p, draws)
    if count < scaled.shape[-1] and bool(is_short.any()):
        rest = is_short.nonzero()[:, 0]
        values, places = scaled[rest].sort(dim=-1, descending=True)
        ids[rest], _ = _from_sorted((values - total[rest]).exp(), places, top_p[rest], draws[rest])
    return ids


def _from_sorted(probs: Tensor, places: Tensor, top_p: Tensor, draws: Tensor) -> tuple[Tensor, Tensor]:
    """Ids sampled from descending `probs`, and which rows hold less mass than top_p."""
    cumulative = probs.cumsum(-1)
    before = cumulative - probs
    kept = torch.where(before < top_p[:, None], probs, torch.zeros_like(probs))
    ids = places.gather(1, _inverse(kept, draws)[:, None])[:, 0]
    return ids, cumulative[:, -1] < top_p


def is_usable(sampled: Sampled) -> bool:
    return not math.isnan(sampled.logprob)
