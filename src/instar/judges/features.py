"""What the small reward model sees of a reaction, as one row of numbers.

Three parts: the sentence embedding (what is meant, in any language), hashed character n-grams (how it is said:
an embedding of this size hardly tells "formal" from "too formal"), and a few general counts. Nothing here
knows a wish; that knowledge is only in the labelled phrases.
"""

from __future__ import annotations

import unicodedata
import zlib

import numpy as np

from instar.judges.embedding import Floats, clean

NGRAM_DIM = 4096
NGRAM_SIZES = (2, 3, 4)
COUNT_WEIGHT = 0.2
"""The embedding and the n-grams have norm 1; the counts must not outweigh them."""

REPEAT_WEIGHT = 2.0
"""Asking the same again is rare and tells much, so it stands beside the other parts and not among the counts."""

EMBEDDING_SCALE = 5.0

COUNT_NAMES = (
    "log_length",
    "asks",
    "ends_asking",
    "exclaims",
    "sentences",
    "has_newline",
    "has_colon",
    "has_digit",
    "symbols",
)


def feature_dim(embedding_dim: int) -> int:
    return embedding_dim + NGRAM_DIM + len(COUNT_NAMES) + 1


def features(text: str, question: str, embedding_D: Floats, center_D: Floats) -> Floats:
    """One row [embedding_dim + NGRAM_DIM + counts + 1], float32.

    `question` is the user's message that the judged answer replies to ("" where unknown). `center_D` is the
    mean embedding of the phrases: e5 vectors lie in a narrow cone, and only what differs from its axis tells.
    """
    moved_D = embedding_D - center_D
    length = float(np.linalg.norm(moved_D))
    moved_D = moved_D / length if length > 0 else moved_D
    again = np.array([REPEAT_WEIGHT * repeated(text, question)])
    return np.concatenate([moved_D, hashed_ngrams(text), COUNT_WEIGHT * counts(text), again]).astype(
        np.float32
    )


def meaning(row_F: Floats, embedding_dim: int) -> Floats:
    """What the networks read of a row, or of many [..., D]: all but the n-grams, which they would learn by heart,
    each part scaled to what a network's first layer likes."""
    embedding, rest = row_F[..., :embedding_dim], row_F[..., embedding_dim + NGRAM_DIM :]
    return np.concatenate([EMBEDDING_SCALE * embedding, rest], axis=-1).astype(np.float32)


def ngrams(text: str) -> set[str]:
    marked = f"^{unicodedata.normalize('NFKC', clean(text)).lower()}$"
    return {marked[i : i + n] for n in NGRAM_SIZES for i in range(len(marked) - n + 1)}


def hashed_ngrams(text: str) -> Floats:
    """Signed feature hashing (Weinberger et al. 2009) of the set of character n-grams, scaled to norm 1."""
    row = np.zeros(NGRAM_DIM, dtype=np.float32)
    for gram in ngrams(text):
        code = zlib.crc32(gram.encode("utf-8"))
        row[code % NGRAM_DIM] += 1.0 if code & 0x8000_0000 else -1.0
    length = float(np.linalg.norm(row))
    return row / np.float32(length) if length > 0 else row


def counts(text: str) -> Floats:
    """General figures of a text, each about 0…1."""
    short = unicodedata.normalize("NFKC", clean(text))  # also folds the wide forms of ? ! :
    values = (
        float(np.log1p(len(text)) / 5),
        float("?" in short),
        float(short.endswith("?")),
        float("!" in short),
        min(sum(short.count(mark) for mark in ".!?。"), 5) / 5,
        float("\n" in text[:1000].strip()),
        float(":" in short),
        float(any(char.isdigit() for char in short)),
        min(sum(unicodedata.category(char) == "So" for char in short), 3) / 3,
    )
    return np.asarray(values, dtype=np.float32)


def repeated(text: str, question: str) -> float:
    """0…1: does the user ask the same thing again? Jaccard overlap of n-grams, counted from one half up."""
    if not question.strip() or len(clean(text)) < 8:
        return 0.0
    ours, theirs = ngrams(text), ngrams(question)
    overlap = len(ours & theirs) / max(len(ours | theirs), 1)
    return max(0.0, 2.0 * overlap - 1.0)
