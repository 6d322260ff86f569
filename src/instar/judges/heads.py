"""The small reward model: m bootstrapped heads on one embedding; their majority is the vote.

Each head is a multinomial logistic regression over −1, 0, +1 (features.py says of what), fitted on its own
bootstrap sample of the labelled phrases (fit.py). Where the heads disagree, or agree without conviction, the
link abstains: a reaction that is not counted costs little, one counted with the wrong sign teaches the opposite.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from instar.chat_format import last_user_text
from instar.errors import ConfigError
from instar.judges.embedding import Embedding, Floats
from instar.judges.explicit import as_hint, newest
from instar.judges.features import feature_dim, features
from instar.records import JudgeItem, NextKind, NextState, Verdict

CLASSES = (-1, 0, 1)
"""Order of the columns of every head."""

DATA_DIR = Path(__file__).parent / "data"
HEADS_FILE = DATA_DIR / "heads.safetensors"
FACTS_FILE = DATA_DIR / "heads.json"
PHRASES_FILE = DATA_DIR / "phrases.jsonl"

MIN_PROBABILITY = 0.6
"""Mean probability of the majority below which it abstains. Chosen by cross-validation on the phrases."""

MAX_OPPOSITE = 0.15
"""Mean probability of the opposite sign above which a +1 or −1 abstains: wrong signs are the costly errors."""


@dataclass(frozen=True, slots=True)
class Heads:
    """Weights of m heads over F features and 3 classes, as fitted on an embedding of D numbers.

    `weight` [m, 3, F], `bias` [m, 3], `center` [D]; `instructs_weight` [F] and its bias say whether a complaint
    tells what to do instead.
    """

    weight: Floats
    bias: Floats
    center: Floats
    instructs_weight: Floats
    instructs_bias: float

    def probabilities(self, row_F: Floats) -> Floats:
        """Softmax of each head: [m, 3]."""
        logits_MC = self.weight @ row_F + self.bias
        grown_MC = np.exp(logits_MC - logits_MC.max(axis=1, keepdims=True))
        out: Floats = grown_MC / grown_MC.sum(axis=1, keepdims=True)
        return out

    def instructs(self, row_F: Floats) -> bool:
        """Does a complaint say what to do instead, or only that it was bad?"""
        return float(self.instructs_weight @ row_F) + self.instructs_bias > 0


def majority(votes: tuple[int, ...]) -> tuple[int, float]:
    """The commonest vote and the share of votes for it. A tie is no majority: share 0."""
    ranked = Counter(votes).most_common(2)
    if len(ranked) == 2 and ranked[0][1] == ranked[1][1]:
        return ranked[0][0], 0.0
    return ranked[0][0], ranked[0][1] / len(votes)


class HeadsLink:
    """Reads what the user said after an answer; abstains where nobody said anything, or the heads differ."""

    name = "heads"

    def __init__(
        self, heads: Heads, embedding: Embedding, *, voters: int | None = None, min_agreement: float = 0.75
    ) -> None:
        self._heads = heads
        self._embedding = embedding
        self._voters = min(voters or len(heads.bias), len(heads.bias))
        self._min_agreement = min_agreement

    def judge(self, item: JudgeItem) -> Verdict | None:
        said = _what_was_said(item)
        if said is None or not said.text.strip():
            return None
        return self.read(said.text, question=last_user_text(item.turn.messages))

    def read(self, text: str, question: str = "") -> Verdict | None:
        """Judge one message by itself. `question` is the message that the judged answer replies to."""
        embedding_D = self._embedding.embed([text])[0]
        row_F = features(text, question, embedding_D, self._heads.center)
        p_MC = self._heads.probabilities(row_F)[: self._voters]
        votes = tuple(CLASSES[int(column)] for column in p_MC.argmax(axis=1))
        score, agreement = majority(votes)
        mean_C = p_MC.mean(axis=0)
        certain = float(mean_C[CLASSES.index(score)])
        opposed = float(mean_C[CLASSES.index(-score)]) if score else 0.0
        if agreement < self._min_agreement or certain < MIN_PROBABILITY or opposed > MAX_OPPOSITE:
            return None
        hint = as_hint(text) if score < 0 and self._heads.instructs(row_F) else None
        return Verdict(score=score, votes=votes, hint=hint, why=_why(score, agreement, certain))


def load_heads(embedding: Embedding) -> Heads:
    """The shipped heads. Raises ConfigError if they were fitted on another embedding than the one at hand."""
    facts: dict[str, Any] = json.loads(FACTS_FILE.read_text("utf-8"))
    if facts["embedding"] != embedding.name or facts["features"] != feature_dim(embedding.dim):
        raise ConfigError(
            f"The reward model was fitted on {facts['embedding']}, not on {embedding.name}. "
            "Use judge.embedding = 'bundled', or fit it again with `python -m instar.judges.fit`."
        )
    arrays = load_file(HEADS_FILE)
    return Heads(
        weight=arrays["weight"],
        bias=arrays["bias"],
        center=arrays["center"],
        instructs_weight=arrays["instructs_weight"],
        instructs_bias=float(arrays["instructs_bias"][0]),
    )


def _what_was_said(item: JudgeItem) -> NextState | None:
    """The newest reply, else the comment of a feedback that came without a score."""
    return newest(item.next_states, NextKind.USER_REPLY) or newest(item.next_states, NextKind.FEEDBACK)


def _why(score: int, agreement: float, certain: float) -> str:
    said = {1: "sounds content", -1: "asks for something else or complains", 0: "does not judge the answer"}
    return f"the user's next message {said[score]} ({agreement:.0%} of the heads, probability {certain:.2f})"
