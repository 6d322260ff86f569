"""The embedded engine's numbers against transformers and PEFT: log-probs, adapters, young adapters in bf16."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM

from instar.engines.embedded import kv
from instar.engines.embedded.linear import LoraTerm, Product, RowGroup, Rows
from instar.engines.embedded.model import Model, Stream, load_model
from instar.errors import ModelError, RequestError
from tests.contract.conftest import STOP, Endpoint, change_tensor, write_adapter
from tests.kit.tiny_model import LLAMA3_ROPE

CPU = torch.device("cpu")


@pytest.fixture
def numbers(embedded_server: Any, tmp_path: Path) -> Iterator[Endpoint]:
    backend = embedded_server.backend
    yield Endpoint("embedded", embedded_server.url, backend.base_name, embedded_server, tmp_path)
    for name in backend.adapters():
        embedded_server.call(backend.unload(name))


@torch.no_grad()
def reference_logprobs(network: nn.Module, ids: list[int]) -> torch.Tensor:
    """ln p of every token after the first, from one plain pass. Shape (T − 1, V)."""
    logits = network(input_ids=torch.tensor([ids])).logits[0].float()
    return torch.log_softmax(logits, dim=-1)[:-1]


def plain(folder: Path, dtype: torch.dtype = torch.float32) -> nn.Module:
    found: nn.Module = AutoModelForCausalLM.from_pretrained(str(folder), dtype=dtype).eval()
    return found


def with_peft(network: nn.Module, folder: Path) -> nn.Module:
    from peft import PeftModel

    found: nn.Module = PeftModel.from_pretrained(network, str(folder)).eval()
    return found


@pytest.mark.parametrize("sampling", [{"temperature": 0}, {"temperature": 0.6, "top_p": 0.7, "seed": 3}])
@pytest.mark.parametrize("version", ["base", "v1"])
def test_logprobs_are_raw_and_equal_a_plain_pass(
    numbers: Endpoint, tiny_model: Path, version: str, sampling: dict[str, Any]
) -> None:
    network = plain(tiny_model)
    if version == "v1":
        folder = write_adapter(numbers.tmp / "v1", 1)
        assert numbers.load("v1", folder).status_code == 200
        network = with_peft(network, folder)
    prompt = list(range(30, 75))
    choice = numbers.complete(model=version, prompt=prompt, max_tokens=20, logprobs=2, **sampling)
    ids = choice["token_ids"]
    expected = reference_logprobs(network, prompt + ids)[len(prompt) - 1 :]
    own = expected.gather(1, torch.tensor(ids)[:, None])[:, 0].tolist()
    assert choice["logprobs"]["token_logprobs"] == pytest.approx(own, abs=1e-3)
    for row, top in zip(expected, choice["logprobs"]["top_logprobs"], strict=True):
        likeliest = row.topk(2)
        for token_id, value in zip(likeliest.indices.tolist(), likeliest.values.tolist(), strict=True):
            assert top[f"token_id:{token_id}"] == pytest.approx(value, abs=1e-3)


def test_greedy_follows_the_likeliest_token(numbers: Endpoint, tiny_model: Path) -> None:
    prompt = [60, 61, 62]
    ids = numbers.complete(prompt=prompt, max_tokens=12, stop_token_ids=[])["token_ids"]
    expected = reference_logprobs(plain(tiny_model), prompt + ids)[len(prompt) - 1 :]
    assert ids == expected.argmax(-1).tolist()


def test_prompt_logprobs_equal_a_plain_pass(numbers: Endpoint, tiny_model: Path) -> None:
    prompt = [(7 * i) % 200 + 20 for i in range(50)]  # longer than three chunks
    for _ in range(2):  # the second time a kept prefix lies ready, and must not be used
        choice = numbers.complete(prompt=prompt, max_tokens=1, prompt_logprobs=0)
        found = [
            at[str(i)]["logprob"] for i, at in zip(prompt[1:], choice["prompt_logprobs"][1:], strict=True)
        ]
        expected = reference_logprobs(plain(tiny_model), prompt)
        own = expected.gather(1, torch.tensor(prompt[1:])[:, None])[:, 0].tolist()
        assert found == pytest.approx(own, abs=1e-3)


def test_kept_prefix_changes_no_number(numbers: Endpoint, tiny_model: Path) -> None:
    """A conversation that goes on is computed from what was kept; the log-probs must not tell."""
    folder = write_adapter(numbers.tmp / "v1", 1)
    numbers.load("v1", folder)
    tuned = with_peft(plain(tiny_model), folder)
    prompt = [(11 * i) % 200 + 20 for i in range(45)]
    for version, network in (("base", plain(tiny_model)), ("v1", tuned)):
        ids = list(prompt)
        for turn in range(3):
            choice = numbers.complete(model=version, prompt=ids, max_tokens=9, stop_token_ids=[])
            answer = choice["token_ids"]
            scored = reference_logprobs(network, ids + answer)[len(ids) - 1 :]
            own = scored.gather(1, torch.tensor(answer)[:, None])[:, 0].tolist()
            assert choice["logprobs"]["token_logprobs"] == pytest.approx(own, abs=1e-3)
            ids = ids + answer + [80 + turn, 81, 82]


def test_adapter_of_one_projection_and_of_peft_itself(
    numbers: Endpoint, tiny_model: Path, tmp_path: Path
) -> None:
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(5)
    config = LoraConfig(r=3, lora_alpha=7, target_modules=["k_proj", "up_proj"], init_lora_weights=False)
    tuned = get_peft_model(plain(tiny_model), config).eval()
    tuned.save_pretrained(str(tmp_path / "made"))
    assert numbers.load("v1", tmp_path / "made").status_code == 200
    prompt = [90, 91, 92, 93]
    choice = numbers.complete(model="v1", prompt=prompt, max_tokens=10)
    ids = choice["token_ids"]
    expected = reference_logprobs(tuned, prompt + ids)[len(prompt) - 1 :]
    own = expected.gather(1, torch.tensor(ids)[:, None])[:, 0].tolist()
    assert choice["logprobs"]["token_logprobs"] == pytest.approx(own, abs=1e-3)


def _nan(tensors: dict[str, Any]) -> None:
    tensors["base_model.model.model.layers.1.mlp.up_proj.lora_B.weight"][3, 1] = float("nan")


def _infinite(tensors: dict[str, Any]) -> None:
    tensors["base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"][0, 0] = float("inf")


def _other_shape(tensors: dict[str, Any]) -> None:
    key = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
    tensors[key] = tensors[key][:, :-1].copy()


def _unknown_layer(tensors: dict[str, Any]) -> None:
    for side in "AB":
        stem = "base_model.model.model.layers.{}.self_attn.q_proj.lora_" + side + ".weight"
        tensors[stem.format(9)] = tensors.pop(stem.format(0))


@pytest.mark.parametrize("damage", [_nan, _infinite, _other_shape, _unknown_layer])
def test_adapter_that_does_not_fit_the_model_is_refused(
    numbers: Endpoint, damage: Callable[[dict[str, Any]], None]
) -> None:
    before = numbers.complete()
    folder = write_adapter(numbers.tmp / "bad", 1)
    change_tensor(folder, damage)
    assert numbers.load("bad", folder).status_code == 400
    assert numbers.names() == {"base"}
    assert numbers.complete() == before


def test_adapter_that_overflows_fails_its_own_requests_only(numbers: Endpoint) -> None:
    before = numbers.complete()
    numbers.load("wild", write_adapter(numbers.tmp / "wild", 1, scale=1e19))
    body = {"model": "wild", "prompt": [5, 6], "max_tokens": 4, "stop_token_ids": [STOP]}
    response = numbers.post("/v1/completions", **body)
    assert response.status_code == 500
    assert "not finite" in response.json()["error"]["message"]
    assert numbers.complete() == before


# ── a young adapter in bf16 ─────────────────────────────────────────────────────────────────────────────


def _kept_effect(term_scale: float) -> float:
    """Share of a small LoRA term that is left of it after a bf16 product, by regression on the term."""
    torch.manual_seed(0)
    layer = nn.Linear(64, 128, bias=False).to(torch.bfloat16)
    term = LoraTerm(torch.randn(64, 4), torch.randn(4, 128) * term_scale)
    x = torch.randn(512, 64).to(torch.bfloat16)
    rows = Rows()
    product = Product(["layer"], [layer], rows)
    base = product(x).float()
    rows.groups = [RowGroup(0, 512, {"layer": term})]
    effect = product(x).float() - base
    wanted = x.float() @ term.down @ term.up
    return float((effect * wanted).sum() / (wanted * wanted).sum())


@pytest.mark.parametrize("scale", [1e-5, 1e-4, 1e-2])
def test_young_adapter_keeps_its_effect_in_bf16(scale: float) -> None:
    """Merged into bf16 weights, or added after rounding, the smallest of these would be gone."""
    assert _kept_effect(scale) == pytest.approx(1.0, abs=0.25)


def test_rows_of_several_versions_in_one_product() -> None:
    torch.manual_seed(1)
    layers = [nn.Linear(32, 48, bias=True), nn.Linear(32, 16, bias=True)]
    rows = Rows()
    product = Product(["a", "b"], layers, rows)
    x = torch.randn(6, 32)
    terms = [LoraTerm(torch.randn(32, 2), torch.randn(2, 64)) for _ in range(2)]
    rows.groups = [
        RowGroup(0, 2, {"a": terms[0]}),
        RowGroup(2, 3, {}),
        RowGroup(3, 6, {"a": terms[1]}),
    ]
    base = torch.cat([layer(x) for layer in layers], dim=-1)
    wanted = base.clone()
    wanted[0:2] += x[0:2] @ terms[0].down @ terms[0].up
    wanted[3:6] += x[3:6] @ terms[1].down @ terms[1].up
    assert torch.allclose(product(x), wanted, atol=1e-5)


# ── other models than the starter's kind ────────────────────────────────────────────────────────────────


def _write_model(folder: Path, kind: str, **changes: Any) -> Path:
    from transformers import AutoConfig

    torch.manual_seed(0)
    options = {
        "vocab_size": 100,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
        "pad_token_id": 0,
        "eos_token_id": 2,
        **changes,
    }
    config = AutoConfig.for_model(kind, **options)
    network = AutoModelForCausalLM.from_config(config)
    for name, parameter in network.named_parameters():
        if "norm" not in name:
            parameter.data.mul_(8)
    network.save_pretrained(folder)
    return folder


LEAN = ("llama", "llama3 rope", "mistral, no window", "qwen2", "qwen3")
KINDS: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama3 rope": {"rope_parameters": LLAMA3_ROPE},
    "mistral": {"sliding_window": 6},
    "mistral, no window": {"sliding_window": None},
    "qwen2": {"tie_word_embeddings": True},
    "qwen3": {"head_dim": 16},
    "gemma2": {"head_dim": 8, "sliding_window": 5, "query_pre_attn_scalar": 8},
    "phi3": {},
    "granite": {"logits_scaling": 4.0, "residual_multiplier": 0.5},
    "gpt_neox": {},
}


@pytest.mark.parametrize("kind", KINDS)
def test_other_architectures_give_their_own_numbers(kind: str, tmp_path: Path) -> None:
    name = {"llama3 rope": "llama", "mistral, no window": "mistral"}.get(kind, kind)
    folder = _write_model(tmp_path / "model", name, **KINDS[kind])
    network = plain(folder)
    model = load_model(folder, torch.float32, CPU)
    assert (model.lean is not None) == (kind in LEAN)
    ids = [(5 * i) % 90 + 3 for i in range(30)]
    expected = reference_logprobs(network, ids)
    streams = [Stream(kv.StreamCache(model.layout, 40), None) for _ in range(2)]
    found = []
    for stream, split in zip(streams, (11, 4), strict=True):  # two streams of different length side by side
        chunks = [ids[:split], ids[split : split + 5]]
        logits = [model.prefill(stream, chunk, all_logits=True) for chunk in chunks]
        found.append(torch.log_softmax(torch.cat(logits), dim=-1))
    for rows, split in zip(found, (11, 4), strict=True):
        assert torch.allclose(rows, expected[: split + 5], atol=2e-3)
    for step in range(8):
        places = [stream.cache.length for stream in streams]
        logits = model.decode(streams, [ids[place] for place in places])
        rows = torch.log_softmax(logits, dim=-1)
        for row, place in zip(rows, places, strict=True):
            assert torch.allclose(row, expected[place], atol=2e-3), step


def test_model_of_another_kind_is_refused_in_words(tmp_path: Path) -> None:
    folder = _write_model(tmp_path / "rwkv", "mamba", state_size=4, num_heads=4)
    with pytest.raises(ModelError, match="vLLM"):
        load_model(folder, torch.float32, CPU)


def test_damaged_weights_are_refused_in_words(tiny_model: Path, tmp_path: Path) -> None:
    for file in tiny_model.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "hidden_size": 48}))
    with pytest.raises(ModelError, match="cannot be loaded"):
        load_model(tmp_path, torch.bfloat16, CPU)


def test_bf16_is_near_fp32(tiny_model: Path) -> None:
    """The starter's own precision: same numbers up to the rounding of bf16."""
    model: Model = load_model(tiny_model, torch.bfloat16, CPU)
    ids = list(range(40, 80))
    stream = Stream(kv.StreamCache(model.layout, 64), None)
    found = torch.log_softmax(model.prefill(stream, ids, all_logits=True).float(), dim=-1)[:-1]
    assert model.lean is not None
    expected = reference_logprobs(plain(tiny_model), ids)
    assert float((found - expected).abs().mean()) < 0.1
    assert isinstance(model.layout.bytes_per_token, int)


def test_refusal_is_a_request_error(tiny_model: Path, tmp_path: Path) -> None:
    model = load_model(tiny_model, torch.float32, CPU)
    with pytest.raises(RequestError) as caught:
        model.load_adapter("v1", tmp_path / "nowhere", 16)
    assert caught.value.status == 400
