"""How much of a young adapter's effect reaches the logits that are served.

An adapter changes little after a few updates, and arithmetic that rounds at the wrong place loses that. Effect:
log-probs under the adapter minus those under base, of every token at every step of some texts. What is told is the
slope of the served effect against that in fp32, by least squares: 1 is all of it, whatever noise lies around it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM

from instar.config import TrainSettings
from instar.engines.embedded.adapters import Adapter
from instar.engines.embedded.kv import StreamCache
from instar.engines.embedded.model import Model, Stream

PROJECTIONS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
Decode = Callable[[Sequence[Stream], Sequence[int]], Tensor]


def train_adapters(
    model_dir: Path, to: Path, lessons: Sequence[list[int]], ages: Sequence[int]
) -> list[Path]:
    """Adapters after so many updates on sequences of equal length, with the trainer's rank, scale and rate."""
    settings = TrainSettings()  # type: ignore[call-arg]
    torch.manual_seed(0)
    network = AutoModelForCausalLM.from_pretrained(str(model_dir), dtype=torch.float32)
    config = LoraConfig(r=settings.rank, lora_alpha=settings.alpha, target_modules=PROJECTIONS)
    tuned = get_peft_model(network, config)
    optimizer = torch.optim.AdamW([p for p in tuned.parameters() if p.requires_grad], lr=settings.lr)
    ids_BT = torch.tensor(list(lessons))
    folders = []
    for age in range(1, max(ages) + 1):
        with torch.enable_grad():
            logits_BTV = tuned(ids_BT).logits
            loss = cross_entropy(logits_BTV[:, :-1].flatten(0, 1).float(), ids_BT[:, 1:].flatten())
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if age in ages:
            folders.append(to / f"after-{age}")
            tuned.save_pretrained(str(folders[-1]))
    return folders


@torch.inference_mode()
def step_logprobs(
    model: Model, decode: Decode, adapter: Adapter | None, texts: Sequence[list[int]], prompt: int
) -> Tensor:
    """Of every token after each position from `prompt` on, in decode steps of all texts: (steps · B, V)."""
    streams = [Stream(StreamCache(model.layout, len(ids)), adapter) for ids in texts]
    for stream, ids in zip(streams, texts, strict=True):
        model.prefill(stream, ids[:prompt])
    steps = range(prompt, min(map(len, texts)))
    found = [decode(streams, [ids[at] for ids in texts]).float().log_softmax(-1) for at in steps]
    return torch.cat(found)


def slope(effect: Tensor, wanted: Tensor) -> float:
    """Least squares through zero."""
    return float((effect.double() * wanted.double()).sum() / wanted.double().square().sum())


def kept_effect(
    served: Model, decode: Decode, truth: Model, folder: Path, texts: Sequence[list[int]], prompt: int
) -> float:
    """The slope of `decode`'s effect in bf16 against that of `truth`, which is in fp32."""
    effects = []
    for model, steps in ((served, decode), (truth, truth.decode_in_torch)):
        adapter = model.load_adapter("young", folder, 64)
        base = step_logprobs(model, steps, None, texts, prompt)
        effects.append(step_logprobs(model, steps, adapter, texts, prompt) - base)
    return slope(*effects)
