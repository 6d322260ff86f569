"""Fit the small reward model: `python -m instar.judges.fit [--check]`.

Multinomial logistic regression with an L2 penalty, by accelerated gradient descent (Nesterov 1983) on all heads
at once: a bootstrap sample is nothing but an integer weight for each phrase, so every head shares the same
features. numpy only, a fixed number of steps, one seed: the same phrases give the same file. Phrases that come
from one template carry a `group`; a bootstrap draws groups, so that no head sees a template's every slot.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from instar.judges.embedding import BUNDLED, Embedding, Floats, load_embedding
from instar.judges.features import features
from instar.judges.heads import CLASSES, FACTS_FILE, HEADS_FILE, PHRASES_FILE, Heads, load_heads

HEADS = 15
SEED = 7
STEPS = 300
STRENGTH = 5.0
"""Inverse of the L2 penalty, as in the sum of losses + |w|²/(2·strength)."""

TOLERANCE = 1e-3
"""How far weights may differ from the shipped ones: other processors round in another order."""


@dataclass(frozen=True, slots=True)
class Phrase:
    """One labelled reaction. `question` is set only where the label depends on it (asking again)."""

    text: str
    label: int
    lang: str
    instructs: bool | None = None
    group: str | None = None
    question: str = ""


def read_phrases(path: Path = PHRASES_FILE) -> list[Phrase]:
    lines = path.read_text("utf-8").splitlines()
    return [Phrase(**json.loads(line)) for line in lines if line.strip()]


def phrases_sha256(path: Path = PHRASES_FILE) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def embed_phrases(phrases: list[Phrase], embedding: Embedding) -> tuple[Floats, Floats]:
    """Features [N, F] and the mean embedding [D]."""
    raw_ND = embedding.embed([phrase.text for phrase in phrases])
    center_D = raw_ND.mean(axis=0)
    rows = [features(p.text, p.question, raw_D, center_D) for p, raw_D in zip(phrases, raw_ND, strict=True)]
    return np.stack(rows), center_D


def bootstrap_weights(phrases: list[Phrase], heads: int, seed: int) -> Floats:
    """How often each head sees each phrase: [m, N]. Head i depends on (seed, i) alone."""
    names = [phrase.group or f"#{index}" for index, phrase in enumerate(phrases)]
    order = {name: number for number, name in enumerate(dict.fromkeys(names))}
    group_N = np.array([order[name] for name in names])
    rows = []
    for head in range(heads):
        draws = np.random.default_rng([seed, head]).integers(0, len(order), len(order))
        rows.append(np.bincount(draws, minlength=len(order))[group_N])
    return np.asarray(rows, dtype=np.float32)


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
        grown = np.exp(logits - logits.max(axis=2, keepdims=True))
        error = grown / grown.sum(axis=2, keepdims=True) - target_NC[:, None, :]
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
    weight_MCF, bias_MC = fit_softmax(
        rows_NF, class_N, bootstrap_weights(phrases, heads, seed), len(CLASSES), steps
    )
    told = [index for index, phrase in enumerate(phrases) if phrase.instructs is not None]
    instructs_N = np.array([int(bool(phrases[index].instructs)) for index in told])
    evenly_1N = np.ones((1, len(told)), dtype=np.float32)
    pair_12F, pair_12 = fit_softmax(rows_NF[told], instructs_N, evenly_1N, 2, steps)
    return Heads(
        weight=weight_MCF,
        bias=bias_MC,
        center=center_D,
        instructs_weight=pair_12F[0, 1] - pair_12F[0, 0],
        instructs_bias=float(pair_12[0, 1] - pair_12[0, 0]),
    )


def as_arrays(heads: Heads) -> dict[str, Floats]:
    return {
        "weight": heads.weight,
        "bias": heads.bias,
        "center": heads.center,
        "instructs_weight": np.ascontiguousarray(heads.instructs_weight),
        "instructs_bias": np.array([heads.instructs_bias], dtype=np.float32),
    }


def facts(phrases: list[Phrase], embedding: Embedding, heads: Heads) -> dict[str, Any]:
    return {
        "embedding": embedding.name,
        "features": int(heads.weight.shape[2]),
        "heads": len(heads.bias),
        "phrases": len(phrases),
        "phrases_sha256": phrases_sha256(),
        "seed": SEED,
        "steps": STEPS,
        "strength": STRENGTH,
    }


def largest_difference(ours: Heads, theirs: Heads) -> float:
    a, b = as_arrays(ours), as_arrays(theirs)
    return max(float(np.abs(a[name] - b[name]).max()) for name in a)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare with the shipped heads, write nothing")
    check = parser.parse_args(argv).check
    embedding = load_embedding(BUNDLED)
    phrases = read_phrases()
    heads = fit_heads(phrases, embedding)
    if check:
        difference = largest_difference(heads, load_heads(embedding))
        sys.stdout.write(f"largest difference to the shipped heads: {difference:.2e}\n")
        return 0 if difference <= TOLERANCE else 1
    save_file(as_arrays(heads), HEADS_FILE)
    FACTS_FILE.write_text(json.dumps(facts(phrases, embedding, heads), indent=2) + "\n", "utf-8")
    sys.stdout.write(f"fitted {len(heads.bias)} heads on {len(phrases)} phrases\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
