"""Linear layers that add the LoRA terms of the rows' versions before the one rounding of the sum.

Merging an adapter into bf16 weights, or adding its term to an output that is already rounded to bf16, loses a
young adapter: a term smaller than half a unit in the last place of the sum is rounded away every time, the same
way. Here x·Wᵀ and the term meet in fp32 inside one matrix product and are rounded once, so that the effect
survives on average. The term itself is computed in fp32.

Layers that read the same input (q, k, v; gate, up) share one product.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional

from instar.engines.embedded.native.blocks import Blocks, in_rows, recognised

_FUSED = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))


@dataclass(frozen=True, slots=True)
class LoraTerm:
    """One adapter's matrices for one fused product: x (N, in) @ `down` (in, R) @ `up` (R, out), both fp32.

    Several layers' adapters lie side by side: `up` is block-diagonal, and holds the scaling.
    """

    down: Tensor
    up: Tensor


@dataclass(frozen=True, slots=True)
class RowGroup:
    """Rows [start, stop) of a batch are of one version. `terms` maps a product's name to its LoRA term."""

    start: int
    stop: int
    terms: dict[str, LoraTerm]


@dataclass(slots=True)
class Rows:
    """Which rows of the pass under way belong to which version. Empty where all of them are the base's."""

    groups: list[RowGroup] = field(default_factory=list)


class Product:
    """One matrix product over the concatenated weights of the layers named in `slices`.

    `slices` maps a layer's path in the model to its range of outputs. `blocks` tells where the weight lies in memory,
    or None if that is not known.
    """

    def __init__(self, paths: Sequence[str], layers: Sequence[nn.Linear], rows: Rows) -> None:
        self.name = paths[0]
        self.slices: dict[str, slice] = {}
        start = 0
        for path, layer in zip(paths, layers, strict=True):
            self.slices[path] = slice(start, start + layer.out_features)
            start += layer.out_features
        self.in_features, self.out_features = layers[0].in_features, start
        self._rows = rows
        weights = [layer.weight.detach() for layer in layers]
        weight = weights[0] if len(weights) == 1 else torch.cat(weights)
        biases = [layer.bias.detach() for layer in layers if layer.bias is not None]
        self.bias = torch.cat(biases) if biases else None
        self._packed = _pack(weight)
        self._weight_t: Tensor | None = None if self._packed is not None else weight.t()
        self.blocks: Blocks | None = (
            in_rows(weight) if self._packed is None else recognised(weight, self._packed)
        )
        self._wide = weight.dtype == torch.bfloat16 and weight.device.type == "cpu" and self._packed is None
        self._last: tuple[Tensor, Tensor, int] | None = None

    def dense(self) -> Tensor:
        """The weight (out, in), row by row; a copy where only a packed one is kept."""
        if self._packed is None:
            assert self._weight_t is not None
            return self._weight_t.t()
        found: Tensor = self._packed.to_dense()
        return found

    def shared(self, x: Tensor) -> Tensor:
        """`__call__`, remembered until every layer of the product has asked with the same input."""
        if self._last is not None and self._last[0] is x:
            _, y, left = self._last
            self._last = (x, y, left - 1) if left > 1 else None
            return y
        y = self(x)
        self._last = (x, y, len(self.slices) - 1)
        return y

    def __call__(self, x: Tensor) -> Tensor:
        """(…, in) → (…, out), in the dtype of x."""
        flat = x.reshape(-1, self.in_features)
        term = self._term(flat)
        y = self._base(flat) if term is None else self._with(flat, term)
        return y.view(*x.shape[:-1], self.out_features)

    def _term(self, x: Tensor) -> Tensor | None:
        groups = [(group, group.terms.get(self.name)) for group in self._rows.groups]
        if all(term is None for _, term in groups):
            return None
        x32 = x.float()
        parts = []
        for group, term in groups:
            if term is None:
                zeros = torch.zeros(group.stop - group.start, self.out_features, device=x.device)
                parts.append(zeros)
            else:
                parts.append(x32[group.start : group.stop] @ term.down @ term.up)
        # rounding the term alone costs it 2⁻⁹ of itself; what must not be rounded first is the other addend
        return (parts[0] if len(parts) == 1 else torch.cat(parts)).to(x.dtype)

    def _base(self, x: Tensor) -> Tensor:
        if self._packed is not None:
            found: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._packed, self.bias, "none", [], "")
            return found
        assert self._weight_t is not None
        return functional.linear(x, self._weight_t.t(), self.bias)

    def _with(self, x: Tensor, term: Tensor) -> Tensor:
        if self._packed is not None:
            found: Tensor = torch.ops.mkldnn._linear_pointwise.binary(x, term, self._packed, self.bias, "add")
            return found
        assert self._weight_t is not None
        if self._wide:  # a processor without bf16 products: nothing else promises a sum in fp32
            bias = None if self.bias is None else self.bias.float()
            return (functional.linear(x.float(), self._weight_t.t().float(), bias) + term).to(x.dtype)
        if self.bias is not None:
            term = term + self.bias
        return torch.addmm(term, x, self._weight_t)


def _pack(weight: Tensor) -> Tensor | None:
    """The weight in the blocked layout of oneDNN's bf16 kernels, where this processor has them."""
    if weight.device.type != "cpu" or weight.dtype != torch.bfloat16:
        return None
    if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return None
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), None)
    return packed


class ServedLinear(nn.Module):
    """Stands where a Linear was; its weight lives in a Product."""

    def __init__(self, product: Product, path: str) -> None:
        super().__init__()
        self._product = product
        self._alone = len(product.slices) == 1
        self._outputs = product.slices[path]

    def forward(self, x: Tensor) -> Tensor:
        if self._alone:
            return self._product(x)
        return self._product.shared(x)[..., self._outputs]


def serve_linears(model: nn.Module, rows: Rows) -> dict[str, Product]:
    """Replace every Linear of a model in place. Returns each layer's path → its product."""
    products: dict[str, Product] = {}
    for parent_path, parent in list(model.named_modules()):
        for names in _shared_inputs(parent):
            paths = [f"{parent_path}.{name}" if parent_path else name for name in names]
            layers = [getattr(parent, name) for name in names]
            product = Product(paths, layers, rows)
            for path, name in zip(paths, names, strict=True):
                setattr(parent, name, ServedLinear(product, path))
                products[path] = product
    return products


def _shared_inputs(parent: nn.Module) -> Iterator[tuple[str, ...]]:
    """The parent's own Linears by name, those that read the same input together."""
    linears = {name: child for name, child in parent.named_children() if type(child) is nn.Linear}
    for names in _FUSED:
        group = [linears.get(name) for name in names]
        known = [layer for layer in group if layer is not None]
        if len(known) != len(names):
            continue
        same_input = len({layer.in_features for layer in known}) == 1
        same_bias = len({layer.bias is None for layer in known}) == 1
        if same_input and same_bias:
            for name in names:
                del linears[name]
            yield names
    for name in linears:
        yield (name,)
