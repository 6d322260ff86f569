"""The native decode step under test: the library of this machine, made once and kept between runs."""

from __future__ import annotations

import functools
import shutil
from pathlib import Path

import pytest

from instar.engines.embedded.native.build import COMPILERS, Build

needs_compiler = pytest.mark.skipif(
    not any(shutil.which(name) for name in COMPILERS), reason="there is no C++ compiler"
)


@functools.cache
def real_library() -> Path:
    return Build().library()


@functools.cache
def plain_library() -> Path:
    """For the oldest processor of this kind: what its compiler makes of the same source without new instructions."""
    return Build(tune="-march=x86-64").library()
