"""How fast tokens are decoded on this machine's processor, and how much of a young adapter is in them.

    python -m bench.decode [--model FOLDER] [--threads 1] [--rounds 7] [--steps 12] [--shared] [--quick]

Bare loops of decode steps, no HTTP: a loop over transformers, the engine's torch path, and its native step, each with
and without an adapter, at one and at eight streams with prompts of about 190 tokens. All arms take turns in every round
of one process, since the machine may be shared; ratios are made within a round. The *floor* is the time in which one
thread reads the bytes of all weights once, from the same memory, by a loop that does nothing else. With `--shared` the
thread's own time is counted instead of the clock's: what it waits for others is left out, what they take of the caches
and of the memory is not.

Then adapters after 4 and 16 updates: the slope of their effect on the log-probs against that in fp32
(young_adapters.py).
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from rich.console import Console
from rich.table import Table
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache

from bench.prompts import TRAIN
from bench.server import machine, source
from bench.young_adapters import Decode, kept_effect, train_adapters
from instar.config import models_dir
from instar.engines.embedded.adapters import Adapter
from instar.engines.embedded.kv import StreamCache
from instar.engines.embedded.model import Model, Stream, load_model
from instar.engines.embedded.native.attach import attach
from instar.engines.embedded.native.build import Build

RESULTS = Path(__file__).parent / "results" / "decode.json"
STARTER = "SmolLM2-135M-Instruct"
PROMPT_TOKENS, STREAMS, AGES = 190, (1, 8), (4, 16)
TRANSFORMERS, TORCH, NATIVE = "transformers loop", "torch", "native"
CPU = torch.device("cpu")
Clock = Callable[[], float]


@dataclass(frozen=True)
class Arm:
    """One way to decode. `step(ids)` runs a token of each stream; `rewind` forgets what was decoded."""

    path: str
    has_adapter: bool
    streams: int
    step: Callable[[list[int]], torch.Tensor]
    rewind: Callable[[], None]

    @property
    def name(self) -> str:
        return f"{self.path}{', adapter' if self.has_adapter else ''}"


def transformers_arm(network: Any, has_adapter: bool, prompts: Sequence[list[int]]) -> Arm:
    cache = DynamicCache(config=network.config)
    network(input_ids=torch.tensor(prompts), past_key_values=cache, use_cache=True, logits_to_keep=1)

    def step(ids: list[int]) -> torch.Tensor:
        found = network(input_ids=torch.tensor(ids)[:, None], past_key_values=cache, use_cache=True)
        logits_BV: torch.Tensor = found.logits[:, -1]
        return logits_BV

    def rewind() -> None:
        if more := cache.get_seq_length() - PROMPT_TOKENS:
            cache.crop(-more)

    return Arm(TRANSFORMERS, has_adapter, len(prompts), step, rewind)


def engine_arm(
    path: str, model: Model, decode: Decode, adapter: Adapter | None, prompts: Sequence[list[int]], steps: int
) -> Arm:
    streams = [Stream(StreamCache(model.layout, len(ids) + steps), adapter) for ids in prompts]
    for stream, ids in zip(streams, prompts, strict=True):
        model.prefill(stream, ids)

    def rewind() -> None:
        for stream in streams:
            stream.cache.length = PROMPT_TOKENS

    return Arm(path, adapter is not None, len(prompts), lambda ids: decode(streams, ids), rewind)


def milliseconds_a_step(arm: Arm, steps: int, clock: Clock) -> float:
    """Median of a few greedy steps."""
    arm.rewind()
    ids, taken = [5] * arm.streams, []
    for _ in range(steps):
        start = clock()
        ids = arm.step(ids).argmax(-1).tolist()
        taken.append(1_000 * (clock() - start))
    return statistics.median(taken)


# ── the floor ───────────────────────────────────────────────────────────────────────────────────────────

READER = r"""
#include <cstdint>
#include <cstring>
typedef uint64_t Vec __attribute__((vector_size(64)));
extern "C" uint64_t read_all(const char* at, int64_t bytes) {
  Vec sum[8] = {};
  for (int64_t i = 0; i + 512 <= bytes; i += 512)
    for (int j = 0; j < 8; ++j) { Vec v; std::memcpy(&v, at + i + 64 * j, 64); sum[j] ^= v; }
  uint64_t all = 0;
  for (int j = 0; j < 8; ++j) for (int k = 0; k < 8; ++k) all ^= sum[j][k];
  return all;
}
"""


def reader(model: Model, folder: Path, clock: Clock = time.perf_counter) -> tuple[Callable[[], float], int]:
    """A function that reads all weights of a step once and tells the milliseconds; and how many bytes these are."""
    (folder / "reader.cpp").write_text(READER)
    library = folder / "reader.so"
    compiler = Build().compiler()
    command = [compiler, "-O3", "-march=native", "-shared", "-fPIC", "-w", "-o", str(library)]
    subprocess.run([*command, str(folder / "reader.cpp")], check=True)
    read = ctypes.CDLL(str(library)).read_all
    read.argtypes, read.restype = [ctypes.c_void_p, ctypes.c_int64], ctypes.c_uint64
    blocks = [product.blocks for product in dict.fromkeys(model.products.values()) if product.blocks]
    parts = [(b.address, 2 * -(-b.n // b.block) * b.block * b.k_padded) for b in blocks]

    def milliseconds() -> float:
        start = clock()
        for address, size in parts:
            read(address, size)
        return 1_000 * (clock() - start)

    return milliseconds, sum(size for _, size in parts)


# ── a run ───────────────────────────────────────────────────────────────────────────────────────────────


def token_ids(folder: Path, length: int, count: int) -> list[list[int]]:
    """Texts of everyday questions, cut to one length."""
    tokenizer = AutoTokenizer.from_pretrained(str(folder))
    found = []
    for place in range(count):
        text = " ".join(TRAIN[(place * 7 + i) % len(TRAIN)] for i in range(length))
        found.append(list(tokenizer(text)["input_ids"][:length]))
    return found


@torch.inference_mode()
def measured(folder: Path, adapter_dir: Path, options: argparse.Namespace, work: Path) -> dict[str, Any]:
    """Milliseconds a step of every arm, by round."""
    plain = AutoModelForCausalLM.from_pretrained(str(folder), dtype=torch.bfloat16).eval()
    tuned_base = AutoModelForCausalLM.from_pretrained(str(folder), dtype=torch.bfloat16)
    tuned = PeftModel.from_pretrained(tuned_base, str(adapter_dir)).eval()
    model = load_model(folder, torch.bfloat16, CPU)
    attach(model, "on")
    assert model.native is not None
    adapter = model.load_adapter("young", adapter_dir, 64)
    prompts = token_ids(folder, PROMPT_TOKENS, max(STREAMS))
    arms = []
    for count in STREAMS:
        some = prompts[:count]
        arms += [transformers_arm(plain, False, some), transformers_arm(tuned, True, some)]
        for path, decode in ((TORCH, model.decode_in_torch), (NATIVE, model.native.decode)):
            arms += [engine_arm(path, model, decode, a, some, options.steps) for a in (None, adapter)]
    clock = time.thread_time if options.shared else time.perf_counter
    floor, size = reader(model, work, clock)
    rounds = []
    for number in range(options.rounds + 1):
        row = {f"{arm.name}, {arm.streams}": milliseconds_a_step(arm, options.steps, clock) for arm in arms}
        row["floor"] = statistics.median(floor() for _ in range(3))
        if number:  # the first touches memory and chooses kernels
            rounds.append({name: round(value, 3) for name, value in row.items()})
    facts = {
        "clock": clock.__name__,
        "instructions": model.native.variant.name.lower(),
        "copied_bytes": model.native.copied_bytes,
    }
    return {"weight_bytes": size, **facts, "rounds": rounds}


def summary(rounds: Sequence[dict[str, float]]) -> dict[str, Any]:
    """Medians over rounds; ratios within rounds, of the transformers loop without adapter and of the floor."""
    found = {}
    for name in rounds[0]:
        streams = name.rpartition(", ")[2]
        facts: dict[str, Any] = {"ms": statistics.median(row[name] for row in rounds)}
        if name != "floor":
            loop = f"{TRANSFORMERS}, {streams}"
            facts["tokens_per_s"] = round(1_000 * int(streams) / facts["ms"], 1)
            facts["times_transformers"] = round(statistics.median(r[loop] / r[name] for r in rounds), 2)
            facts["times_floor"] = round(statistics.median(r[name] / r["floor"] for r in rounds), 2)
        found[name] = facts
    return found


def effects(folder: Path, adapters: Sequence[Path], prompt: int, steps: int) -> dict[str, float]:
    """Slopes after 4 and 16 updates, in torch and in the native step."""
    served, truth = load_model(folder, torch.bfloat16, CPU), load_model(folder, torch.float32, CPU)
    attach(served, "on")
    assert served.native is not None
    texts = token_ids(folder, prompt + steps, 8)
    found = {}
    for adapter in adapters:
        for path, decode in ((TORCH, served.decode_in_torch), (NATIVE, served.native.decode)):
            value = kept_effect(served, decode, truth, adapter, texts, prompt)
            found[f"{path}, {adapter.name}"] = round(value, 3)
    return found


def show(figures: dict[str, Any]) -> None:
    table = Table(title=f"decode, {figures['threads']} thread(s), {figures['instructions']}")
    for column in ("arm", "streams", "ms a step", "tokens/s", "× transformers", "× floor"):
        table.add_column(column)
    for name, facts in figures["arms"].items():
        path, _, streams = name.rpartition(", ")
        if name == "floor":
            table.add_row("floor", "", f"{facts['ms']:.1f}", "", "", "1")
        else:
            numbers = [facts[key] for key in ("tokens_per_s", "times_transformers", "times_floor")]
            table.add_row(path, streams, f"{facts['ms']:.1f}", *map(str, numbers))
    console = Console(width=110)
    console.print(table)
    gigabytes = figures["weight_bytes"] / 1e6 / figures["arms"]["floor"]["ms"]
    console.print(f"{figures['weight_bytes'] / 1e6:.0f} MB of weights a step, read at {gigabytes:.1f} GB/s")
    for name, value in figures["effect_kept"].items():
        console.print(f"effect kept, {name}: {value}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", type=Path, default=models_dir() / STARTER)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--shared", action="store_true", help="count the thread's own time; for one thread")
    parser.add_argument("--quick", action="store_true", help="two rounds of three steps, and no effects")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.steps = 2, 3
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work)
        lessons = token_ids(options.model, 64, 4)
        adapters = train_adapters(options.model, folder, lessons, (1,) if options.quick else AGES)
        figures = measured(options.model, adapters[-1], options, folder)
        kept = {} if options.quick else effects(options.model, adapters, 40, 12)
    facts = {"model": options.model.name, "threads": options.threads, "prompt_tokens": PROMPT_TOKENS}
    figures = {**facts, "arms": summary(figures["rounds"]), "effect_kept": kept, **figures}
    figures |= {"machine": machine(), "load": os.getloadavg(), **source()}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(figures, indent=1) + "\n", "utf-8")
    show(figures)


if __name__ == "__main__":
    main()
