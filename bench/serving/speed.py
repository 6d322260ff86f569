"""Part a: tokens a second and time to the first token over HTTP, with a version active in ours, beside vLLM."""

from __future__ import annotations

import itertools
from contextlib import ExitStack
from typing import Any

from bench.serving.goals import Figures, Plan, Row, median
from bench.serving.houses import Texts, activate, ours, publish, quiet, vllm, young_adapter
from bench.serving.load import Body, Endpoint, block, figures

OURS, WITH, WITHOUT = "ours, a version active", "vLLM, adapter", "vLLM"
STREAMS, PROMPTS, TOKENS = (1, 4, 8), (200, 2_000), 64
WAYS: dict[str, Body] = {
    "greedy": {"temperature": 0},
    "sampled, log-probs": {"temperature": 0.7, "logprobs": 1},
}


def run(plan: Plan) -> Figures:
    with ExitStack() as stack:
        arms = _arms(plan, stack)
        texts = Texts(plan.model_dir)
        streams = (1, 4) if plan.is_quick else STREAMS
        prompts = (60, 300) if plan.is_quick else PROMPTS
        tokens, requests = (12, 1) if plan.is_quick else (TOKENS, 2)
        for arm in arms:  # the first passes choose kernels and touch memory
            block(arm, 2, 1, lambda _: {"prompt": texts.of(prompts[0]), "max_tokens": 8, "temperature": 0})
        cells: dict[str, dict[str, list[dict[str, float]]]] = {}
        for number in range(plan.rounds):
            for length, count, (way, sampling) in itertools.product(prompts, streams, WAYS.items()):
                name = f"{length} tokens, {count} streams, {way}"
                cell = cells.setdefault(name, {arm.name: [] for arm in arms})
                turned = arms[number % len(arms) :] + arms[: number % len(arms)]
                for arm in turned:
                    plan.step(f"speed, round {number + 1}: {name}: {arm.name}")
                    found = block(
                        arm,
                        count,
                        requests,
                        lambda _, n=length, s=sampling: {"prompt": texts.of(n), "max_tokens": tokens, **s},
                    )
                    cell[arm.name].append(figures(found, count))
    return {"cells": cells, "summary": summary(cells), "vllm": plan.vllm is not None, "max_tokens": tokens}


def _arms(plan: Plan, stack: ExitStack) -> list[Endpoint]:
    plan.step("speed: an adapter after one update")
    adapter = young_adapter(plan.model_dir, plan.work / "adapter")
    plan.step("speed: starting ours")
    server = stack.enter_context(ours(plan.work / "speed", plan.model_dir, **quiet(plan.threads)))
    publish(server.data_dir, server.model_dir(), adapter, "v1")
    activate(server, "v1")
    arms = [Endpoint(OURS, server.url, server.key, "instar")]
    if plan.vllm is not None:
        for lora in (adapter, None):
            plan.step("speed: starting vLLM")
            log = plan.work / "vllm.log"
            arms.append(stack.enter_context(vllm(plan.vllm, plan.model_dir, lora, plan.threads, log)))
    return arms


def summary(cells: dict[str, dict[str, list[dict[str, float]]]]) -> dict[str, dict[str, Any]]:
    """Medians over rounds; `times` are ours by theirs within a round, and their medians."""
    found: dict[str, dict[str, Any]] = {}
    for name, arms in cells.items():
        line: dict[str, Any] = {
            arm: {key: median([b[key] for b in blocks]) for key in ("tokens_per_s", "first_ms", "gap_p50_ms")}
            for arm, blocks in arms.items()
        }
        for arm, blocks in arms.items():
            if arm != OURS:
                pairs = list(zip(arms[OURS], blocks, strict=True))
                line[arm]["times_tokens"] = median([o["tokens_per_s"] / b["tokens_per_s"] for o, b in pairs])
                line[arm]["times_first"] = median([o["first_ms"] / b["first_ms"] for o, b in pairs])
        found[name] = line
    return found


def rows(found: Figures) -> list[Row]:
    lines: list[Row] = []
    for name, line in found["summary"].items():
        mine = line[OURS]
        lines.append(
            Row(f"ours: {name}", mine["tokens_per_s"], unit=" tok/s", note=f"first {mine['first_ms']:.0f} ms")
        )
        for arm in (WITH, WITHOUT):
            if arm in line:
                theirs = line[arm]
                note = f"{theirs['tokens_per_s']} tok/s, first {theirs['first_ms']:.0f} ms"
                bound = _bound(name, arm)
                lines.append(
                    Row(
                        f"  tokens/s, of {arm}",
                        theirs["times_tokens"],
                        bound,
                        at_most=False,
                        unit="×",
                        note=note,
                    )
                )
                lines.append(Row(f"  first token, of {arm}", theirs["times_first"], 1.0, unit="×"))
    if not found["vllm"]:
        lines.append(Row("vLLM was left out: name its executable with --vllm", None))
    return lines


def _bound(name: str, arm: str) -> float | None:
    """With the native step. Four streams have no figure of their own."""
    if name.split(", ")[1] not in {"1 streams", "8 streams"}:
        return None
    return 2.0 if arm == WITH else 1.8
