"""Training all weights instead of an adapter, for the published recipe: the product does not do this.

bf16 weights that are sampled from and differentiated, fp32 masters that AdamW moves (bf16 alone would round steps of
1e-5 away). The loss, its preparation and the optimizer step are the product's own. Versions lie in memory only: there
is one line of descent and no way back, so the folder of a version holds a note instead of 270 MB.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from instar.records import UpdateJob, UpdateResult
from instar.trainers.fidelity import mismatch
from instar.trainers.gate import Gate
from instar.trainers.local import check, learning_rate, says, step
from instar.trainers.policy import Policy, PrefixCache
from instar.trainers.prepare import Preparer

NOTE = "full_weights.json"


class FullWeights(Policy):
    """A policy whose own weights are trained. The adapter that its parent class puts on stays zero."""

    def __init__(self, model_dir: Path) -> None:
        super().__init__(model_dir, rank=1, alpha=1)
        super().reset(0)
        for name, parameter in self.peft.named_parameters():
            parameter.requires_grad_("lora_" not in name)
        untouched = Policy(model_dir, rank=1, alpha=1)
        untouched.reset(0)
        self._untouched = untouched
        self._steps = 0
        self._renew()

    def _renew(self) -> None:
        """Masters and moments of a run that begins."""
        self.masters = [p.detach().float().clone() for p in self.parameters]
        self.optimizer = MasterAdamW(self.parameters, self.masters)

    def reset(self, seed: int) -> None:
        """Base's weights again."""
        with torch.no_grad():
            theirs = dict(self._untouched.peft.named_parameters())
            for name, parameter in self.named_parameters():
                parameter.copy_(theirs[name])
        self._steps = 0
        self._renew()

    def load(self, folder: Path) -> None:
        """The newest version is the one in memory; another cannot be had."""
        wanted = json.loads((folder / NOTE).read_text("utf-8"))["steps"]
        if wanted != self._steps:
            raise RuntimeError(f"{folder} was left {self._steps - wanted} steps ago and is not kept")

    def save(self, folder: Path) -> None:
        (folder / NOTE).write_text(json.dumps({"steps": self._steps}), "utf-8")

    def stepped(self) -> None:
        self._steps += 1

    @contextmanager
    def as_base(self) -> Iterator[None]:
        mine = (self.peft, self.body, self.head)
        other = self._untouched
        self.peft, self.body, self.head = other.peft, other.body, other.head
        try:
            yield
        finally:
            self.peft, self.body, self.head = mine


class MasterAdamW(torch.optim.AdamW):
    """AdamW on fp32 masters of bf16 parameters: gradients go up, new weights come down."""

    def __init__(self, parameters: list[torch.nn.Parameter], masters: list[torch.Tensor]) -> None:
        super().__init__(masters, lr=1e-5, betas=(0.9, 0.98), weight_decay=0.0)
        self._pairs = list(zip(parameters, masters, strict=True))

    def zero_grad(self, set_to_none: bool = True) -> None:
        super().zero_grad(set_to_none)
        for parameter, _ in getattr(self, "_pairs", []):
            parameter.grad = None

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for parameter, master in self._pairs:
            master.grad = parameter.grad.float() if parameter.grad is not None else None
        super().step()
        for parameter, master in self._pairs:
            parameter.copy_(master)


def train_all_weights(job: UpdateJob, policy: FullWeights, gate: Gate | None) -> UpdateResult:
    """One update as `instar.trainers.local.run_update` does it, on all weights; no revisions and no anchors."""
    began = time.monotonic()
    check(job)
    torch.manual_seed(job.seed)
    prefixes = PrefixCache(policy)
    prepare = Preparer(policy, job.settings, prefixes)
    teaching = [p for p in map(prepare, job.samples) if says(p.sample)]
    choose = random.Random(job.seed)
    rate = learning_rate(job, job.samples)
    for group in policy.optimizer.param_groups:
        group["lr"] = rate
    metrics: dict[str, Any] = {"lr": rate, "mismatch": mismatch(teaching), "steps": []}
    size = int(job.settings["micro_batch"])
    for _ in range(int(job.settings["passes"])):
        order = choose.sample(range(len(teaching)), len(teaching))
        for at in range(0, len(order), size):
            part = [teaching[i] for i in order[at : at + size]]
            metrics["steps"].append(step(policy, policy.optimizer, part, [], job.settings))
            policy.stepped()
    out = Path(job.out_dir)
    out.mkdir(parents=True, exist_ok=True)
    policy.save(out)
    trained = time.monotonic()
    report = gate.judge(job.settings["gate"]) if gate else None
    metrics.update(revise_s=0.0, train_s=trained - began, gate_s=time.monotonic() - trained)
    return UpdateResult(job.update_id, ok=True, metrics=metrics, gate=report)
