"""Run by itself on a library that was just built: does it load, and are its instructions there?

A small product by each variant, with numbers whose sum is known. Ends with a signal or a status other than 0 if not.
Imports nothing of instar: it runs in an interpreter without paths, so that it is quick.
"""

from __future__ import annotations

import ctypes
import sys

ROWS, N, K = 3, 64, 64
ONE = 0x3F80  # 1 as bf16


class Matrix(ctypes.Structure):
    _fields_ = [(name, ctypes.c_void_p) for name in ("data", "bias")] + [
        (name, ctypes.c_int32) for name in ("n", "k", "block", "k_padded")
    ]


def main(path: str) -> None:
    library = ctypes.CDLL(path)
    weights, x = (
        (ctypes.c_uint16 * (N * K))(*[ONE] * (N * K)),
        (ctypes.c_uint16 * (ROWS * K))(*[ONE] * (ROWS * K)),
    )
    matrix = Matrix(ctypes.addressof(weights), None, N, K, N, K)
    variants = library.instar_variants()
    for variant in range(3):
        if variants >> variant & 1:
            y = (ctypes.c_float * (ROWS * N))()
            library.instar_multiply(ctypes.byref(matrix), x, K, ROWS, y, variant)
            if any(value != K for value in y):
                sys.exit(f"variant {variant} gives {y[0]} for {K}")


main(sys.argv[1])
