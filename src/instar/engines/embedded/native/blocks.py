"""How a weight lies in memory for step.cpp, and whether oneDNN's packed copy of it lies like that.

(n, k) in blocks of `block` outputs, two inputs of each together: [i / block][j / 2][i % block][j % 2], padded with
zeros. oneDNN packs bf16 weights for processors with AVX-512 or AMX in the same order, in blocks of 16 to 64; where that
is so, prefill in torch and decoding here read one copy.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field

import torch
from torch import Tensor

ROW_MAJOR = 1
_WIDTHS = (64, 48, 32, 16)
_PADDINGS = (64, 32, 16, 4, 2)


@dataclass(frozen=True, slots=True)
class Blocks:
    """A weight (n, k) at `address`. `block` 1: row by row, not padded. `owner` keeps the memory."""

    owner: Tensor = field(repr=False)
    address: int
    n: int
    k: int
    block: int
    k_padded: int


def in_rows(weight: Tensor) -> Blocks | None:
    """A (n, k) tensor as it is; None where its rows do not follow each other."""
    if not weight.is_contiguous():
        return None
    n, k = weight.shape
    return Blocks(weight, weight.data_ptr(), n, k, ROW_MAJOR, k)


def packed(weight: Tensor, block: int = 64, k_multiple: int = 32) -> Blocks:
    """A copy of (n, k) in bf16, in blocks."""
    n, k = weight.shape
    k_padded = _up(k, k_multiple)
    padded = torch.zeros(_up(n, block), k_padded, dtype=torch.bfloat16)
    padded[:n, :k] = weight
    copy = padded.view(-1, block, k_padded // 2, 2).transpose(1, 2).contiguous()
    return Blocks(copy, copy.data_ptr(), n, k, block, k_padded)


def recognised(weight: Tensor, onednn: Tensor) -> Blocks | None:
    """oneDNN's copy of a bf16 weight as `Blocks`, if it lies in this order; None if in another."""
    try:
        address, size = torch.ops.mkldnn.data_ptr(onednn), torch.ops.mkldnn._nbytes(onednn)
    except (AttributeError, RuntimeError):  # another torch, which does not tell
        return None
    n, k = weight.shape
    for block in _WIDTHS:
        for multiple in _PADDINGS:
            k_padded = _up(k, multiple)
            if size == 2 * _up(n, block) * k_padded:
                found = Blocks(onednn, address, n, k, block, k_padded)
                if _agrees(weight, found):
                    return found
    return None


def _agrees(weight: Tensor, found: Blocks) -> bool:
    """First, middle and last block are compared, bit by bit: in another order they would not agree by chance."""
    last = (found.n - 1) // found.block
    length = found.block * found.k_padded
    for place in {0, last // 2, last}:
        rows = weight[place * found.block : (place + 1) * found.block]
        wanted = packed(rows, found.block, found.k_padded).owner.view(torch.int16).flatten()
        there = (ctypes.c_int16 * length).from_address(found.address + 2 * place * length)
        if not torch.equal(torch.frombuffer(there, dtype=torch.int16), wanted):
            return False
    return True


def _up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
