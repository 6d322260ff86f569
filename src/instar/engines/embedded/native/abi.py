"""The structs and functions of step.cpp, as ctypes sees them. No torch here."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_float, c_int, c_int32, c_int64, c_void_p
from enum import IntEnum
from pathlib import Path


class Variant(IntEnum):
    """Instructions that the products are computed with; the larger, the faster."""

    PORTABLE = 0
    AVX512 = 1  # with its bf16 products
    AMX = 2


class Matrix(ctypes.Structure):
    _fields_ = [
        ("data", c_void_p),
        ("bias", c_void_p),
        ("n", c_int32),
        ("k", c_int32),
        ("block", c_int32),
        ("k_padded", c_int32),
    ]


class Layer(ctypes.Structure):
    _fields_ = [
        ("qkv", Matrix),
        ("out", Matrix),
        ("gate_up", Matrix),
        ("down", Matrix),
        ("norm_in", c_void_p),
        ("norm_mid", c_void_p),
        ("norm_q", c_void_p),
        ("norm_k", c_void_p),
    ]


class Model(ctypes.Structure):
    _fields_ = [
        *((name, c_int32) for name in ("layers", "heads", "kv_heads", "dim", "hidden", "inner", "vocab")),
        ("eps", c_float),
        ("layer", POINTER(Layer)),
        ("head", Matrix),
        ("norm_last", c_void_p),
        ("embedding", c_void_p),
        ("cos", c_void_p),
        ("sin", c_void_p),
    ]


class Lora(ctypes.Structure):
    _fields_ = [
        ("down", Matrix),
        ("up", c_void_p),
        ("first", c_void_p),
        ("ranks", c_void_p),
        ("offset", c_void_p),
    ]


class Adapter(ctypes.Structure):
    _fields_ = [("widest", c_int32), ("terms", POINTER(Lora))]


class Row(ctypes.Structure):
    _fields_ = [
        ("cache", c_void_p),
        ("capacity", c_int64),
        ("adapter", POINTER(Adapter)),
        ("token", c_int32),
        ("position", c_int32),
    ]


class Library:
    """step.cpp, loaded. Its functions release the interpreter's lock."""

    def __init__(self, path: Path) -> None:
        """Raises OSError if it cannot be loaded."""
        found = ctypes.CDLL(str(path))
        self.variants = {v for v in Variant if self._variants(found) >> v & 1}
        self.open = found.instar_open
        self.open.argtypes, self.open.restype = [POINTER(Model), c_int, c_int], c_void_p
        self.close = found.instar_close
        self.close.argtypes, self.close.restype = [c_void_p], None
        self.decode = found.instar_decode
        self.decode.argtypes, self.decode.restype = [c_void_p, POINTER(Row), c_int, c_void_p], None
        self.multiply = found.instar_multiply
        self.multiply.argtypes = [POINTER(Matrix), c_void_p, c_int, c_int, c_void_p, c_int]
        self.multiply.restype = None

    @staticmethod
    def _variants(found: ctypes.CDLL) -> int:
        ask = found.instar_variants
        ask.restype = c_int
        return int(ask())
