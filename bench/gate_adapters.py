"""Adapters made on purpose, good and bad, on one policy: by the product's own trainer, or by hand."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch

from bench.prompts import TRAIN
from instar.chat_format import ChatFormat
from instar.config import TrainSettings
from instar.records import BASE, Origin, UpdateJob, WeightedSample
from instar.trainers.local import run_update
from instar.trainers.policy import Policy
from instar.trainers.sampling import sample

QUESTIONS = 24
"""Training questions that the adapters are taught with."""
MICRO_BATCH = 4


@dataclass(frozen=True, slots=True)
class Lesson:
    """An answer to a prompt, as ids. `unlearn` pushes its last token away instead of teaching all of it."""

    prompt: list[int]
    answer: list[int]
    unlearn: bool = False

    def sample(self, turn_id: str) -> WeightedSample:
        zeros = [0.0] * len(self.answer)
        each = 1 / len(self.answer)
        weights = [*zeros[1:], -1.0] if self.unlearn else [each] * len(self.answer)
        return WeightedSample(
            turn_id,
            Origin.EDIT,
            self.prompt,
            self.answer,
            [],
            pg_T=zeros,
            distill_T=zeros,
            nll_T=weights,
            kl_T=zeros,
        )


class Workshop:
    """Makes adapters on one policy."""

    def __init__(self, model_dir: Path) -> None:
        self.chat = ChatFormat(model_dir)
        self.policy = Policy(model_dir, rank=16, alpha=32)
        self.policy.reset(0)

    def question(self, number: int) -> str:
        return TRAIN[number]

    def prompt(self, question: str) -> list[int]:
        return self.chat.encode_prompt([{"role": "user", "content": question}])

    def ask(
        self, questions: Sequence[str], *, seed: int, max_tokens: int, temperature: float = 0.7
    ) -> list[tuple[str, bool]]:
        """Text of each answer, and whether it ended by itself."""
        found = sample(
            self.policy,
            [self.prompt(q) for q in questions],
            stop_ids=self.chat.stop_ids,
            max_tokens=max_tokens,
            temperature=temperature,
            seed=seed,
        )
        return [(self.chat.decode(a.ids), a.ended) for a in found]

    @cached_property
    def own(self) -> list[str]:
        """Base's own answers, cut where they are long."""
        with self.policy.as_base():
            return [text for text, _ in self.ask(TRAIN[:QUESTIONS], seed=3, max_tokens=72)]

    def hinted(self, hint: str, count: int = 16) -> list[Lesson]:
        """Base's answers to the hinted questions, to be given without the hint."""
        with self.policy.as_base():
            asked = [f"{hint}\n\n{q}" for q in TRAIN[:count]]
            found = self.ask(asked, seed=4, max_tokens=72, temperature=0.5)
        return [
            self.lesson(q, text, ends=ended) for q, (text, ended) in zip(TRAIN[:count], found, strict=True)
        ]

    def lesson(self, question: str, text: str, *, ends: bool = True) -> Lesson:
        ids = self.chat.encode_answer(text) if ends else self.chat.encode(text)
        return Lesson(self.prompt(question), ids)

    def lessons(self, answer: Callable[[int], str], *, ends: bool = True) -> list[Lesson]:
        """One for each training question; `answer` gives the text by number."""
        return [self.lesson(q, answer(i), ends=ends) for i, q in enumerate(TRAIN[:QUESTIONS])]

    def teach(
        self, lessons: Sequence[Lesson], out: Path, *, steps: int, seed: int, rate: float, anchored: bool
    ) -> None:
        """A fresh adapter after so many steps of likelihood, by the product's own trainer."""
        chosen: list[Lesson] = []
        choose = random.Random(seed)
        while len(chosen) < steps * MICRO_BATCH:
            chosen += choose.sample(list(lessons), len(lessons))
        samples = [x.sample(f"turn_{i}") for i, x in enumerate(chosen[: steps * MICRO_BATCH])]
        settings = TrainSettings(passes=1, micro_batch=MICRO_BATCH, lr=rate).model_dump()  # type: ignore[call-arg]
        if not anchored:
            settings["anchor_kl"] = 0.0
        job = UpdateJob(
            update_id="check",
            parent=BASE,
            parent_dir=None,
            model_dir=str(self.policy.model_dir),
            out_dir=str(out),
            seed=seed,
            samples=samples,
            settings=settings,
        )
        run_update(job, self.policy, None)

    def noise(self, size: float, *, seed: int) -> None:
        """A random adapter: both matrices of each projection drawn, B with this deviation."""
        self.policy.reset(seed)
        generator = torch.Generator().manual_seed(seed + 1)
        with torch.no_grad():
            for name, parameter in self.policy.named_parameters():
                if "lora_B" in name:
                    parameter.add_(size * torch.randn(parameter.shape, generator=generator))

    def scale(self, factor: float) -> None:
        """Multiply what the adapter that is carried now adds to the model."""
        with torch.no_grad():
            for name, parameter in self.policy.named_parameters():
                if "lora_B" in name:
                    parameter.mul_(factor)

    def spoil(self, value: float, *, seed: int) -> None:
        self.noise(1e-3, seed=seed)
        with torch.no_grad():
            self.policy.parameters[seed % len(self.policy.parameters)].view(-1)[seed] = value
