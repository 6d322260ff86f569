"""The native decode step of one loaded model: what step.cpp is told about weights, adapters and streams."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from instar.engines.embedded.adapters import Adapter
from instar.engines.embedded.lean import Lean
from instar.engines.embedded.linear import LoraTerm, Product
from instar.engines.embedded.native import abi
from instar.engines.embedded.native.blocks import ROW_MAJOR, Blocks, packed

if TYPE_CHECKING:
    from instar.engines.embedded.model import Stream

_CHUNK = 64  # outputs of a row-major weight that are computed together: kWidth of step.cpp


class NativeStep:
    """Takes the place of `Lean.decode`. `copied_bytes`: weights that it had to copy, for want of a known layout."""

    def __init__(self, lean: Lean, library: abi.Library, variant: abi.Variant, threads: int) -> None:
        self.variant, self.threads, self.copied_bytes = variant, threads, 0
        self._library = library
        self._keep: list[object] = []  # memory that the structs point into
        self._products = [
            product for layer in lean.layers for product in (layer.qkv, layer.out, layer.gate_up, layer.down)
        ]
        self._products.append(lean.head)
        matrices = [self._matrix(product) for product in self._products]
        self._widths = [matrix.block if matrix.block > ROW_MAJOR else _CHUNK for matrix in matrices]
        self._model = self._described(lean, matrices)
        self._positions = int(lean.cos.shape[0])
        self._adapters: weakref.WeakKeyDictionary[Adapter, PackedAdapter] = weakref.WeakKeyDictionary()
        self._step = library.open(ctypes.byref(self._model), int(variant), threads)
        weakref.finalize(self, library.close, self._step)

    def decode(self, streams: Sequence[Stream], last_ids: Sequence[int]) -> Tensor:
        """Run one token of each stream. Logits (B, V), fp32. Raises IndexError where a stream is full."""
        rows = (abi.Row * len(streams))()
        held = [self.prepare(stream.adapter) for stream in streams]
        for row, stream, adapter, token_id in zip(rows, streams, held, last_ids, strict=True):
            cache = stream.cache
            assert cache.whole is not None
            if not (
                cache.length < min(cache.capacity, self._positions) and 0 <= token_id < self._model.vocab
            ):
                raise IndexError(f"token {token_id} at {cache.length} of {cache.capacity}: out of range")
            row.cache, row.capacity = cache.whole.data_ptr(), cache.capacity
            row.token, row.position = token_id, cache.length
            if adapter is not None:
                row.adapter = adapter.pointer
        logits_BV = torch.empty(len(streams), self._model.vocab)
        self._library.decode(self._step, rows, len(streams), logits_BV.data_ptr())
        for stream in streams:
            stream.cache.length += 1
        return logits_BV

    def prepare(self, adapter: Adapter | None) -> PackedAdapter | None:
        """Lay an adapter out, or find it laid out. It goes with the adapter."""
        if adapter is None or not adapter.terms:
            return None
        found = self._adapters.get(adapter)
        if found is None:
            terms = [adapter.terms.get(product.name) for product in self._products]
            found = self._adapters[adapter] = PackedAdapter(terms, self._widths)
        return found

    def _matrix(self, product: Product) -> abi.Matrix:
        blocks = product.blocks
        if blocks is None:
            blocks = packed(product.dense())
            self.copied_bytes += blocks.owner.nbytes
        bias = None if product.bias is None else product.bias.float()
        self._keep += [blocks, bias]
        return _matrix(blocks, bias)

    def _described(self, lean: Lean, matrices: Sequence[abi.Matrix]) -> abi.Model:
        assert lean.cos.dtype == lean.sin.dtype == lean.embedding.dtype == torch.bfloat16
        layers = (abi.Layer * len(lean.layers))()
        for place, (into, layer) in enumerate(zip(layers, lean.layers, strict=True)):
            into.qkv, into.out, into.gate_up, into.down = matrices[4 * place : 4 * place + 4]
            for name in ("norm_in", "norm_mid", "norm_q", "norm_k"):
                setattr(into, name, self._address(getattr(layer, name)))
        vocab, hidden = lean.embedding.shape
        return abi.Model(
            layers=len(layers),
            heads=lean.heads,
            kv_heads=lean.kv_heads,
            dim=lean.dim,
            hidden=hidden,
            inner=lean.intermediate,
            vocab=vocab,
            eps=lean.eps,
            layer=layers,
            head=matrices[-1],
            norm_last=self._address(lean.norm_last),
            embedding=self._address(lean.embedding),
            cos=self._address(lean.cos),
            sin=self._address(lean.sin),
        )

    def _address(self, tensor: Tensor | None) -> int | None:
        if tensor is None:
            return None
        assert tensor.is_contiguous()
        self._keep.append(tensor)
        return tensor.data_ptr()


class PackedAdapter:
    """An adapter's terms in bf16: half the memory to read, and 2⁻⁹ of the term lost, whatever its size."""

    def __init__(self, terms: Sequence[LoraTerm | None], widths: Sequence[int]) -> None:
        self._keep: list[object] = []
        self._terms = (abi.Lora * len(terms))()
        widest = 0
        for place, (term, width) in enumerate(zip(terms, widths, strict=True)):
            if term is not None:
                self._terms[place] = self._packed(term, width)
                down = self._terms[place].down
                widest = max(widest, -(-down.n // down.block) * down.block)
        self._head = abi.Adapter(widest=widest, terms=self._terms)
        self.pointer = ctypes.pointer(self._head)

    def _packed(self, term: LoraTerm, width: int) -> abi.Lora:
        rank = term.down.shape[1]
        down = packed(term.down.t(), min(64, -(-rank // 16) * 16))
        up, first, ranks, offset = _up_by_chunk(term.up, width)
        self._keep += [down, up, first, ranks, offset]
        return abi.Lora(_matrix(down, None), *(part.data_ptr() for part in (up, first, ranks, offset)))


def _matrix(blocks: Blocks, bias: Tensor | None) -> abi.Matrix:
    address = None if bias is None else bias.data_ptr()
    return abi.Matrix(blocks.address, address, blocks.n, blocks.k, blocks.block, blocks.k_padded)


def _up_by_chunk(up: Tensor, width: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`up` (R, out) for each chunk of `width` outputs: elements; first rank, number of ranks, first element.

    Layers that share a product have their ranks side by side, and most chunks belong to one of them: only the
    ranks that are not zero in a chunk are kept, an even number from an even one on.
    """
    rank, outputs = up.shape
    chunks = -(-outputs // width)
    padded = torch.zeros(rank + rank % 2, chunks * width)
    padded[:rank, :outputs] = up
    by_chunk = padded.view(-1, chunks, width)
    parts, ranges, offsets, total = [], [], [], 0
    for place, used in enumerate((by_chunk != 0).any(dim=-1).t()):
        at = used.nonzero()[:, 0]
        start, stop = (0, 0) if not len(at) else (int(at[0]) // 2 * 2, int(at[-1]) // 2 * 2 + 2)
        ranges.append((start, stop - start))
        offsets.append(total)
        if stop > start:
            part = packed(by_chunk[start:stop, place].t(), width, 2).owner.flatten()
            parts.append(part)
            total += part.numel()
    first, ranks = torch.tensor(ranges, dtype=torch.int32).t().contiguous()
    elements = torch.cat(parts) if parts else torch.zeros(0, dtype=torch.bfloat16)
    return elements, first, ranks, torch.tensor(offsets)
