"""Judged samples and teacher prompts for tests of methods and trainers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from instar.records import Origin, Sample, Source, UpdateJob, WeightedSample


def judged(turn_id: str = "t1", **changes: Any) -> Sample:
    """A corrected answer of four tokens; change what a test is about."""
    values: dict[str, Any] = {
        "turn_id": turn_id,
        "learner": "me",
        "version": "base",
        "source": Source.USER,
        "origin": Origin.SAMPLED,
        "request_messages": [{"role": "user", "content": "Why?"}],
        "prompt_ids": [10, 11, 12],
        "response_ids": [20, 21, 22, 2],
        "logprobs": [-0.5, -0.5, -0.5, -0.5],
        "score": -1,
        "hint": "Shorter, please.",
    }
    return Sample(**{**values, **changes})


def praised(turn_id: str = "p1", **changes: Any) -> Sample:
    return judged(turn_id, **{"score": 1, "hint": None, **changes})


@dataclass
class WordPrompts:
    """Teacher prompts that say which words they were built from."""

    shown: list[str] = field(default_factory=list)

    def hinted(self, sample: Sample, hint: str) -> list[int]:
        self.shown.append(hint)
        return [*sample.prompt_ids, 99]

    def encode_answer(self, text: str) -> list[int]:
        return [*(int(word) for word in text.split()), 2]


SETTINGS: dict[str, Any] = {
    "lr": 1e-2,
    "rank": 4,
    "alpha": 8,
    "passes": 2,
    "micro_batch": 2,
    "top_k": 8,
    "clip_low": 0.2,
    "clip_high": 0.28,
    "anchor_kl": 0.0,
    "guidance": 1.0,
    "teacher": "policy",
    "revision_tokens": 8,
    "max_tokens": 512,
    "gate": {"max_kl": 1e9, "min_sound": 0.01},
}
"""Training settings for tiny models; the gate lets everything finite pass."""


def weighted(turn_id: str = "t1", **changes: Any) -> WeightedSample:
    """A sample without weights; change what a test is about."""
    response = changes.get("response_ids", [60, 70, 80, 2])
    zeros = [0.0] * len(response)
    values: dict[str, Any] = {
        "turn_id": turn_id,
        "origin": Origin.SAMPLED,
        "prompt_ids": [30, 40, 50],
        "response_ids": response,
        "logprobs": [-5.0] * len(response),
        "pg_T": zeros,
        "distill_T": zeros,
        "nll_T": zeros,
        "kl_T": zeros,
    }
    return WeightedSample(**{**values, **changes})


def job(model_dir: Any, out_dir: Any, samples: Sequence[WeightedSample], **settings: Any) -> UpdateJob:
    return UpdateJob(
        update_id="u1",
        parent="base",
        parent_dir=None,
        model_dir=str(model_dir),
        out_dir=str(out_dir),
        seed=3,
        samples=list(samples),
        anchors=[[40, 50, 60, 70, 80]],
        settings={**SETTINGS, **settings},
    )
