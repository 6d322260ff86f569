"""Canary questions: what base says to them, and how well an answer fits its question, told by the frozen base.

An answer is told by the question that fits it best. The questions lie far from each other and from what users train
on; they are asked in blocks, and each answer is held against other questions of its block.
"""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor
from transformers import DynamicCache

from instar.chat_format import ChatFormat
from instar.trainers.policy import Policy, PrefixCache

DATA = Path(__file__).parent / "data"
BLOCK = 12
"""Questions asked together."""
OTHERS = 3
"""How many other questions of its block an answer is held against."""
FEWEST_TOKENS = 3
MOST_REPEATED = 0.7
"""Share of an answer's tokens that may stand in the question before it counts as an echo."""


@dataclass(frozen=True, slots=True)
class Canaries:
    """Questions as texts and as ids, complete answers, neutral texts. No update is ever pulled towards them.

    `others` are prompts that serve as a backdrop elsewhere (trainers/revise.py).
    """

    questions: list[str]
    prompts: list[list[int]]
    others: list[list[int]]
    endings: list[tuple[list[int], list[int]]]
    neutral: list[list[int]]
    stop_ids: list[int]

    def blocks(self) -> Iterator[range]:
        """Numbers of the questions, a block at a time."""
        for at in range(0, len(self.prompts), BLOCK):
            yield range(at, min(at + BLOCK, len(self.prompts)))

    def body(self, ids: Sequence[int]) -> list[int]:
        """An answer without its stop token."""
        return [i for i in ids if i not in self.stop_ids]


@lru_cache(maxsize=4)
def chat_of(model_dir: Path) -> ChatFormat:
    return ChatFormat(model_dir)


@lru_cache(maxsize=4)
def canaries(model_dir: Path) -> Canaries:
    chat = chat_of(model_dir)
    data = json.loads((DATA / "canaries.json").read_text("utf-8"))

    def prompt(text: str) -> list[int]:
        return chat.encode_prompt([{"role": "user", "content": text}])

    return Canaries(
        questions=list(data["questions"]),
        prompts=[prompt(q) for q in data["questions"]],
        others=[prompt(q) for q in data["other_questions"]],
        endings=[(prompt(q), chat.encode(a)) for q, a in data["complete_answers"]],
        neutral=[chat.encode(text) for text in data["neutral_texts"]],
        stop_ids=list(chat.stop_ids),
    )


@torch.no_grad()
def token_logp(
    policy: Policy,
    prompts: Sequence[Sequence[int]],
    answers: Sequence[Sequence[int]],
    prefixes: PrefixCache | None = None,
) -> list[Tensor]:
    """Log-probs of each answer's tokens after its prompt, under the policy as it stands: shape (T,) each.

    With `prefixes`, those of this same policy, a long prompt is taken from there.
    """
    rows = [[*p, *a] for p, a in zip(prompts, answers, strict=True)]
    hidden_ND = policy.hidden_ND(rows, [len(p) for p in prompts], prefixes)
    found, at = [], 0
    for answer in answers:
        found.append(policy.logp_of(hidden_ND[at : at + len(answer)], answer))
        at += len(answer)
    return found


def loops(ids: Sequence[int], size: int = 4, most: int = 2) -> bool:
    """Whether some run of `size` tokens stands more than `most` times."""
    runs = Counter(tuple(ids[i : i + size]) for i in range(len(ids) - size + 1))
    return any(count > most for count in runs.values())


def echoes(text: Sequence[int], prompt: Sequence[int]) -> bool:
    """Whether an answer is little more than its question."""
    known = set(prompt)
    return bool(text) and sum(i in known for i in text) / len(text) > MOST_REPEATED


class Backdrop:
    """Log-probs of answers after their own question and after others. Keys and values of the questions are kept."""

    def __init__(self, policy: Policy, canary: Canaries) -> None:
        self._policy, self._canary = policy, canary
        self._cache: dict[int, DynamicCache] = {}

    @torch.no_grad()
    def logp(self, block: Sequence[int], answers: Sequence[Sequence[int]]) -> list[list[Tensor]]:
        """For each answer (T tokens) to the questions of `block`: shape (T,) after its own question, then after
        `OTHERS` others. Nothing for an answer without tokens."""
        size = len(block)
        width = min(OTHERS + 1, size)
        found: list[list[Tensor]] = [[torch.empty(0)] * width if a else [] for a in answers]
        with self._policy.as_base():
            for place, question in enumerate(block):
                rows = [(k, (place - k) % size) for k in range(width)]
                spoken = [(k, who) for k, who in rows if answers[who]]
                scored = self._after(question, [answers[who] for _, who in spoken])
                for (k, who), logp_T in zip(spoken, scored, strict=True):
                    found[who][k] = logp_T
        return found

    def _after(self, question: int, answers: Sequence[Sequence[int]]) -> list[Tensor]:
        if not answers:
            return []
        prompt = self._canary.prompts[question]
        if question not in self._cache:
            self._cache[question] = self._policy.prefill(prompt[:-1], DynamicCache())
        past = DynamicCache()
        for number, layer in enumerate(self._cache[question].layers):
            wide = (len(answers), -1, -1, -1)
            past.update(layer.keys.expand(*wide), layer.values.expand(*wide), number)
        return self._policy.answers_logp(prompt[-1], answers, past)


@dataclass(frozen=True, slots=True)
class Mark:
    """What one canary answer shows. `logp` (after its own question) and `margin` (over others) are nats a token."""

    length: int
    logp: float
    margin: float
    nearest: bool
    loops: bool
    echo: bool


def marks_of(
    canary: Canaries, block: Sequence[int], answers: Sequence[Sequence[int]], logp: Sequence[Sequence[Tensor]]
) -> list[Mark]:
    """Marks of answers (without stop tokens), from `Backdrop.logp`."""
    return [
        _mark(answer, canary.prompts[question], rows)
        for question, answer, rows in zip(block, answers, logp, strict=True)
    ]


def _mark(answer: Sequence[int], prompt: Sequence[int], rows: Sequence[Tensor]) -> Mark:
    if not answer:
        return Mark(0, float("-inf"), float("-inf"), nearest=False, loops=False, echo=False)
    own, *others = (float(logp_T.mean()) for logp_T in rows)
    return Mark(
        length=len(answer),
        logp=own,
        margin=own - statistics.fmean(others),
        nearest=own > max(others),
        loops=loops(answer),
        echo=echoes(answer, prompt),
    )


def margin_curve(logp: Sequence[Sequence[Tensor]], longest: int) -> list[float]:
    """Mean margin of answers that are cut after 1, 2, … `longest` tokens; index 0 is one token."""
    found = []
    for length in range(1, longest + 1):
        cut = [[float(row_T[:length].mean()) for row_T in rows] for rows in logp if rows]
        found.append(statistics.fmean(own - statistics.fmean(others) for own, *others in cut))
    return found
