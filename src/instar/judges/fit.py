"""Fit the small reward model: `python -m instar.judges.fit [--check]`.

Its examples are reactions, each written as what followed an answer, by twelve authors; and phrases, written as lists by
one. Lists repeat themselves, so each head sees a third of them, drawn by template (`group`), and most of the reactions.
Whether a complaint tells what to do instead is told by a logistic regression with an L2 penalty, fitted by accelerated
gradient descent (Nesterov 1983). numpy only, fixed numbers of steps, one seed: the same examples on one processor give
the same file.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from instar.judges.embedding import BUNDLED, Embedding, Floats, load_embedding
from instar.judges.features import features, meaning
from instar.judges.heads import (
    CLASSES,
    FACTS_FILE,
    HEADS_FILE,
    PHRASES_FILE,
    REACTIONS_FILE,
    Heads,
    load_heads,
)
from instar.judges.networks import fit_networks, softmax

HEADS = 15
SEED = 7
STEPS = 300
STRENGTH = 5.0
"""Inverse of the L2 penalty, as in the sum of losses + |w|²/(2·strength)."""

REACTIONS_SEEN, PHRASES_SEEN = 0.8, 0.35
"""Shares of the examples that each head sees."""

EXAMPLES = (PHRASES_FILE, REACTIONS_FILE)

LEAST_ALIKE = 0.97
"""Share of messages that heads fitted again must read as the shipped ones: other processors round in another order."""


@dataclass(frozen=True, slots=True)
class Phrase:
    """One labelled reaction. `question` is set only where the label depends on it (asking again), `kind` only on
    those that were written as what followed an answer."""

    text: str
    label: int
    lang: str
    instructs: bool | None = None
    group: str | None = None
    question: str = ""
    kind: str = ""
    author: int = 0


def read_phrases() -> list[Phrase]:
    lines = [line for path in EXAMPLES for line in path.read_text("utf-8").split("\n")]
    return [Phrase(**json.loads(line)) for line in lines if line.strip()]


def phrases_sha256() -> str:
    return hashlib.sha256(b"".join(path.read_bytes() for path in EXAMPLES)).hexdigest()


def embed_phrases(phrases: list[Phrase], embedding: Embedding) -> tuple[Floats, Floats]:
    """Features [N, F] and the mean embedding [D]."""
    raw_ND = embedding.embed([phrase.text for phrase in phrases])
    center_D = raw_ND.mean(axis=0)
    rows = [features(p.text, p.question, raw_D, center_D) for p, raw_D in zip(phrases, raw_ND, strict=True)]
    return np.stack(rows), center_D


def draws(phrases: list[Phrase], heads: int, seed: int) -> NDArray[np.bool_]:
    """Which examples each head sees: [m, N]. Head i depends on (seed, i) alone; a group is seen whole or not at all."""
    names = [phrase.group or f"#{index}" for index, phrase in enumerate(phrases)]
    order = {name: number for number, name in enumerate(dict.fromkeys(names))}
    group_N = np.array([order[name] for name in names])
    share_N = np.array([REACTIONS_SEEN if phrase.kind else PHRASES_SEEN for phrase in phrases])
    lots_MG = [np.random.default_rng([seed, head]).random(len(order)) for head in range(heads)]
    return np.stack([lot_G[group_N] < share_N for lot_G in lots_MG])


def fit_softmax(
    rows_NF: Floats, class_N: NDArray[np.int64], weight_MN: Floats, classes: int, steps: int = STEPS
) -> tuple[Floats, Floats]:
    """Weights [m, classes, F] and biases [m, classes] of m weighted logistic regressions.

    The step size is one over the largest curvature that the loss can have: half the top eigenvalue of XᵀX
    (power iteration), times the heaviest weight, plus the penalty.
    """
    heads, n = weight_MN.shape
    padded_NG = np.hstack([rows_NF, np.ones((n, 1), dtype=np.float32)])
    target_NC = np.eye(classes, dtype=np.float32)[class_N]
    share_MN = weight_MN / weight_MN.sum(axis=1, keepdims=True)
    penalty = np.float32(1.0 / (STRENGTH * n))
    step = np.float32(1.0 / (0.5 * _curvature(padded_NG, share_MN) + penalty))
    current = np.zeros((padded_NG.shape[1], heads * classes), dtype=np.float32)
    ahead, momentum = current.copy(), 1.0
    for _ in range(steps):
        logits = (padded_NG @ ahead).reshape(n, heads, classes)
        error = softmax(logits) - target_NC[:, None, :]
        error *= share_MN.T[:, :, None]
        gradient = padded_NG.T @ error.reshape(n, heads * classes)
        gradient[:-1] += penalty * ahead[:-1]  # the bias is free
        following = ahead - step * gradient
        grown_momentum = (1 + (1 + 4 * momentum**2) ** 0.5) / 2
        ahead = following + np.float32((momentum - 1) / grown_momentum) * (following - current)
        current, momentum = following, grown_momentum
    fitted = current.T.reshape(heads, classes, -1)
    return np.ascontiguousarray(fitted[:, :, :-1]), np.ascontiguousarray(fitted[:, :, -1])


def _curvature(padded_NG: Floats, share_MN: Floats) -> float:
    """Top eigenvalue of Σ share·x·xᵀ, bounded over the heads by the largest share of each phrase."""
    heaviest_N = share_MN.max(axis=0)
    vector_G = np.ones(padded_NG.shape[1], dtype=np.float32)
    value = 1.0
    for _ in range(30):
        vector_G = padded_NG.T @ (heaviest_N * (padded_NG @ vector_G))
        value = float(np.linalg.norm(vector_G))
        vector_G /= np.float32(value)
    return 1.02 * value


def fit_heads(
    phrases: list[Phrase], embedding: Embedding, heads: int = HEADS, seed: int = SEED, steps: int = STEPS
) -> Heads:
    rows_NF, center_D = embed_phrases(phrases, embedding)
    return fit_rows(phrases, rows_NF, center_D, heads, seed, steps)


def fit_rows(
    phrases: list[Phrase],
    rows_NF: Floats,
    center_D: Floats,
    heads: int = HEADS,
    seed: int = SEED,
    steps: int = STEPS,
) -> Heads:
    """Fit from features that were computed already."""
    class_N = np.array([CLASSES.index(phrase.label) for phrase in phrases])
    networks = fit_networks(
        meaning(rows_NF, len(center_D)), class_N, draws(phrases, heads, seed), len(CLASSES), seed
    )
    told = [index for index, phrase in enumerate(phrases) if phrase.instructs is not None]
    instructs_N = np.array([int(bool(phrases[index].instructs)) for index in told])
    evenly_1N = np.ones((1, len(told)), dtype=np.float32)
    pair_12F, pair_12 = fit_softmax(rows_NF[told], instructs_N, evenly_1N, 2, steps)
    return Heads(
        networks=networks,
        center=center_D,
        instructs_weight=pair_12F[0, 1] - pair_12F[0, 0],
        instructs_bias=float(pair_12[0, 1] - pair_12[0, 0]),
    )


def as_arrays(heads: Heads) -> dict[str, NDArray[Any]]:
    """As they are shipped: the networks with 16 bits a weight, which changes no reading."""
    return {
        **{name: array.astype(np.float16) for name, array in heads.networks.arrays().items()},
        "center": heads.center,
        "instructs_weight": np.ascontiguousarray(heads.instructs_weight),
        "instructs_bias": np.array([heads.instructs_bias], dtype=np.float32),
    }


def facts(phrases: list[Phrase], embedding: Embedding, heads: Heads) -> dict[str, Any]:
    return {
        "embedding": embedding.name,
        "features": len(heads.instructs_weight),
        "heads": len(heads),
        "hidden": heads.networks.hidden.shape[1],
        "phrases": len(phrases),
        "phrases_sha256": phrases_sha256(),
        "seed": SEED,
        "steps": STEPS,
        "strength": STRENGTH,
    }


def alike(ours: Heads, theirs: Heads, rows_NF: Floats) -> float:
    """Share of messages on which the mean of all heads puts the same first, and complaints instruct alike."""
    both = [
        [
            (int(softmax(heads.logits(row_F)).mean(axis=0).argmax()), heads.instructs(row_F))
            for row_F in rows_NF
        ]
        for heads in (ours, theirs)
    ]
    return float(np.mean([a == b for a, b in zip(*both, strict=True)]))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare with the shipped heads, write nothing")
    check = parser.parse_args(argv).check
    embedding = load_embedding(BUNDLED)
    phrases = read_phrases()
    rows_NF, center_D = embed_phrases(phrases, embedding)
    heads = fit_rows(phrases, rows_NF, center_D)
    if check:
        share = alike(heads, load_heads(embedding), rows_NF)
        sys.stdout.write(f"read as by the shipped heads: {share:.1%}\n")
        return 0 if share >= LEAST_ALIKE else 1
    save_file(as_arrays(heads), HEADS_FILE)
    FACTS_FILE.write_text(json.dumps(facts(phrases, embedding, heads), indent=2) + "\n", "utf-8")
    sys.stdout.write(f"fitted {len(heads)} heads on {len(phrases)} examples\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
