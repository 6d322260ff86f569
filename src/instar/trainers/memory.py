"""How much memory a pass with gradients takes, and what fits into the bound. No torch: the parent process asks too.

Bytes a token that a layer of the Llama kind leaves for its backward pass, with LoRA on all projections and activations
of e bytes, by what each operation keeps:

    6e · hidden           the two norms, half of it in fp32
    4e · inner            the MLP
    5e · heads · dim      queries, what they mix, and for the fused kernel keys and values of each query head
    2e · key_heads · dim  keys and values

Where layers are computed again instead (gradient checkpointing), each keeps its input, e · hidden, and only one at a
time the rest, with its gradients.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import psutil

from instar.errors import TrainingError
from instar.trainers.packing import Pack, Row, pack

MIB = 2**20
DEFAULT_MIB = 3072
SLACK = 1.8
"""What short-lived copies and the allocator add, measured: tests/unit/test_trainer_memory.py."""
FIXED = 64 * MIB
"""What a pass of any length takes: scratch space of the libraries."""
KEPT_SHARE = 0.85
"""Share of the bound up to which everything is kept."""
LOGITS = 256 * 4 * 4
"""Bytes a token of the vocabulary: 256 positions in fp32, four times over with gradients."""
SCORE_BYTES = 6
"""A weight of plain attention in fp32, and rounded."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What of a model's config.json decides how much memory a token takes."""

    layers: int
    hidden: int
    inner: int
    heads: int
    key_heads: int
    head_dim: int
    vocabulary: int

    @classmethod
    def of(cls, model_dir: Path) -> Self:
        """Raises TrainingError if the folder does not say."""
        try:
            config: dict[str, Any] = json.loads((model_dir / "config.json").read_text("utf-8"))
            config = config.get("text_config") or config
            hidden, heads = int(config["hidden_size"]), int(config["num_attention_heads"])
            return cls(
                layers=int(config["num_hidden_layers"]),
                hidden=hidden,
                inner=int(config.get("intermediate_size") or 4 * hidden),
                heads=heads,
                key_heads=int(config.get("num_key_value_heads") or heads),
                head_dim=int(config.get("head_dim") or hidden // heads),
                vocabulary=int(config["vocab_size"]),
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise TrainingError(
                f"{model_dir / 'config.json'} does not tell the model's shape: {error}"
            ) from error

    def layer_bytes(self, element: int) -> int:
        """What a layer leaves for the backward pass, a token."""
        mixed = 5 * self.heads * self.head_dim + 2 * self.key_heads * self.head_dim
        return element * (6 * self.hidden + 4 * self.inner + mixed)


@dataclass(frozen=True, slots=True)
class Memory:
    """The bound, and what passes take. `element`: bytes of an activation."""

    shape: Shape
    bound: int
    element: int = 2

    def plain(self, tree: Pack) -> int:
        """Bytes of a pass that keeps everything for its gradients."""
        layers = self.shape.layers
        a_token = (layers + 2) * self.shape.layer_bytes(self.element)
        return self._sum(len(tree.ids) * a_token + layers * self._scores(tree))

    def recomputed(self, tree: Pack) -> int:
        """Bytes of a pass that keeps the input of each layer."""
        return self._sum(len(tree.ids) * self._a_token() + self._scores(tree))

    def must_recompute(self, tree: Pack) -> bool:
        """Whether layers are to be computed again: what an update hardly needs is left to the others."""
        return self.plain(tree) > KEPT_SHARE * self.bound

    def longest(self) -> int:
        """Tokens of the longest row that fits."""
        return max(0, int((self.bound - self._sum(0)) / SLACK / self._a_token()))

    def groups(self, rows: Sequence[Row]) -> list[list[int]]:
        """Indices of rows that fit into one pass, those that share most together; a row that does not fit is alone."""
        found: list[list[int]] = []
        for i in sorted(range(len(rows)), key=lambda i: list(rows[i])):
            if found and self.recomputed(pack([rows[j] for j in [*found[-1], i]])) <= self.bound:
                found[-1].append(i)
            else:
                found.append([i])
        return found

    def _a_token(self) -> int:
        shape = self.shape
        return shape.layers * self.element * shape.hidden + 2 * shape.layer_bytes(self.element)

    def _scores(self, tree: Pack) -> int:
        return SCORE_BYTES * self.shape.heads * tree.scores

    def _sum(self, activations: int) -> int:
        return FIXED + int(SLACK * activations) + LOGITS * self.shape.vocabulary


def memory_for(model_dir: Path, bound_mib: int, element: int = 2) -> Memory:
    """`bound_mib` beside the model itself; never more than half of the machine's memory."""
    machine = int(psutil.virtual_memory().total)
    return Memory(Shape.of(model_dir), min(bound_mib * MIB, machine // 2), element)
