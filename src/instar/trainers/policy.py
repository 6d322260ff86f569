"""The model under training: a frozen bf16 base with one fp32 LoRA on all projections.

Rows pass as a tree (packing.py), which computes once what they share, and exactly; gradients flow through all of it.
Where no gradient is needed, long prompts are read once and kept (PrefixCache).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from peft.tuners.lora import LoraLayer
from peft.utils import get_peft_model_state_dict, set_peft_model_state_dict
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn.functional import linear
from torch.utils.checkpoint import checkpoint
from transformers import AutoModelForCausalLM, DynamicCache
from transformers.utils import logging as transformers_logging

from instar.errors import TrainingError
from instar.trainers import attention
from instar.trainers.packing import LEAST_SHARED, Pack, common, pack

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
LONG = 384
"""Prompt tokens beyond which a prompt is read once and kept, instead of with each answer anew."""
PREFILL_CHUNK = 512
PREFIX_ROOM = 2**30
"""Bytes of keys and values of prompts that are kept: 45,000 tokens of the starter model."""
LOGITS_CHUNK = 256
"""Positions whose logits exist at the same time: 256 × 49,152 × 4 bytes = 50 MB."""
TREE_TOLERANCE = 0.05
"""Relative L2 between a row in a tree and alone: bf16 leaves .01, another position ten times that."""
ADAPTER_FILE = "adapter_model.safetensors"
CONFIG_FILE = "adapter_config.json"


def is_long(prompt_tokens: int) -> bool:
    """Whether a prompt of so many tokens is kept."""
    return prompt_tokens > LONG


class PrefixCache:
    """Keys and values of long prompts, as one version reads them.

    Agents send thousands of tokens with every question. Where no gradient is needed – sampling, the teacher, the policy
    before the first step – they are read once and shared by all answers to them.

    A prompt is read in chunks, and whole chunks are taken from a prompt that begins alike. So what is handed out
    depends on the prompt and the version alone, not on what was read before.
    """

    def __init__(self, policy: Policy, room: int = PREFIX_ROOM) -> None:
        """`room`: bytes that may be held; those used last stay."""
        self._policy = policy
        self._room = room
        self._held: dict[tuple[int, ...], DynamicCache] = {}
        self._pinned: dict[tuple[int, ...], DynamicCache] | None = None
        self._version = ""

    def hold_for(self, version: str) -> None:
        """Forget what another version has read."""
        if version != self._version:
            self._held.clear()
            self._version = version

    def get(self, ids: Sequence[int], length: int | None = None) -> DynamicCache:
        """A cache of the first `length` of these ids (by default all), which may be extended by the caller."""
        handed = DynamicCache()
        for number, layer in enumerate(self.read(ids).layers):
            handed.update(layer.keys[:, :, :length], layer.values[:, :, :length], number)
        return handed

    def read(self, ids: Sequence[int]) -> DynamicCache:
        """The cache that is held, read now if need be. Not to be extended."""
        key = tuple(ids)
        if self._pinned is not None:
            pinned = self._pinned.get(key)
            return self._policy.prefill(key, DynamicCache()) if pinned is None else pinned
        found = self._held.pop(key, None)
        self._held[key] = found if found is not None else self._compute(key)
        while len(self._held) > 1 and sum(map(_bytes, self._held.values())) > self._room:
            del self._held[next(iter(self._held))]
        return self._held[key]

    @contextmanager
    def pinned(self, prompts: Iterable[Sequence[int]]) -> Iterator[None]:
        """While the weights change: these stay as they are read now, the first of them that there is room for.

        Any other prompt is read anew each time and not kept: it would be under weights that are no version's. So what
        is handed out depends on `prompts` alone here too.
        """
        pinned, room = dict[tuple[int, ...], DynamicCache](), self._room
        for key in dict.fromkeys(map(tuple, prompts)):
            cache = self.read(key)
            room -= _bytes(cache)
            if room < 0:
                break
            pinned[key] = cache
        self._pinned = pinned
        try:
            yield
        finally:
            self._pinned = None

    def _compute(self, ids: tuple[int, ...]) -> DynamicCache:
        grown, shared, nearest = DynamicCache(), 0, DynamicCache()
        for held, cache in self._held.items():
            whole = common(held, ids) // PREFILL_CHUNK * PREFILL_CHUNK
            if whole > shared:
                shared, nearest = whole, cache
        for number, layer in enumerate(nearest.layers):
            grown.update(layer.keys[:, :, :shared], layer.values[:, :, :shared], number)
        return self._policy.prefill(ids[shared:], grown)


def _bytes(cache: DynamicCache) -> int:
    return sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)


class Policy:
    """One base model, read once, and the adapter that stands on it now."""

    def __init__(
        self, model_dir: Path, *, rank: int, alpha: int, dtype: torch.dtype = torch.bfloat16
    ) -> None:
        """`dtype`: of the base model and of what it computes."""
        transformers_logging.disable_progress_bar()
        self.model_dir = model_dir
        self.rank, self.alpha, self.dtype = rank, alpha, dtype
        base = AutoModelForCausalLM.from_pretrained(model_dir, dtype=dtype, local_files_only=True)
        base.requires_grad_(False)
        base.set_attn_implementation(attention.NAME)
        config = LoraConfig(
            r=rank,
            lora_alpha=alpha,
            target_modules=list(PROJECTIONS),
            bias="none",
            task_type="CAUSAL_LM",
            base_model_name_or_path="base",
        )
        self.peft: Any = get_peft_model(base, config)  # fp32 adapter on a bf16 base: peft's default
        for module in self.peft.modules():
            if hasattr(module, "cast_input_dtype_enabled"):
                module.cast_input_dtype_enabled = (
                    False  # autocast casts the small matrices, not the activations
                )
        self.body: Any = self.peft.base_model.model.model
        self.head: Any = self.peft.base_model.model.lm_head
        self.peft.eval()
        self.packs = self._reads_trees()

    @property
    def parameters(self) -> list[torch.nn.Parameter]:
        """The adapter's matrices in a fixed order."""
        return [p for _, p in self.named_parameters()]

    def named_parameters(self) -> list[tuple[str, torch.nn.Parameter]]:
        return sorted((n, p) for n, p in self.peft.named_parameters() if p.requires_grad)

    # ── the adapter ───────────────────────────────────────────────────────────────────────────────────
    def reset(self, seed: int) -> None:
        """A fresh adapter: A as peft draws it (Kaiming), B zero, so the policy equals base."""
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                if "lora_A" in name:
                    bound = (1.0 / parameter.shape[1]) ** 0.5
                    parameter.copy_(torch.rand(parameter.shape, generator=generator) * 2 * bound - bound)
                else:
                    parameter.zero_()

    def load(self, folder: Path) -> None:
        """Take over the adapter of a version. Raises TrainingError if it does not fit."""
        try:
            shape = json.loads((folder / CONFIG_FILE).read_text("utf-8"))
            tensors = load_file(folder / ADAPTER_FILE)
        except (OSError, ValueError, SafetensorError) as error:
            raise TrainingError(f"the parent's adapter in {folder} cannot be read: {error}") from error
        if (shape.get("r"), shape.get("lora_alpha")) != (self.rank, self.alpha):
            raise TrainingError(
                f"the parent's adapter has rank {shape.get('r')}, alpha {shape.get('lora_alpha')}"
            )
        report = set_peft_model_state_dict(self.peft, tensors)
        missing = [k for k in report.missing_keys if "lora_" in k]
        if missing or report.unexpected_keys:
            raise TrainingError(f"the parent's adapter does not fit the model: {missing[:3]}")

    def save(self, folder: Path) -> None:
        """Write the adapter in PEFT's format, fp32, with bytes that depend on the values alone."""
        tensors = {
            name: tensor.detach().float().contiguous()
            for name, tensor in sorted(get_peft_model_state_dict(self.peft).items())
        }
        save_file(tensors, folder / ADAPTER_FILE, metadata={"format": "pt"})
        config = {
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "base_model_name_or_path": None,
            "r": self.rank,
            "lora_alpha": self.alpha,
            "lora_dropout": 0.0,
            "bias": "none",
            "fan_in_fan_out": False,
            "inference_mode": True,
            "target_modules": list(PROJECTIONS),
        }
        (folder / CONFIG_FILE).write_text(json.dumps(config, indent=1), "utf-8")

    @contextmanager
    def as_base(self) -> Iterator[None]:
        """The untouched model, while the block runs."""
        with self.peft.disable_adapter():
            yield

    @contextmanager
    def for_sampling(self) -> Iterator[None]:
        """Lean projections while the block runs: weights packed once, the adapter cast once. No gradients.

        A decode step is hundreds of tiny products, so what surrounds them costs more than they do.
        """
        layers = [m for m in self.peft.modules() if isinstance(m, LoraLayer)]
        for layer in layers:
            layer.forward = _lean(layer)
        try:
            yield
        finally:
            for layer in layers:
                del layer.forward

    # ── forward passes ────────────────────────────────────────────────────────────────────────────────
    def hidden_ND(
        self,
        rows: Sequence[Sequence[int]],
        starts: Sequence[int],
        prefixes: PrefixCache | None = None,
        *,
        recompute: bool = False,
        window: int = 0,
    ) -> Tensor:
        """Final hidden states of the positions that predict tokens `starts[i]:` of each row, end to end.

        N = Σ (len(row) − start). The last position of a row predicts nothing that is known and is left out.
        With `prefixes`, in passes without gradients, rows with a long prompt pass one by one behind what is kept of it;
        with a `window`, in passes with gradients too, which then flow through so many of its last tokens alone.
        `recompute` keeps the input of each layer alone and computes the rest again for its gradient.
        """
        kept = prefixes is not None and (window > 0 or not torch.is_grad_enabled())
        long = [i for i, s in enumerate(starts) if kept and is_long(s)]
        short = [i for i in range(len(rows)) if i not in long]
        found: dict[int, Tensor] = {}
        if short:
            together = self._as_tree if self.packs else self._padded
            with self._recomputing(recompute):
                parts = together([rows[i] for i in short], [starts[i] for i in short])
            found.update(zip(short, parts, strict=True))
        for i in long:
            assert prefixes is not None
            found[i] = self._after_prefix(rows[i], starts[i], prefixes, window)
        return torch.cat([found[i] for i in range(len(rows))])

    def _as_tree(self, rows: Sequence[Sequence[int]], starts: Sequence[int]) -> list[Tensor]:
        tree = pack([row[:-1] for row in rows])
        hidden_ND = self._forward(torch.as_tensor([tree.ids]), tree=tree)[0]
        return [hidden_ND[torch.as_tensor(tree.places(i, start - 1))] for i, start in enumerate(starts)]

    def _padded(self, rows: Sequence[Sequence[int]], starts: Sequence[int]) -> list[Tensor]:
        """For models that do not read trees. Padding stands on the right, where no token sees it."""
        longest = max(map(len, rows))
        ids_BT = torch.zeros((len(rows), longest), dtype=torch.long)
        for i, row in enumerate(rows):
            ids_BT[i, : len(row)] = torch.as_tensor(row)
        hidden_BTD = self._forward(ids_BT)
        return [hidden_BTD[i, s - 1 : len(r) - 1] for i, (r, s) in enumerate(zip(rows, starts, strict=True))]

    def _after_prefix(self, row: Sequence[int], start: int, prefixes: PrefixCache, window: int) -> Tensor:
        cut = max(0, start - window) if torch.is_grad_enabled() else start - 1
        past = prefixes.get(row[: start - 1], cut)
        hidden_BTD = self._forward(torch.as_tensor([list(row[cut:-1])]), past=past)
        return hidden_BTD[0, start - 1 - cut :]

    def _forward(
        self, ids_BT: Tensor, *, past: DynamicCache | None = None, tree: Pack | None = None
    ) -> Tensor:
        given: dict[str, Any] = {"input_ids": ids_BT, "past_key_values": past, "use_cache": past is not None}
        if tree is not None:
            given["position_ids"] = torch.as_tensor([tree.positions])
            given["segments"] = tree.segments
            given["attention_mask"] = torch.ones((1, 1, 1, 1), dtype=torch.bool)  # so that none is made
        with torch.autocast("cpu", torch.bfloat16, enabled=self.dtype is torch.bfloat16):
            hidden_BTD: Tensor = self.body(**given).last_hidden_state
        return hidden_BTD

    @contextmanager
    def _recomputing(self, wanted: bool) -> Iterator[None]:
        """Gradient checkpointing (Chen et al., 2016), a layer at a time."""
        layers = self.body.layers if wanted and torch.is_grad_enabled() else []
        for layer in layers:
            layer.forward = partial(checkpoint, layer.forward, use_reentrant=False, preserve_rng_state=False)
        try:
            yield
        finally:
            for layer in layers:
                del layer.forward

    @torch.no_grad()
    def _reads_trees(self) -> bool:
        """Whether the model hands positions and segments to its attention, and mixes tokens nowhere else."""
        shared = [1 + i % 7 for i in range(LEAST_SHARED + 8)]
        rows = [[*shared, 1, 2, 3, 4], [*shared, 4, 3, 2, 1]]
        starts = [len(shared)] * 2
        try:
            tree = torch.cat(self._as_tree(rows, starts)).float()
        except (TypeError, ValueError, RuntimeError):  # it was handed what it does not know
            return False
        plain = torch.cat(self._padded(rows, starts)).float()
        return bool((tree - plain).norm() <= TREE_TOLERANCE * plain.norm())

    @torch.no_grad()
    def prefill(self, ids: Sequence[int], past: DynamicCache) -> DynamicCache:
        """Extend a cache by `ids`, in chunks that bound the memory, without gradients."""
        for at in range(0, len(ids), PREFILL_CHUNK):
            self._forward(torch.as_tensor([list(ids[at : at + PREFILL_CHUNK])]), past=past)
        return past

    @torch.no_grad()
    def answers_logp(self, last: int, answers: Sequence[Sequence[int]], past: DynamicCache) -> list[Tensor]:
        """Log-probs of the tokens of each answer, shape (T,), after a prompt that ends with `last`.

        `past` holds the prompt without `last`, once for each answer, and is used up.
        """
        ids_BT = torch.zeros((len(answers), 1 + max(map(len, answers))), dtype=torch.long)
        ids_BT[:, 0] = last
        for row, answer in enumerate(answers):
            ids_BT[row, 1 : 1 + len(answer)] = torch.as_tensor(list(answer))
        hidden_BTD = self._forward(ids_BT, past=past)
        return [self.logp_of(hidden_BTD[row, : len(a)], a) for row, a in enumerate(answers)]

    def logp_NV(self, hidden_ND: Tensor) -> Tensor:
        """Log-probs over the vocabulary, fp32."""
        return torch.log_softmax(self.head(hidden_ND.to(self.dtype)).float(), -1)

    def logp_of(self, hidden_TD: Tensor, ids: Sequence[int]) -> Tensor:
        """Log-probs of these tokens at the positions that predict them, shape (T,)."""
        token_T = torch.as_tensor(list(ids))
        found = [
            self.logp_NV(hidden_TD[at : at + LOGITS_CHUNK]).gather(-1, token_T[at : at + LOGITS_CHUNK, None])[
                :, 0
            ]
            for at in range(0, len(token_T), LOGITS_CHUNK)
        ]
        return torch.cat(found) if found else torch.empty(0)


def _lean(layer: Any) -> Callable[[Tensor], Tensor]:
    """A projection with its adapter as four calls and nothing else: x·W + (x·A)·(B·alpha/r)."""
    base = layer.get_base_layer()
    weight, bias = base.weight.detach(), base.bias
    packs = torch.backends.mkldnn.is_available() and weight.dtype is torch.bfloat16  # type: ignore[no-untyped-call]
    packed = torch.ops.mkldnn._reorder_linear_weight(weight) if packs else None
    a_RI = layer.lora_A["default"].weight.detach().to(weight.dtype)
    b_OR = (layer.lora_B["default"].weight.detach() * layer.scaling["default"]).to(weight.dtype)
    is_base = layer.disable_adapters

    def forward(x: Tensor) -> Tensor:
        if packed is not None:
            y: Tensor = torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")
        else:
            y = linear(x, weight, bias)
        return y if is_base else y + linear(linear(x, a_RI), b_OR)

    return forward
