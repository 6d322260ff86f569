"""Answers sampled inside the compute child: for the gate, and for the benchmark's fast path.

Chat is served by an engine, never by this. Rows that have ended leave the batch, so short answers are cheap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from transformers import DynamicCache

from instar.trainers.policy import Policy, PrefixCache, is_long


@dataclass(slots=True)
class Answer:
    """Sampled ids (the stop token included, if one came) and their log-probs under the raw policy."""

    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    ended: bool = False


def _left_padded(rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    longest = max(map(len, rows))
    ids_BT = torch.zeros((len(rows), longest), dtype=torch.long)
    mask_BT = torch.zeros((len(rows), longest), dtype=torch.long)
    for i, row in enumerate(rows):
        ids_BT[i, longest - len(row) :] = torch.as_tensor(row)
        mask_BT[i, longest - len(row) :] = 1
    return ids_BT, mask_BT


@torch.no_grad()
def sample(
    policy: Policy,
    prompts: Sequence[Sequence[int]],
    *,
    stop_ids: Sequence[int],
    max_tokens: int,
    temperature: float | Sequence[float],
    seed: int,
    enough: int | None = None,
    prefixes: PrefixCache | None = None,
) -> list[Answer]:
    """One answer per prompt, all in one batch. Temperature 0 is greedy; the same seed gives the same answers.

    `temperature` may be one for each prompt. When `enough` answers have ended, the others are left unfinished.
    With `prefixes`, a long prompt that is the same for all is taken from there.
    """
    heat = [temperature] * len(prompts) if isinstance(temperature, int | float) else list(temperature)
    read = DynamicCache()
    if prefixes is not None and _same(prompts) and is_long(len(prompts[0])):
        read = prefixes.get(prompts[0][:-1])
    with policy.for_sampling():
        return _decode(policy, prompts, read, set(stop_ids), max_tokens, heat, seed, enough or len(prompts))


def _decode(
    policy: Policy,
    prompts: Sequence[Sequence[int]],
    cache: DynamicCache,
    stop_ids: set[int],
    max_tokens: int,
    heat: Sequence[float],
    seed: int,
    enough: int,
) -> list[Answer]:
    generator = torch.Generator().manual_seed(seed)
    answers = [Answer() for _ in prompts]
    alive = list(range(len(prompts)))
    logp_BV, mask_BT = _read_prompts(policy, prompts, cache)
    for _ in range(max_tokens):
        next_B = _draw(logp_BV, heat, generator, alive)
        chosen = logp_BV.gather(1, next_B[:, None])[:, 0].tolist()
        keep = []
        for row, (who, token, logp) in enumerate(zip(alive, next_B.tolist(), chosen, strict=True)):
            answers[who].ids.append(token)
            answers[who].logprobs.append(logp)
            answers[who].ended = token in stop_ids
            if not answers[who].ended:
                keep.append(row)
        if len(prompts) - len(keep) >= enough or len(answers[alive[0]].ids) == max_tokens:
            break
        if len(keep) < len(alive):
            index = torch.tensor(keep)
            alive = [alive[row] for row in keep]
            next_B, mask_BT = next_B[index], mask_BT[index]
            cache.batch_select_indices(index)
        mask_BT = torch.cat([mask_BT, mask_BT.new_ones((len(alive), 1))], 1)
        logp_BV = _next_logp(policy, next_B[:, None], mask_BT, cache)
    return answers


def _read_prompts(
    policy: Policy, prompts: Sequence[Sequence[int]], cache: DynamicCache
) -> tuple[Tensor, Tensor]:
    """Log-probs of the first tokens and the mask, a row a prompt. The same prompt many times is read once, from where
    the cache ends."""
    same = _same(prompts)
    ids_BT, mask_BT = _left_padded(prompts[:1] if same else prompts)
    logp_BV = _next_logp(policy, ids_BT[:, cache.get_seq_length() :], mask_BT, cache)
    if not same:
        return logp_BV, mask_BT
    cache.batch_repeat_interleave(len(prompts))
    return logp_BV.expand(len(prompts), -1), mask_BT.expand(len(prompts), -1)


def _same(prompts: Sequence[Sequence[int]]) -> bool:
    return all(prompt == prompts[0] for prompt in prompts)


def _next_logp(policy: Policy, ids_BT: Tensor, mask_BT: Tensor, cache: DynamicCache) -> Tensor:
    positions_BT = (mask_BT.cumsum(-1) - 1).clamp(min=0)[:, -ids_BT.shape[1] :]
    hidden_BTD = policy.body(
        input_ids=ids_BT,
        attention_mask=mask_BT,
        position_ids=positions_BT,
        past_key_values=cache,
        use_cache=True,
    ).last_hidden_state
    return policy.logp_NV(hidden_BTD[:, -1])


def _draw(logp_BV: Tensor, heat: Sequence[float], generator: torch.Generator, alive: Sequence[int]) -> Tensor:
    """Next ids, by inversion: one uniform per original row, so a row's answer does not depend on who has ended."""
    index = torch.as_tensor(alive)
    heat_B = torch.as_tensor(heat)[index]
    if not heat_B.any():
        return logp_BV.argmax(-1)
    uniform_B = torch.rand(len(heat), generator=generator)[index]
    cumulative_BV = torch.softmax(logp_BV / heat_B.clamp(min=1e-6)[:, None], -1).cumsum(-1)
    drawn_B = torch.searchsorted(cumulative_BV, (uniform_B * cumulative_BV[:, -1])[:, None])[:, 0]
    return torch.where(heat_B == 0, logp_BV.argmax(-1), drawn_B.clamp(max=logp_BV.shape[-1] - 1))
