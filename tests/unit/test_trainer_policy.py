"""Forward passes: long prompts give what short paths give, and sampling tells the log-probs it sampled with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from instar.trainers import attention
from instar.trainers.policy import Policy, PrefixCache
from instar.trainers.sampling import sample
from tests.kit.tiny_model import STOP_ID, write_tiny_model

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Policy:
    found = Policy(write_tiny_model(tmp_path_factory.mktemp("tiny")), rank=4, alpha=8)
    found.reset(1)
    with torch.no_grad():
        generator = torch.Generator().manual_seed(2)
        for _, parameter in found.named_parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))
    return found


def tokens(count: int, seed: int) -> list[int]:
    found: list[int] = torch.randint(3, 259, (count,), generator=torch.Generator().manual_seed(seed)).tolist()
    return found


@pytest.mark.usefixtures("narrow")
def test_a_prefix_in_the_cache_gives_the_same_log_probs(policy: Policy) -> None:
    shared = tokens(40, 1)
    rows = [
        [*shared, *tokens(12, 2)],
        [*shared, *tokens(20, 3)],
        tokens(10, 4),
        [*shared[:30], *tokens(25, 5)],
    ]
    starts = [48, 50, 4, 45]
    with torch.no_grad():
        plain_NV = policy.logp_NV(policy.hidden_ND(rows, starts))
        cached_NV = policy.logp_NV(policy.hidden_ND(rows, starts, PrefixCache(policy)))
    assert plain_NV.shape == cached_NV.shape == (4 + 10 + 6 + 10, 259)
    assert (plain_NV - cached_NV).abs().max() < 0.15  # bf16 adds in another order
    assert (plain_NV - cached_NV).abs().mean() < 0.01


@pytest.mark.usefixtures("narrow")
def test_a_shared_beginning_is_computed_once(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    prefilled: list[int] = []
    plain = Policy.prefill

    def counting(self: Policy, ids: list[int], past: object) -> object:
        prefilled.append(len(ids))
        return plain(self, ids, past)  # type: ignore[arg-type]

    monkeypatch.setattr(Policy, "prefill", counting)
    shared = tokens(40, 1)
    rows = [[*shared, *tokens(14, seed)] for seed in (2, 3)]
    with torch.no_grad():
        policy.hidden_ND(rows, [50, 50], PrefixCache(policy))
    assert prefilled == [49, 17]  # whole chunks of 16 are shared: the first two


@pytest.mark.usefixtures("narrow")
def test_gradients_flow_through_the_whole_of_a_long_prompt(policy: Policy) -> None:
    row = [*tokens(40, 1), *tokens(6, 2)]
    gradients = []
    for prefixes in (None, PrefixCache(policy)):
        hidden_ND = policy.hidden_ND([row], [40], prefixes)
        gradients.append(torch.autograd.grad(hidden_ND.float().sum(), policy.parameters))
    assert hidden_ND.shape == (6, 64)
    for one, other in zip(*gradients, strict=True):
        assert torch.equal(one, other)
        assert one.abs().max() > 0


def test_base_is_the_model_without_its_adapter(policy: Policy) -> None:
    row = tokens(12, 1)
    with torch.no_grad():
        adapted = policy.hidden_ND([row], [4])
        with policy.as_base():
            base = policy.hidden_ND([row], [4])
        again = policy.hidden_ND([row], [4])
    assert not torch.equal(adapted, base)
    assert torch.equal(adapted, again)


@pytest.mark.parametrize("as_base", [False, True])
def test_sampled_log_probs_are_those_of_the_training_pass(policy: Policy, as_base: bool) -> None:
    prompts = [tokens(5, 1), tokens(17, 2)]

    def both() -> tuple[list[float], torch.Tensor]:
        answers = sample(policy, prompts, stop_ids=[STOP_ID], max_tokens=12, temperature=0.7, seed=3)
        rows = [[*p, *a.ids] for p, a in zip(prompts, answers, strict=True)]
        with torch.no_grad():
            logp_NV = policy.logp_NV(policy.hidden_ND(rows, [len(p) for p in prompts]))
        token_N = torch.tensor([i for a in answers for i in a.ids])
        return [x for a in answers for x in a.logprobs], logp_NV.gather(-1, token_N[:, None])[:, 0]

    if as_base:
        with policy.as_base():
            told, computed_N = both()
    else:
        told, computed_N = both()
    assert (torch.tensor(told) - computed_N).abs().mean() < 0.03


def test_the_same_seed_gives_the_same_answers(policy: Policy) -> None:
    prompts = [tokens(5, 1), tokens(9, 2)]
    once = sample(policy, prompts, stop_ids=[STOP_ID], max_tokens=8, temperature=1.0, seed=3)
    again = sample(policy, prompts, stop_ids=[STOP_ID], max_tokens=8, temperature=1.0, seed=3)
    other = sample(policy, prompts, stop_ids=[STOP_ID], max_tokens=8, temperature=1.0, seed=4)
    assert [a.ids for a in once] == [a.ids for a in again]
    assert [a.ids for a in once] != [a.ids for a in other]


def test_an_answer_ends_at_a_stop_token_and_the_others_go_on(policy: Policy) -> None:
    prompts = [tokens(5, 1), tokens(9, 2)]
    greedy = sample(policy, prompts, stop_ids=[], max_tokens=8, temperature=0.0, seed=0)
    stop = greedy[0].ids[2]
    ended, other = sample(policy, prompts, stop_ids=[stop], max_tokens=8, temperature=0.0, seed=0)
    assert ended.ids == greedy[0].ids[: greedy[0].ids.index(stop) + 1]
    assert ended.ended
    assert len(ended.logprobs) == len(ended.ids)
    if stop not in greedy[1].ids:
        assert other.ids == greedy[1].ids
        assert not other.ended


def test_enough_answers_end_the_batch_and_each_has_its_own_temperature(policy: Policy) -> None:
    prompts = [[30, 40, 50]] * 4
    given: dict[str, Any] = {"stop_ids": list(range(3, 90)), "max_tokens": 40, "seed": 5}
    alone = sample(policy, prompts[:2], temperature=0.0, **given)
    mixed = sample(policy, prompts, temperature=(0.0, 0.0, 1.5, 1.5), **given)
    assert [a.ids for a in mixed[:2]] == [a.ids for a in alone]
    assert mixed[2].ids != mixed[3].ids
    assert all(a.ended for a in mixed)
    few = sample(policy, prompts, temperature=1.5, enough=1, **given)
    lengths = sorted(len(a.ids) for a in few)
    assert any(a.ended for a in few)
    assert (
        lengths[0] == lengths[-1] < max(len(a.ids) for a in sample(policy, prompts, temperature=1.5, **given))
    )


def test_the_same_prompt_many_times_is_read_once_and_sampled_as_ever(
    policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    forward = policy.body.forward
    monkeypatch.setattr(
        policy.body, "forward", lambda **given: (read.append(given["input_ids"].numel()), forward(**given))[1]
    )
    prompt = tokens(30, seed=4)
    found = sample(policy, [prompt] * 3, stop_ids=[STOP_ID], max_tokens=12, temperature=1.0, seed=8)
    assert read[0] == 30
    assert len({tuple(a.ids) for a in found}) == 3
    monkeypatch.undo()
    for answer in found:
        with torch.no_grad():
            logp_TV = policy.logp_NV(policy.hidden_ND([[*prompt, *answer.ids]], [30]))
        expected = logp_TV.gather(1, torch.tensor(answer.ids)[:, None])[:, 0]
        assert torch.allclose(torch.tensor(answer.logprobs), expected, atol=0.05)


@pytest.fixture
def read(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many tokens each prefill was given."""
    found: list[int] = []
    prefill = policy.prefill
    monkeypatch.setattr(policy, "prefill", lambda ids, past: (found.append(len(ids)), prefill(ids, past))[1])
    return found


@pytest.mark.usefixtures("narrow")
def test_prompts_are_held_as_far_as_there_is_room_those_used_last(policy: Policy, read: list[int]) -> None:
    first, second, third = tokens(40, seed=1), tokens(50, seed=2), tokens(60, seed=3)
    a_token = sum(2 * layer.keys[:, :, :1].nbytes for layer in PrefixCache(policy).get(first).layers)
    read.clear()
    prefixes = PrefixCache(policy, room=110 * a_token)
    for ids in (first, second, first, second, third, second, first):
        assert prefixes.get(ids).get_seq_length() == len(ids)
    assert read == [40, 50, 60, 40]


@pytest.mark.usefixtures("narrow")
def test_a_prompt_longer_than_the_room_is_held_alone(policy: Policy, read: list[int]) -> None:
    prefixes = PrefixCache(policy, room=1)
    assert prefixes.get(tokens(40, seed=1), 30).get_seq_length() == 30
    assert prefixes.get(tokens(40, seed=1), 35).get_seq_length() == 35
    assert read == [40]


@pytest.mark.usefixtures("narrow")
def test_what_one_version_read_is_not_handed_to_the_next(policy: Policy, read: list[int]) -> None:
    prefixes = PrefixCache(policy)
    for version in ("v1", "v1", "v2"):
        prefixes.hold_for(version)
        prefixes.read(tokens(40, seed=1))
    assert read == [40, 40]


@pytest.mark.usefixtures("narrow")
def test_a_prompt_is_read_the_same_to_the_bit_whatever_was_read_before(policy: Policy) -> None:
    ids = [*tokens(40, seed=1), *tokens(9, seed=2)]
    alone, after = PrefixCache(policy), PrefixCache(policy)
    after.read([*ids[:43], *tokens(30, seed=3)])
    for one, other in zip(alone.get(ids).layers, after.get(ids).layers, strict=True):
        assert torch.equal(one.keys, other.keys)
        assert torch.equal(one.values, other.values)


@pytest.mark.usefixtures("narrow")
def test_what_is_handed_out_may_be_extended(policy: Policy) -> None:
    prefixes, ids = PrefixCache(policy), tokens(40, seed=1)
    with torch.no_grad():
        once = policy.hidden_ND([[*ids, 5, 6, 7]], [40], prefixes)
        again = policy.hidden_ND([[*ids, 5, 6, 7]], [40], prefixes)
    assert torch.equal(once, again)
    assert prefixes.read(ids[:-1]).get_seq_length() == 39


@pytest.mark.usefixtures("narrow")
def test_answers_to_a_prompt_that_is_held_are_those_to_the_prompt(policy: Policy, read: list[int]) -> None:
    prompt = tokens(40, seed=1)
    given: dict[str, Any] = {"stop_ids": [STOP_ID], "max_tokens": 12, "temperature": 0.7, "seed": 3}
    prefixes = PrefixCache(policy)
    plain = sample(policy, [prompt] * 3, **given)
    held = sample(policy, [prompt] * 3, **given, prefixes=prefixes)
    assert [a.ids for a in held] == [a.ids for a in plain]
    for one, other in zip(held, plain, strict=True):
        assert torch.allclose(torch.tensor(one.logprobs), torch.tensor(other.logprobs), atol=0.05)
    sample(policy, [prompt] * 3, **given, prefixes=prefixes)
    assert read == [39]


# ── attention ─────────────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize(("steps", "length"), [(1, 9), (5, 5), (4, 9)])
@pytest.mark.parametrize("up_to", [0, 10_000])
@pytest.mark.parametrize("softcap", [None, 2.0])
def test_attention_is_that_of_the_textbook(
    monkeypatch: pytest.MonkeyPatch, steps: int, length: int, up_to: int, softcap: float | None
) -> None:
    """By products and by the fused kernel: softmax(q·k / √d) over the keys that a query may see."""
    monkeypatch.setattr(attention, "PRODUCTS_UP_TO", up_to)
    draw = torch.Generator().manual_seed(0)
    query = torch.randn(2, 6, steps, 4, generator=draw)
    key, value = (torch.randn(2, 3, length, 4, generator=draw) for _ in range(2))
    mixed, _ = attention.attend(torch.nn.Module(), query, key, value, None, softcap=softcap)
    scores = torch.einsum("bhtd,bhsd->bhts", query, key.repeat_interleave(2, 1)) / 4**0.5
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    seen = torch.arange(length)[None] <= torch.arange(steps)[:, None] + length - steps
    weights = torch.softmax(scores.masked_fill(~seen, float("-inf")), -1)
    expected = torch.einsum("bhts,bhsd->bthd", weights, value.repeat_interleave(2, 1))
    assert torch.allclose(mixed, expected, atol=1e-5)


def test_attention_sees_what_a_mask_lets_it_see() -> None:
    key, value = torch.randn(2, 2, 2, 5, 8).unbind(0)
    mask = torch.ones(2, 1, 4, 5, dtype=torch.bool)
    mask[1, :, :, :2] = False
    query = torch.randn(2, 4, 4, 8)
    mixed, _ = attention.attend(torch.nn.Module(), query, key, value, mask)
    alone, _ = attention.attend(
        torch.nn.Module(), query[1:], key[1:, :, 2:], value[1:, :, 2:], mask[1:, :, :, 2:]
    )
    assert torch.allclose(mixed[1:], alone, atol=1e-5)


def test_the_model_computes_what_transformers_own_attention_computes(
    policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = tokens(40, seed=1)
    with torch.no_grad():
        ours = policy.hidden_ND([row, row[:30]], [4, 4])
        monkeypatch.setattr(policy, "packs", False)
        policy.peft.base_model.model.set_attn_implementation("eager")
        theirs = policy.hidden_ND([row, row[:30]], [4, 4])
        policy.peft.base_model.model.set_attn_implementation(attention.NAME)
    assert (ours - theirs).abs().max() < 0.1
    assert (ours - theirs).abs().mean() < 0.01


@pytest.mark.usefixtures("narrow")
def test_a_new_adapter_reads_as_base_does(tmp_path: Path) -> None:
    """So what base has read for a revision need not be read again for the first update."""
    fresh, ids = Policy(write_tiny_model(tmp_path), rank=4, alpha=8), tokens(40, seed=1)
    fresh.reset(7)
    with fresh.as_base():
        base = PrefixCache(fresh).get(ids)
    for one, other in zip(PrefixCache(fresh).get(ids).layers, base.layers, strict=True):
        assert torch.equal(one.keys, other.keys)
        assert torch.equal(one.values, other.values)
