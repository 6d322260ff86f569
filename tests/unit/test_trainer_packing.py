"""Rows that share a beginning pass as a tree: it is computed once, and loss and gradients are those of rows alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from instar.trainers import attention, packing
from instar.trainers import policy as policy_module
from instar.trainers.packing import Pack, pack
from instar.trainers.policy import Policy
from tests.kit.tiny_kinds import KINDS, write_tiny_kind
from tests.kit.tiny_model import write_tiny_model

torch.set_num_threads(1)
Rows = Sequence[Sequence[int]]


def tokens(count: int, seed: int) -> list[int]:
    found: list[int] = torch.randint(3, 259, (count,), generator=torch.Generator().manual_seed(seed)).tolist()
    return found


SYSTEM, HISTORY, OTHER = tokens(21, 1), tokens(12, 2), tokens(9, 3)
NESTED = [
    [*SYSTEM, *HISTORY, *tokens(5, 4)],
    [*SYSTEM, *HISTORY, *tokens(8, 5)],
    [*SYSTEM, *OTHER, *tokens(4, 6)],
    [*SYSTEM, *OTHER, *tokens(7, 7)],
    [*SYSTEM, *tokens(6, 8)],
    tokens(11, 9),
]
"""System and tools shared by five rows, histories by two each; one row shares nothing."""
STARTS = [34, 35, 31, 36, 22, 3]


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any four tokens that are shared have a stretch of their own."""
    monkeypatch.setattr(packing, "LEAST_SHARED", 4)


# ── the tree ──────────────────────────────────────────────────────────────────────────────────────────────
def read_back(tree: Pack, row: int) -> tuple[list[int], list[int]]:
    places = tree.places(row)
    return [tree.ids[p] for p in places], [tree.positions[p] for p in places]


@pytest.mark.usefixtures("short")
def test_what_rows_share_is_laid_down_once() -> None:
    tree = pack(NESTED)
    assert len(tree.ids) == 21 + 12 + 9 + (5 + 8) + (4 + 7) + 6 + 11
    assert sorted(s.depth for s in tree.segments) == [0, 0, 21, 21, 21, 30, 30, 33, 33]
    for i, row in enumerate(NESTED):
        assert read_back(tree, i) == (list(row), list(range(len(row))))


def test_a_beginning_that_is_hardly_shared_is_not_worth_a_stretch() -> None:
    few = [[*tokens(31, 1), 5, 6], [*tokens(31, 1), 7, 8]]
    assert len(pack(few).segments) == 2
    many = [[*tokens(32, 1), 5, 6], [*tokens(32, 1), 7, 8]]
    assert [s.steps for s in pack(many).segments] == [32, 2, 2]


@given(
    st.lists(st.lists(st.integers(0, 2), max_size=12), min_size=1, max_size=7),
    st.integers(1, 5),
)
@settings(max_examples=300, deadline=None)
def test_every_row_can_be_read_from_its_tree(rows: list[list[int]], least: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing, "LEAST_SHARED", least)
        tree = pack(rows)
    assert len(tree.ids) == sum(s.steps for s in tree.segments) <= sum(map(len, rows))
    for i, row in enumerate(rows):
        assert read_back(tree, i) == (row, list(range(len(row))))
        assert tree.places(i, 2) == tree.places(i)[2:]
    for segment in tree.segments:
        begin, end = segment.own
        assert tree.positions[begin:end] == list(range(segment.depth, segment.depth + segment.steps))


# ── loss and gradients ────────────────────────────────────────────────────────────────────────────────────
@pytest.fixture(scope="module", params=KINDS)
def exact(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Policy:
    folder = write_tiny_kind(tmp_path_factory.mktemp(request.param), request.param)
    return with_adapter(Policy(folder, rank=4, alpha=8, dtype=torch.float32))


def with_adapter(policy: Policy) -> Policy:
    policy.reset(1)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for _, parameter in policy.named_parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return policy


def loss_and_gradient(
    policy: Policy, rows: Rows, starts: Sequence[int], *, recompute: bool = False
) -> tuple[Tensor, Tensor]:
    """Σ −log p of each row's tokens from its start on, by token; and the gradient as one vector."""
    hidden_ND = policy.hidden_ND(rows, starts, recompute=recompute)
    wanted = [token for row, start in zip(rows, starts, strict=True) for token in row[start:]]
    loss_N = -policy.logp_NV(hidden_ND).gather(1, torch.tensor(wanted)[:, None])[:, 0]
    gradient = torch.autograd.grad(loss_N.sum(), policy.parameters)
    return loss_N.detach(), torch.cat([g.flatten() for g in gradient])


def one_by_one(policy: Policy, rows: Rows, starts: Sequence[int]) -> tuple[Tensor, Tensor]:
    """By the model's plain pass, without a tree."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(policy, "packs", False)
        each = [loss_and_gradient(policy, [r], [s]) for r, s in zip(rows, starts, strict=True)]
    return torch.cat([loss for loss, _ in each]), torch.stack([g for _, g in each]).sum(0)


def distance(one: Tensor, other: Tensor) -> float:
    return float((one - other).norm() / other.norm())


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("products_up_to", [512 * 512, 0])
def test_a_tree_has_the_loss_and_the_gradients_of_its_rows(
    exact: Policy, monkeypatch: pytest.MonkeyPatch, products_up_to: int
) -> None:
    """By plain products, and by the fused kernel with a few queries at a time."""
    monkeypatch.setattr(attention, "PRODUCTS_UP_TO", products_up_to)
    monkeypatch.setattr(attention, "QUERIES", 4)
    assert exact.packs
    loss_N, gradient = loss_and_gradient(exact, NESTED, STARTS)
    monkeypatch.undo()
    expected_N, expected = one_by_one(exact, NESTED, STARTS)
    assert distance(loss_N, expected_N) < 1e-5
    assert distance(gradient, expected) < 1e-4
    assert expected.norm() > 1


@pytest.mark.usefixtures("short")
def test_layers_that_are_computed_again_have_the_same_gradients(exact: Policy) -> None:
    loss_N, gradient = loss_and_gradient(exact, NESTED, STARTS)
    again_N, again = loss_and_gradient(exact, NESTED, STARTS, recompute=True)
    assert torch.equal(loss_N, again_N)
    assert distance(again, gradient) < 1e-6
    assert not any("forward" in vars(layer) for layer in exact.body.layers)


@pytest.mark.usefixtures("short")
def test_the_shared_part_is_computed_once(exact: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    computed: list[int] = []
    forward = exact.body.forward
    monkeypatch.setattr(
        exact.body,
        "forward",
        lambda **given: (computed.append(given["input_ids"].numel()), forward(**given))[1],
    )
    exact.hidden_ND(NESTED, STARTS)
    assert computed == [21 + 12 + 9 + (4 + 7) + (3 + 6) + 5 + 10]  # each row without its last token


def test_a_model_that_does_not_read_trees_is_trained_row_by_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = attention.attend

    def deaf(*tensors: Tensor, **options: object) -> tuple[Tensor, None]:
        """An attention that never hears of the tree, as in a model that hands nothing on to it."""
        return plain(*tensors, **{**options, "segments": None})  # type: ignore[arg-type]

    monkeypatch.setitem(attention.ALL_ATTENTION_FUNCTIONS._global_mapping, attention.NAME, deaf)
    policy = with_adapter(Policy(write_tiny_model(tmp_path), rank=4, alpha=8, dtype=torch.float32))
    assert not policy.packs
    _, gradient = loss_and_gradient(policy, NESTED, STARTS)
    _, expected = one_by_one(policy, NESTED, STARTS)
    assert distance(gradient, expected) < 1e-5


def test_in_bf16_a_tree_is_as_close_as_rounding_lets_it_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packing, "LEAST_SHARED", 4)
    policy = with_adapter(Policy(write_tiny_model(tmp_path), rank=4, alpha=8))
    assert policy.packs
    loss_N, gradient = loss_and_gradient(policy, NESTED, STARTS)
    expected_N, expected = one_by_one(policy, NESTED, STARTS)
    assert (loss_N - expected_N).abs().mean() < 0.02
    assert torch.cosine_similarity(gradient, expected, 0) > 0.99


def test_a_window_lets_gradients_flow_through_the_end_of_a_prompt_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy_module, "LONG", 8)
    policy = with_adapter(Policy(write_tiny_model(tmp_path), rank=4, alpha=8, dtype=torch.float32))
    kept, found = policy_module.PrefixCache(policy), {}
    for window in (0, 9, 99):
        hidden_ND = policy.hidden_ND(NESTED, STARTS, kept, window=window)
        gradient = torch.autograd.grad(
            hidden_ND.pow(3).sum(), policy.parameters
        )  # its squares add up to a constant
        found[window] = hidden_ND.detach(), torch.cat([g.flatten() for g in gradient])
    assert torch.allclose(found[9][0], found[0][0], atol=1e-5)
    assert distance(found[99][1], found[0][1]) < 1e-5, "it holds the whole of every prompt"
    assert distance(found[9][1], found[0][1]) > 1e-2


def test_prompts_kept_for_passes_without_gradients_are_not_used_with_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy_module, "LONG", 8)
    policy = with_adapter(Policy(write_tiny_model(tmp_path), rank=4, alpha=8, dtype=torch.float32))
    kept = policy_module.PrefixCache(policy)
    with torch.no_grad():
        behind = policy.hidden_ND(NESTED, STARTS, kept)
    read = dict(kept._held)
    whole = policy.hidden_ND(NESTED, STARTS, kept)
    assert kept._held == read
    assert whole.requires_grad
    assert torch.allclose(whole, behind, atol=1e-5)
