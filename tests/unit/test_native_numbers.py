"""The native step's numbers: against fp32, against the torch path, and each row against itself alone.

Every kind of model with every set of instructions that this machine has.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from bench.young_adapters import Decode, slope
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from instar.engines.embedded import linear
from instar.engines.embedded.adapters import Adapter
from instar.engines.embedded.kv import StreamCache
from instar.engines.embedded.model import Model, Stream, load_model
from instar.engines.embedded.native.abi import Library, Variant
from instar.engines.embedded.native.check import random_term
from instar.engines.embedded.native.step import NativeStep
from tests.kit.native import needs_compiler, plain_library, real_library
from tests.kit.tiny_model import LLAMA3_ROPE

pytestmark = needs_compiler
CPU = torch.device("cpu")
CONTEXT = 600
NEAR = 0.025
"""Mean distance from fp32 in standard deviations of the logits: what bf16 does to keys, values and inputs of products.
A row here and there is several times as far, in torch too. One that is wrong is further than 0.5."""
SIZES: dict[str, Any] = {
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
    "pad_token_id": 0,
    "eos_token_id": 2,
}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama, rope scaled": ("llama", {"rope_parameters": LLAMA3_ROPE}),
    "llama, biases everywhere": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama, odd sizes": ("llama", {"hidden_size": 40, "intermediate_size": 52, "vocab_size": 131}),
    "llama, a key head each": ("llama", {"num_key_value_heads": 4}),
    "llama, nine heads": ("llama", {"num_attention_heads": 9, "num_key_value_heads": 3, "hidden_size": 216}),
    "llama, one key head": (
        "llama",
        {"num_attention_heads": 7, "num_key_value_heads": 1, "hidden_size": 112},
    ),
    "mistral": ("mistral", {"sliding_window": None, "head_dim": 32}),
    "qwen2": ("qwen2", {"tie_word_embeddings": True}),
    "qwen3": ("qwen3", {"head_dim": 32}),
}


def write_model(folder: Path, name: str) -> Path:
    """Random weights, exactly bf16; norms and biases random too, or leaving them out would not be seen."""
    kind, changes = MODELS[name]
    torch.manual_seed(0)
    network = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **{**SIZES, **changes}))
    for path, parameter in network.named_parameters():
        if "norm" in path:
            parameter.data.uniform_(0.5, 1.5)
        elif path.endswith("bias"):
            parameter.data.normal_(0, 0.3)
        else:
            parameter.data.mul_(8)
    network.to(torch.bfloat16).save_pretrained(folder)
    return folder


@dataclass
class Case:
    """One model three times: native and torch in bf16, and the truth in fp32."""

    model: Model
    truth: Model

    def native(self, variant: Variant, threads: int = 1, library: Library | None = None) -> NativeStep:
        assert self.model.lean is not None
        return NativeStep(self.model.lean, library or machine(), variant, threads)


def machine() -> Library:
    return Library(real_library())


VARIANTS = list(Variant)


@pytest.fixture(params=VARIANTS, ids=lambda variant: variant.name.lower())
def variant(request: pytest.FixtureRequest) -> Variant:
    found: Variant = request.param
    if found not in machine().variants:
        pytest.skip(f"this machine has no {found.name}")
    return found


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Case]:
    return {}


def case_of(name: str, cases: dict[str, Case], folder: Path) -> Case:
    if name not in cases:
        written = write_model(folder / "model", name)
        cases[name] = Case(*(load_model(written, t, CPU, CONTEXT) for t in (torch.bfloat16, torch.float32)))
    return cases[name]


@pytest.fixture
def llama(cases: dict[str, Case], tmp_path: Path) -> Case:
    return case_of("llama", cases, tmp_path)


@pytest.fixture(params=MODELS)
def case(request: pytest.FixtureRequest, cases: dict[str, Case], tmp_path: Path) -> Case:
    return case_of(request.param, cases, tmp_path)


def adapter_of(
    model: Model, seed: int, *, scale: float = 0.2, rank: int = 4, only: Sequence[str] = ()
) -> Adapter:
    """Random matrices; `only`: for the layers whose path ends in one of these."""
    source = torch.Generator().manual_seed(seed)
    terms = {}
    for product in {product.name: product for product in model.products.values()}.values():
        wanted = [s for path, s in product.slices.items() if not only or path.endswith(tuple(only))]
        if wanted:
            terms[product.name] = random_term(product, wanted, source, scale, rank)
    return Adapter(f"v{seed}", Path(), terms)


def prefilled(model: Model, lengths: Sequence[int], adapters: Sequence[Adapter | None]) -> list[Stream]:
    streams = []
    for place, (length, adapter) in enumerate(zip(lengths, adapters, strict=True)):
        stream = Stream(StreamCache(model.layout, length + 8), adapter)
        model.prefill(stream, ids_of(model, place, length))
        streams.append(stream)
    return streams


def ids_of(model: Model, start: int, count: int) -> list[int]:
    return [(31 * start + 7 * i) % (model.vocab_size - 3) + 3 for i in range(count)]


def copies(model: Model, streams: Sequence[Stream]) -> list[Stream]:
    found = []
    for stream in streams:
        cache = StreamCache(model.layout, stream.cache.capacity)
        cache.copy_from(stream.cache, stream.cache.length)
        found.append(Stream(cache, stream.adapter))
    return found


def off_by(found_BV: Tensor, wanted_BV: Tensor) -> float:
    """Mean distance in standard deviations of what is wanted; of the worst row."""
    return float(distances(found_BV, wanted_BV).max())


def distances(found_BV: Tensor, wanted_BV: Tensor) -> Tensor:
    """By row: (B,)."""
    return (found_BV.float() - wanted_BV.float()).abs().mean(-1) / wanted_BV.float().std(-1)


@dataclass(frozen=True)
class Distances:
    """By row and step: native from torch, native from fp32, torch from fp32."""

    from_torch: Tensor
    from_truth: Tensor
    torch_from_truth: Tensor


def three_ways(
    case: Case, native: NativeStep, lengths: Sequence[int], adapters: Sequence[Adapter | None], steps: int = 3
) -> Distances:
    mine = prefilled(case.model, lengths, adapters)
    torchs = copies(case.model, mine)
    truths = prefilled(case.truth, lengths, adapters)
    found: list[tuple[Tensor, Tensor, Tensor]] = []
    for step in range(steps):
        last = ids_of(case.model, 50 + step, len(lengths))
        native_BV = native.decode(mine, last)
        torch_BV = case.model.decode_in_torch(torchs, last)
        truth_BV = case.truth.decode_in_torch(truths, last)
        pairs = [(native_BV, torch_BV), (native_BV, truth_BV), (torch_BV, truth_BV)]
        found.append(tuple(distances(*pair) for pair in pairs))  # type: ignore[arg-type]
    return Distances(*(torch.cat(parts) for parts in zip(*found, strict=True)))


def far(case: Case, native: NativeStep, lengths: Sequence[int], adapters: Sequence[Adapter | None]) -> float:
    """Native from fp32; a single row that is wrong would show."""
    found = three_ways(case, native, lengths, adapters).from_truth
    return max(float(found.mean()), float(found.max()) / 6)


# ── whole steps ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("adapters", ["base", "versions"])
def test_step_is_as_near_to_fp32_as_torch_is(case: Case, variant: Variant, adapters: str) -> None:
    v1, v2 = adapter_of(case.model, 1), adapter_of(case.model, 2, rank=19)
    rows = [None] * 4 if adapters == "base" else [v1, None, v2, v2]
    found = three_ways(case, case.native(variant), (11, 4, 20, 7), rows, steps=6)
    assert found.from_torch.max() < 0.1
    assert found.from_truth.max() < 6 * NEAR
    assert found.from_truth.mean() < min(NEAR, 1.2 * found.torch_from_truth.mean())


@pytest.mark.parametrize("count", range(1, 10))
def test_batches_of_all_sizes(llama: Case, variant: Variant, count: int) -> None:
    v1 = adapter_of(llama.model, 1)
    rows = [v1 if place % 3 else None for place in range(count)]
    lengths = [3 + 5 * place for place in range(count)]
    assert far(llama, llama.native(variant), lengths, rows) < NEAR


@pytest.mark.parametrize("length", [126, 127, 128, 129, 255, 300, 520])
def test_long_contexts(llama: Case, variant: Variant, length: int) -> None:
    """Keys are read 128 at a time, and weighed against the largest score so far."""
    assert far(llama, llama.native(variant), (length, 5), (None, None)) < NEAR


def test_row_is_the_same_to_the_last_bit_alone_and_in_company(llama: Case, variant: Variant) -> None:
    """So an answer does not depend on who else is served, and threads change nothing."""
    v1, v2 = adapter_of(llama.model, 1), adapter_of(llama.model, 2, only=("v_proj", "gate_proj"))
    versions = [v1, v1, None, v2, None, v2, v1, None, None] * 4
    lengths = [3 + place * 4 for place in range(len(versions))]
    streams = prefilled(llama.model, lengths, versions)
    last = ids_of(llama.model, 9, len(streams))
    alone, pair = llama.native(variant), llama.native(variant, threads=2)
    together = alone.decode(copies(llama.model, streams), last)
    assert torch.equal(pair.decode(copies(llama.model, streams), last), together)
    for place in range(0, len(streams), 5):
        single = alone.decode(copies(llama.model, streams[place : place + 1]), last[place : place + 1])
        assert torch.equal(single[0], together[place])


def test_many_steps_write_what_later_ones_read(llama: Case, variant: Variant) -> None:
    """Twenty tokens one by one, the last logits against a prefill of all of them."""
    ids = ids_of(llama.model, 3, 30)
    native = llama.native(variant)
    stream = prefilled(llama.model, [1], [None])[0]
    stream.cache = StreamCache(llama.model.layout, 40)
    llama.model.prefill(stream, ids[:10])
    for token_id in ids[10:]:
        found = native.decode([stream], [token_id])
    assert stream.cache.length == 30
    truth = Stream(StreamCache(llama.truth.layout, 40), None)
    assert off_by(found, llama.truth.prefill(truth, ids)) < 6 * NEAR


@pytest.mark.parametrize("only", [("q_proj",), ("k_proj", "up_proj"), ("down_proj",), ("lm_head",)])
def test_adapter_of_a_few_layers(llama: Case, variant: Variant, only: tuple[str, ...]) -> None:
    v1 = adapter_of(llama.model, 1, only=only, scale=1.0)
    native = llama.native(variant)
    assert far(llama, native, (11, 4, 20), (v1, None, v1)) < NEAR
    streams = prefilled(llama.model, (11, 11), (None, None))
    streams[1].adapter = v1
    found = native.decode(streams, [5, 5])
    assert off_by(found[1:], found[:1]) > 0.1, "the adapter must be seen"


def test_adapter_goes_with_its_last_holder(llama: Case) -> None:
    native = llama.native(Variant.PORTABLE)
    adapter = adapter_of(llama.model, 1)
    native.prepare(adapter)
    assert len(native._adapters) == 1
    del adapter
    assert len(native._adapters) == 0


def test_adapter_that_overflows_spoils_its_own_rows_only(llama: Case, variant: Variant) -> None:
    wild = adapter_of(llama.model, 1, scale=1e30)
    streams = prefilled(llama.model, (5, 6, 7), (None, None, None))
    native = llama.native(variant)
    sound = native.decode(copies(llama.model, streams), [4, 5, 6])
    streams[1].adapter = wild
    found = native.decode(streams, [4, 5, 6])
    assert torch.equal(found[0], sound[0])
    assert torch.equal(found[2], sound[2])
    assert not bool(torch.logsumexp(found[1], -1).isfinite())


def test_what_is_out_of_range_touches_no_memory(llama: Case) -> None:
    native = llama.native(Variant.PORTABLE)
    stream = prefilled(llama.model, [5], [None])[0]
    for token_id in (-1, llama.model.vocab_size):
        with pytest.raises(IndexError):
            native.decode([stream], [token_id])
    stream.cache.length = stream.cache.capacity
    with pytest.raises(IndexError):
        native.decode([stream], [5])


@pytest.mark.parametrize("name", ["llama", "llama, odd sizes", "qwen2"])
def test_weights_row_by_row(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where oneDNN has no kernels for bf16, torch keeps weights as they came, and so are they read."""
    monkeypatch.setattr(linear, "_pack", lambda weight: None)
    case = case_of(name, {}, tmp_path)
    assert {product.blocks.block for product in case.model.products.values() if product.blocks} == {1}
    native = case.native(Variant.PORTABLE)
    assert native.copied_bytes == 0
    v1 = adapter_of(case.model, 1)
    assert far(case, native, (11, 4, 20, 150), (None, v1, v1, None)) < NEAR


@pytest.mark.skipif("sys.platform != 'linux' or __import__('platform').machine() != 'x86_64'")
def test_without_new_instructions(case: Case) -> None:
    """The same source, compiled for the oldest processor of the kind."""
    library = Library(plain_library())
    assert library.variants == {Variant.PORTABLE}
    rows = [None, adapter_of(case.model, 1)]
    assert far(case, case.native(Variant.PORTABLE, library=library), (140, 4), rows) < NEAR


def test_weights_in_an_unknown_order_are_copied(llama: Case, variant: Variant) -> None:
    products = set(llama.model.products.values())
    known = {product: product.blocks for product in products}
    for product in products:
        product.blocks = None
    native = llama.native(variant)
    for product, blocks in known.items():
        product.blocks = blocks
    assert native.copied_bytes > sum(2 * p.in_features * p.out_features for p in products) - 1
    assert far(llama, native, (11, 4), (None, adapter_of(llama.model, 1))) < NEAR


# ── young adapters ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("scale", [1e-3, 1e-2])
def test_young_adapter_keeps_its_effect(llama: Case, variant: Variant, scale: float) -> None:
    """The change of logits against that in fp32, as a slope over many rows: nothing is lost on average."""
    native = llama.native(variant)
    found, wanted = [], []
    for seed in range(4):
        young = adapter_of(llama.model, seed, scale=scale, rank=16)
        found.append(effect(llama.model, native.decode, young))
        wanted.append(effect(llama.truth, llama.truth.decode_in_torch, young))
    assert slope(torch.cat(found), torch.cat(wanted)) == pytest.approx(1.0, abs=0.05)


def effect(model: Model, decode: Decode, adapter: Adapter) -> Tensor:
    """What it adds to the logits of 64 rows."""
    logits = []
    for version in (None, adapter):
        streams = prefilled(model, range(2, 66), [None] * 64)
        for stream in streams:
            stream.adapter = version
        logits.append(decode(streams, ids_of(model, 7, 64)))
    return logits[1].float() - logits[0].float()


# ── one product ─────────────────────────────────────────────────────────────────────────────────────────


def product_of(blocks: Any, x: Tensor, variant: Variant, bias: Tensor | None) -> Tensor:
    from instar.engines.embedded.native.step import _matrix

    y = torch.empty(x.shape[0], blocks.n)
    machine().multiply(
        _matrix(blocks, bias), x.data_ptr(), x.shape[1], x.shape[0], y.data_ptr(), int(variant)
    )
    return y


@pytest.mark.parametrize("rows", [1, 2, 3, 5, 7, 8, 16, 17, 33])
@pytest.mark.parametrize(("n", "k"), [(64, 64), (200, 96), (49, 33), (16, 130)])
def test_product_in_every_order(variant: Variant, rows: int, n: int, k: int) -> None:
    from instar.engines.embedded.native.blocks import in_rows, packed

    source = torch.Generator().manual_seed(rows)
    weight = torch.randn(n, k, generator=source).to(torch.bfloat16)
    bias = torch.randn(n, generator=source)
    x = torch.zeros(rows, 192, dtype=torch.bfloat16)
    x[:, :k] = torch.randn(rows, k, generator=source)
    wanted = x[:, :k].double() @ weight.double().t()
    orders = [packed(weight, block, multiple) for block in (16, 32, 48, 64) for multiple in (2, 32)]
    for blocks in [*orders, in_rows(weight)]:
        assert blocks is not None
        for added in (None, bias):
            found = product_of(blocks, x, variant, added)
            total = wanted if added is None else wanted + added
            assert torch.allclose(found.double(), total, atol=1e-4), blocks


def test_order_of_onednn_is_recognised_or_not_used() -> None:
    from instar.engines.embedded.native.blocks import packed, recognised

    if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("oneDNN packs no bf16 here")
    weight = torch.randn(640, 96).to(torch.bfloat16)
    theirs = torch.ops.mkldnn._reorder_linear_weight(weight, None)
    found = recognised(weight, theirs)
    assert found is not None
    mine = packed(weight, found.block, found.k_padded)
    assert (found.n, found.k, found.block, found.k_padded) == (mine.n, mine.k, mine.block, mine.k_padded)
    for changed in (0, 300, 639):  # another weight is not taken for it
        other = weight.clone()
        other[changed, 5] += 1
        assert recognised(other, theirs) is None


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
