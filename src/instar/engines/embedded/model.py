"""A Hugging Face causal LM made ready to serve: any that uses transformers' cache and attention interfaces."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from instar.engines.embedded import kv
from instar.engines.embedded.adapters import Adapter, load_adapter
from instar.engines.embedded.lean import Lean, is_lean
from instar.engines.embedded.linear import Product, RowGroup, Rows, serve_linears
from instar.errors import ModelError

if TYPE_CHECKING:
    from instar.engines.embedded.native.step import NativeStep

_PROBE_LENGTH = 24
_SPLIT = 15
_TOLERANCE = 0.15


@dataclass(slots=True, eq=False)
class Stream:
    """What a pass needs of one answer being sampled: its memory and its version (None: base)."""

    cache: kv.StreamCache
    adapter: Adapter | None


@dataclass(slots=True)
class Model:
    """The loaded model. All passes run in one thread at a time."""

    network: Any
    layout: kv.Layout
    vocab_size: int
    device: torch.device
    products: dict[str, Product]
    rows: Rows
    _cache_name: str = "past_key_values"
    lean: Lean | None = None
    native: NativeStep | None = None

    def load_adapter(self, name: str, folder: Path, max_rank: int) -> Adapter:
        """Raises RequestError (400). Safe beside passes under way."""
        adapter = load_adapter(name, folder, max_rank, self.products, self.device)
        if self.native is not None:
            self.native.prepare(adapter)
        return adapter

    @torch.inference_mode()
    def prefill(self, stream: Stream, ids: Sequence[int], *, all_logits: bool = False) -> Tensor:
        """Run the next tokens of one prompt. Logits (1, V) after the last of them, or (T, V) after each."""
        ids_1T = torch.tensor([list(ids)], device=self.device)
        if self.lean is not None:
            self.rows.groups = _groups([stream], len(ids))
            return self.lean.prefill(stream.cache, ids_1T[0], all_rows=all_logits)
        logits_1TV = self._pass([stream], ids_1T, 0 if all_logits else 1)
        return logits_1TV[0]

    @torch.inference_mode()
    def decode(self, streams: Sequence[Stream], last_ids: Sequence[int]) -> Tensor:
        """Run one token of each stream, streams of one version side by side. Logits (B, V)."""
        if self.native is not None:
            return self.native.decode(streams, last_ids)
        return self.decode_in_torch(streams, last_ids)

    @torch.inference_mode()
    def decode_in_torch(self, streams: Sequence[Stream], last_ids: Sequence[int]) -> Tensor:
        """`decode` by the path that every machine has, the reference of the native one."""
        ids_B1 = torch.tensor(list(last_ids), device=self.device)[:, None]
        if self.lean is not None:
            self.rows.groups = _groups(streams, 1)
            return self.lean.decode([stream.cache for stream in streams], ids_B1[:, 0])
        return self._pass(streams, ids_B1, 1)[:, 0]

    def _pass(self, streams: Sequence[Stream], ids_BT: Tensor, keep: int) -> Tensor:
        steps = ids_BT.shape[1]
        batch = kv.Batch([stream.cache for stream in streams], steps)
        starts = torch.tensor([stream.cache.length for stream in streams], device=self.device)
        positions_BT = starts[:, None] + torch.arange(steps, device=self.device)
        self.rows.groups = _groups(streams, steps)
        kv.running(batch)
        try:
            logits: Tensor = self.network(
                input_ids=ids_BT,
                position_ids=positions_BT,
                attention_mask=ids_BT[:, None, None, :],  # four dimensions: taken as it is, and never read
                use_cache=True,
                logits_to_keep=keep,
                **{self._cache_name: batch},
            ).logits
        finally:
            kv.running(None)
        batch.advance()
        return logits


def _groups(streams: Sequence[Stream], steps: int) -> list[RowGroup]:
    """Neighbours of one version make a group; no groups at all where every row is the base's."""
    if all(stream.adapter is None for stream in streams):
        return []
    groups: list[RowGroup] = []
    current: Adapter | None = None
    for place, stream in enumerate(streams):
        if groups and stream.adapter is current:
            groups[-1] = RowGroup(groups[-1].start, (place + 1) * steps, groups[-1].terms)
            continue
        current = stream.adapter
        terms = {} if current is None else current.terms
        groups.append(RowGroup(place * steps, (place + 1) * steps, terms))
    return groups


# ── loading ─────────────────────────────────────────────────────────────────────────────────────────────


def load_model(folder: Path, dtype: torch.dtype, device: torch.device, max_length: int = 8_192) -> Model:
    """Load, check against transformers' own forward pass, and get ready. Raises ModelError.

    `max_length` is the longest context that will be served, in tokens.
    """
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        config = AutoConfig.from_pretrained(str(folder), local_files_only=True)
        network = AutoModelForCausalLM.from_pretrained(
            str(folder), config=config, dtype=dtype, local_files_only=True, use_safetensors=True
        )
    except (OSError, ValueError, KeyError, RuntimeError, ImportError, TypeError, AttributeError) as error:
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise ModelError(
            f"The model in {folder} cannot be loaded: {reason[0]} Check that its files are whole, and that the "
            "installed transformers knows it."
        ) from error
    network = network.to(device).eval()
    return _made_ready(folder, network, device, max_length)


@torch.inference_mode()
def _made_ready(folder: Path, network: Any, device: torch.device, max_length: int) -> Model:
    vocab_size = int(network.get_input_embeddings().weight.shape[0])
    # ids from all over the vocabulary: the first ones are often special tokens, with which bf16 is at its worst
    probe = (torch.arange(1, _PROBE_LENGTH + 1, device=device)[None] * 7_919) % vocab_size
    parameters = inspect.signature(type(network).forward).parameters
    cache_name = "cache" if "cache" in parameters else "past_key_values"
    try:
        reference = network(input_ids=probe, use_cache=True)
        layout = _layout(getattr(reference, cache_name), network.dtype, device)
        network.set_attn_implementation(kv.ATTENTION)
        rows = Rows()
        products = serve_linears(network, rows)
        model = Model(network, layout, vocab_size, device, products, rows, cache_name)
        wanted = reference.logits[0].float()
        if is_lean(network, products, layout):
            model.lean = Lean(network, products, layout, max(max_length, _PROBE_LENGTH))
            if _difference(model, probe[0].tolist(), wanted) <= _TOLERANCE:
                return model
            model.lean = None
        off = _difference(model, probe[0].tolist(), wanted)
    except (TypeError, ValueError, NotImplementedError, AttributeError, IndexError, RuntimeError) as error:
        raise ModelError(
            f"The model in {folder} ({type(network).__name__}) does not fit the embedded engine: {error}. "
            "Serve it with vLLM instead (engine.kind = vllm)."
        ) from error
    if not off <= _TOLERANCE:
        raise ModelError(
            f"The model in {folder} gives other results in the embedded engine than in transformers (off by "
            f"{off:.2f} standard deviations). Serve it with vLLM instead (engine.kind = vllm)."
        )
    return model


def _layout(cache: Any, dtype: torch.dtype, device: torch.device) -> kv.Layout:
    layers = tuple(
        (int(layer.keys.shape[1]), int(layer.keys.shape[3]), int(layer.values.shape[3]))
        for layer in cache.layers
    )
    return kv.Layout(layers, dtype, device)


def _difference(model: Model, ids: list[int], wanted_TV: Tensor) -> float:
    """Mean distance of our pass, made in pieces, from transformers' at once, in standard deviations of logits.

    Rounding makes 0.01 to 0.05 in bf16; attention of another kind than ours makes far more than the tolerance,
    and is found here before it serves a wrong answer.
    """
    stream = Stream(kv.StreamCache(model.layout, len(ids)), None)
    found = [model.prefill(stream, ids[:_SPLIT], all_logits=True)]
    found += [model.decode([stream], [token_id]) for token_id in ids[_SPLIT:]]
    distance = (torch.cat(found).float() - wanted_TV).abs().mean()
    return float(distance / wanted_TV.std().clamp_min(1e-6))
