"""The small reward model: m heads on one embedding; their majority is the vote.

Each head is a small network (networks.py) that tells −1, 0 and +1 apart (features.py says by what), fitted on its own
draw of the labelled reactions (fit.py). Where the heads disagree, or agree without conviction, the
link abstains: a reaction that is not counted costs little, one counted with the wrong sign teaches the opposite.
What a learner rated outright may move the heads, for that learner alone (personal.py).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from safetensors.numpy import load_file

from instar.content import last_user_text
from instar.errors import ConfigError
from instar.judges.embedding import Embedding, Floats
from instar.judges.explicit import as_hint, newest
from instar.judges.features import feature_dim, features, meaning
from instar.judges.networks import Networks, Reals, softmax
from instar.records import Abstention, JudgeItem, NextKind, NextState, Verdict

CLASSES = (-1, 0, 1)
"""Order of the columns of every head."""

DATA_DIR = Path(__file__).parent / "data"
HEADS_FILE = DATA_DIR / "heads.safetensors"
FACTS_FILE = DATA_DIR / "heads.json"
PHRASES_FILE = DATA_DIR / "phrases.jsonl"
REACTIONS_FILE = DATA_DIR / "reactions.jsonl"

MIN_PROBABILITY = 0.7
"""Mean probability of the majority below which it abstains: between .6 and it a third of reactions is misread."""

MAX_OPPOSITE = 0.15
"""Mean probability of the opposite sign above which a +1 or −1 abstains: wrong signs are the costly errors."""


@dataclass(frozen=True, slots=True)
class Heads:
    """m networks over the meaning of a message, as fitted on an embedding of E numbers, whose mean is `center` [E].

    `instructs_weight` [F], over all features, and its bias say whether a complaint tells what to do instead.
    """

    networks: Networks
    center: Floats
    instructs_weight: Floats
    instructs_bias: float

    def __len__(self) -> int:
        return len(self.networks)

    def first(self, voters: int) -> Heads:
        """Only so many heads, or all if there are fewer."""
        return replace(self, networks=self.networks.first(voters))

    def logits(self, row_F: Floats) -> Floats:
        """Of each head: [m, 3]."""
        return self.networks.logits(meaning(row_F, len(self.center)))

    def instructs(self, row_F: Floats) -> bool:
        """Does a complaint say what to do instead, or only that it was bad?"""
        return float(self.instructs_weight @ row_F) + self.instructs_bias > 0


def majority(votes: tuple[int, ...]) -> tuple[int, float]:
    """The commonest vote and the share of votes for it. A tie is no majority: share 0."""
    ranked = Counter(votes).most_common(2)
    if len(ranked) == 2 and ranked[0][1] == ranked[1][1]:
        return ranked[0][0], 0.0
    return ranked[0][0], ranked[0][1] / len(votes)


@dataclass(frozen=True, slots=True)
class Vote:
    """What the heads say together: share of equal votes, mean probability of what they voted for."""

    score: int
    votes: tuple[int, ...]
    agreement: float
    certain: float


def vote(p_MC: Reals, min_agreement: float) -> Vote | None:
    """The majority of the heads, from the softmax of each [m, 3]; None where they are not sure enough."""
    votes = tuple(CLASSES[int(column)] for column in p_MC.argmax(axis=1))
    score, agreement = majority(votes)
    mean_C = p_MC.mean(axis=0)
    certain = float(mean_C[CLASSES.index(score)])
    opposed = float(mean_C[CLASSES.index(-score)]) if score else 0.0
    if agreement < min_agreement or certain < MIN_PROBABILITY or opposed > MAX_OPPOSITE:
        return None
    return Vote(score, votes, agreement, certain)


class OwnRatings(Protocol):
    """Who knows how a learner's own ratings move the heads."""

    def offset(self, learner: str, *, without: str) -> Floats | None:
        """What is added to every head's weights for this learner [3, F]; None where the shipped heads go on.

        What was said after the turn `without` has no part in it: nobody is to be told the answer.
        """
        ...

    def facts(self) -> dict[str, Any]:
        """What `status` tells of it, by learner."""
        ...


class HeadsLink:
    """Reads what the user said after an answer; abstains where nobody said anything, or the heads differ."""

    name = "heads"

    def __init__(
        self,
        heads: Heads,
        embedding: Embedding,
        *,
        voters: int | None = None,
        min_agreement: float = 0.75,
        own: OwnRatings | None = None,
    ) -> None:
        self._heads = heads.first(voters or len(heads))
        self._embedding = embedding
        self._min_agreement = min_agreement
        self._own = own

    def judge(self, item: JudgeItem) -> Verdict | Abstention | None:
        said = what_was_said(item.next_states)
        if said is None or not said.text.strip():
            return None
        offset_CF = self._own.offset(item.turn.learner, without=item.turn.id) if self._own else None
        return self.read(said.text, last_user_text(item.turn.messages), offset_CF)

    def read(
        self, text: str, question: str = "", offset_CF: Floats | None = None
    ) -> Verdict | Abstention | None:
        """Judge one message by itself. `question` is the message that the judged answer replies to."""
        row_F = features(text, question, self._embedding.embed([text])[0], self._heads.center)
        logits_MC = self._heads.logits(row_F)
        found = shipped = vote(softmax(logits_MC), self._min_agreement)
        if offset_CF is not None:
            found = vote(softmax(logits_MC + offset_CF @ row_F), self._min_agreement)
        if found is None:
            return Abstention(f"{_without_them(shipped)}, but {OWN} speak against it") if shipped else None
        hint = as_hint(text) if found.score < 0 and self._heads.instructs(row_F) else None
        moved = shipped is None or shipped.score != found.score
        return Verdict(found.score, found.votes, hint, why=_why(found) + (_moved(shipped) if moved else ""))

    def facts(self) -> dict[str, Any]:
        return self._own.facts() if self._own else {}


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
        networks=Networks(
            **{field.name: arrays[field.name].astype(np.float32) for field in fields(Networks)}
        ),
        center=arrays["center"],
        instructs_weight=arrays["instructs_weight"],
        instructs_bias=float(arrays["instructs_bias"][0]),
    )


def what_was_said(states: Sequence[NextState]) -> NextState | None:
    """The newest reply, else the newest comment of a feedback."""
    return newest(states, NextKind.USER_REPLY) or newest(states, NextKind.FEEDBACK)


SOUNDS = {1: "sounds content", -1: "asks for something else or complains", 0: "does not judge the answer"}
OWN = "your own ratings of such words"


def _why(found: Vote) -> str:
    sure = f"{found.agreement:.0%} of the heads, probability {found.certain:.2f}"
    return f"the user's next message {SOUNDS[found.score]} ({sure})"


def _moved(shipped: Vote | None) -> str:
    return f", as {OWN} say: {_without_them(shipped)}"


def _without_them(shipped: Vote | None) -> str:
    return f"without them it {SOUNDS[shipped.score]}" if shipped else "without them nobody could tell"
