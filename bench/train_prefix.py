"""What does an update cost whose turns share a long beginning? Against one such turn, and against turns one by one.

    python -m bench.train_prefix [--prefix 2000] [--turns 8] [--own 60] [--rounds 3] [--model starter]

One thread, processor seconds. An update is what the trainer does with its default settings and without anchors: score
each turn by policy and teacher, then two passes in micro-batches of four. Rounds are interleaved, and ratios are
medians within this run. Gradients are compared in fp32, each turn by the model's own plain pass, without a tree. Prints
a table and writes results/train_prefix.json.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from pathlib import Path
from typing import Any

import torch

from instar.config import models_dir
from instar.engines.starter import ensure_model
from instar.records import Origin, WeightedSample
from instar.trainers.local import make_optimizer, step
from instar.trainers.policy import Policy, PrefixCache
from instar.trainers.prepare import Prepared, Preparer

RESULTS = Path(__file__).parent / "results" / "train_prefix.json"
SETTINGS: dict[str, Any] = {
    "top_k": 20, "guidance": 1.0, "teacher": "base", "clip_low": 0.2, "clip_high": 0.28, "anchor_kl": 0.0,
    "memory_mib": 3072,
}  # fmt: skip
MICRO_BATCH, PASSES = 4, 2
TARGET = 2.5


def turns(prefix: int, count: int, own: int, vocabulary: int) -> list[WeightedSample]:
    """Random tokens: what they say does not matter to what they cost. Half of `own` are the request's."""
    draw = torch.Generator().manual_seed(0)

    def tokens(number: int) -> list[int]:
        found: list[int] = torch.randint(10, vocabulary - 10, (number,), generator=draw).tolist()
        return found

    def turn(name: str) -> WeightedSample:
        request, length = tokens(own // 2), own - own // 2
        zeros, says = [0.0] * length, [0.5 / length] * length
        return WeightedSample(
            turn_id=name, origin=Origin.SAMPLED, prompt_ids=[*shared, *request], response_ids=tokens(length),
            logprobs=[-10.0] * length, pg_T=says, distill_T=says, nll_T=zeros, kl_T=zeros,
            teacher_prompt_ids=[*shared, *hint, *request],
        )  # fmt: skip

    shared, hint = tokens(prefix), tokens(15)
    return [turn(str(i)) for i in range(count)]


def prepared(policy: Policy, samples: list[WeightedSample]) -> list[Prepared]:
    prepare = Preparer(policy, SETTINGS, PrefixCache(policy))
    return [prepare(sample) for sample in samples]


def seconds(policy: Policy, samples: list[WeightedSample]) -> float:
    """Of an update with these turns."""
    optimizer = make_optimizer(policy, SETTINGS, 0.0, None)
    began = time.process_time()
    batch = prepared(policy, samples)
    for _ in range(PASSES):
        for at in range(0, len(batch), MICRO_BATCH):
            step(policy, optimizer, batch[at : at + MICRO_BATCH], [], SETTINGS)
    return time.process_time() - began


def timings(policy: Policy, samples: list[WeightedSample], rounds: int) -> dict[str, list[float]]:
    seconds(policy, samples[:1])  # what is done once
    found: dict[str, list[float]] = {"one turn": [], "together": [], "one by one": []}
    for number in range(rounds):
        found["one turn"].append(seconds(policy, samples[:1]))
        found["together"].append(seconds(policy, samples))
        if number == 0:  # the slow one, whose ratio is known beforehand
            found["one by one"].append(sum(seconds(policy, [turn]) for turn in samples))
    return found


def gradient(policy: Policy, batch: list[Prepared]) -> torch.Tensor:
    for parameter in policy.parameters:
        parameter.grad = None
    rows, starts = [p.row for p in batch], [p.start for p in batch]
    hidden_ND = policy.hidden_ND(rows, starts, recompute=True)
    wanted = torch.tensor([token for row, start in zip(rows, starts, strict=True) for token in row[start:]])
    loss = -policy.logp_NV(hidden_ND).gather(1, wanted[:, None]).mean() * len(batch)
    torch.autograd.backward(loss)
    return torch.cat([p.grad.flatten() for p in policy.parameters if p.grad is not None])


def agreement(model_dir: Path, samples: list[WeightedSample]) -> float:
    """Relative L2 between the gradient of the tree and the sum over turns alone, in fp32."""
    policy = Policy(model_dir, rank=16, alpha=32, dtype=torch.float32)
    unsettle(policy)
    batch = prepared(policy, samples)
    together = gradient(policy, batch)
    policy.packs = False
    alone = torch.stack([gradient(policy, [turn]) for turn in batch]).sum(0)
    return float((together - alone).norm() / alone.norm())


def unsettle(policy: Policy) -> None:
    """An adapter that has learned something: a fresh one has no gradient in half of its matrices."""
    policy.reset(0)
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for _, parameter in policy.named_parameters():
            parameter.add_(0.01 * torch.randn(parameter.shape, generator=draw))


def main() -> None:
    given = arguments()
    torch.set_num_threads(1)
    model_dir = ensure_model(given.model, models_dir())
    policy = Policy(model_dir, rank=16, alpha=32)
    unsettle(policy)
    samples = turns(given.prefix, given.turns, given.own, int(policy.peft.config.vocab_size))
    found = timings(policy, samples, given.rounds)
    del policy
    medians = {name: statistics.median(values) for name, values in found.items()}
    ratio = medians["together"] / medians["one turn"]
    report = {
        "settings": vars(given),
        "seconds": found,
        "ratio": ratio,
        "target": TARGET,
        "ratio_one_by_one": medians["one by one"] / medians["one turn"],
        "gradient_relative_l2_fp32": agreement(model_dir, samples[: given.compare]),
        "machine": {"processor": platform.processor(), "threads": 1, "torch": torch.__version__},
    }
    show(medians, report)
    RESULTS.write_text(json.dumps(report, indent=1) + "\n", "utf-8")


def show(medians: dict[str, float], report: dict[str, Any]) -> None:
    one = medians["one turn"]
    print("| an update with | processor seconds | of one turn |\n| --- | --- | --- |")
    for name, value in medians.items():
        print(f"| {name} | {value:.1f} | {value / one:.2f} |")
    met = "met" if report["ratio"] <= TARGET else "missed"
    print(f"\nratio {report['ratio']:.2f} (at most {TARGET}: {met}); ", end="")
    print(f"gradients in fp32 differ by {report['gradient_relative_l2_fp32']:.1e} (at most 1e-4)")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--prefix", type=int, default=2000, help="tokens that all turns share")
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument(
        "--own", type=int, default=60, help="tokens of a turn's own request, and of its answer"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--compare", type=int, default=8, help="turns whose gradients are compared")
    parser.add_argument("--model", default="starter")
    return parser.parse_args()


if __name__ == "__main__":
    main()
