"""The engines that the contract is checked on, each over real HTTP in a thread with an event loop of its own."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from aiohttp import web
from safetensors.numpy import load_file, save_file

from instar.config import EngineSettings
from instar.engines import http_server, wire
from instar.engines.client import HttpEngine
from instar.engines.scripted import ScriptedEngine
from instar.ports import TokenChunk
from instar.records import BASE, Sampling
from tests.kit.native import needs_compiler
from tests.kit.tiny_model import write_tiny_model
from tests.kit.vllm_server import vllm_program, vllm_server

STOP = 2
CONTEXT = 512
SETTINGS = EngineSettings(
    threads=1, max_streams=4, max_waiting=8, max_loras=4, max_lora_rank=16, prefill_chunk=16
)
LAYERS, HIDDEN, INNER, HEADS, KV_HEADS, HEAD = 2, 64, 128, 4, 2, 16


class Server:
    """A backend behind HTTP, in a thread."""

    def __init__(self, backend: wire.Backend, api_key: str | None = None) -> None:
        self.backend = backend
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()
        self._runner = http_server.runner(http_server.make_app(backend, api_key))
        self.url = self.call(self._start())

    def call(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(60)

    async def _start(self) -> str:
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        host, port = self._runner.addresses[0][:2]
        return f"http://{host}:{port}"

    def stop(self) -> None:
        self.call(self._runner.cleanup())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(10)
        self.loop.close()


def lively(folder: Path) -> Path:
    """Make a tiny model's random weights eight times larger: else every token is about as likely as another."""
    import torch
    from safetensors.torch import load_file as load
    from safetensors.torch import save_file as save

    weights = load(folder / "model.safetensors")
    grown = {name: tensor * (1 if "norm" in name else 8) for name, tensor in weights.items()}
    assert all(tensor.dtype == torch.bfloat16 for tensor in grown.values())
    save(grown, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return lively(write_tiny_model(tmp_path_factory.mktemp("models") / "tiny", CONTEXT))


def write_adapter(folder: Path, seed: int, *, scale: float = 0.2, rank: int = 4) -> Path:
    """A PEFT folder with random matrices for all seven projections of the tiny model."""
    folder.mkdir(parents=True)
    config = {
        "peft_type": "LORA",
        "r": rank,
        "lora_alpha": 2 * rank,
        "bias": "none",
        "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))
    sizes = {
        "self_attn.q_proj": (HIDDEN, HEADS * HEAD),
        "self_attn.k_proj": (HIDDEN, KV_HEADS * HEAD),
        "self_attn.v_proj": (HIDDEN, KV_HEADS * HEAD),
        "self_attn.o_proj": (HEADS * HEAD, HIDDEN),
        "mlp.gate_proj": (HIDDEN, INNER),
        "mlp.up_proj": (HIDDEN, INNER),
        "mlp.down_proj": (INNER, HIDDEN),
    }
    random = np.random.default_rng(seed)
    tensors = {}
    for layer in range(LAYERS):
        for name, (inputs, outputs) in sizes.items():
            stem = f"base_model.model.model.layers.{layer}.{name}"
            tensors[f"{stem}.lora_A.weight"] = random.normal(0, scale, (rank, inputs)).astype(np.float32)
            tensors[f"{stem}.lora_B.weight"] = random.normal(0, scale, (outputs, rank)).astype(np.float32)
    save_file(tensors, folder / "adapter_model.safetensors")
    return folder


def change_tensor(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    tensors = load_file(folder / "adapter_model.safetensors")
    change(tensors)
    save_file(tensors, folder / "adapter_model.safetensors")


@dataclass(frozen=True)
class Endpoint:
    """An engine under test. `slow_down` makes each answer last, so that others come in between."""

    kind: str
    url: str
    base: str
    in_thread: Server | None
    tmp: Path

    @property
    def server(self) -> Server:
        """Of our own engines only."""
        assert self.in_thread is not None, "this engine is a process of its own: mark the test `ours`"
        return self.in_thread

    def post(self, path: str, **fields: Any) -> httpx.Response:
        return httpx.post(self.url + path, json=fields, timeout=30)

    def complete(self, **fields: Any) -> dict[str, Any]:
        """A completion that is not streamed: its choice."""
        response = self.post("/v1/completions", **{**COMMON, "model": self.base, **fields})
        assert response.status_code == 200, response.text
        return response.json()["choices"][0]

    def load(self, name: str, folder: Path) -> httpx.Response:
        return self.post("/v1/load_lora_adapter", lora_name=name, lora_path=str(folder))

    def unload(self, name: str) -> httpx.Response:
        return self.post("/v1/unload_lora_adapter", lora_name=name)

    def names(self) -> set[str]:
        return {model["id"] for model in httpx.get(self.url + "/v1/models", timeout=30).json()["data"]}


COMMON = {
    "prompt": [5, 6, 7],
    "max_tokens": 8,
    "temperature": 0,
    "stop_token_ids": [STOP],
    "logprobs": 0,
    "return_token_ids": True,
    "return_tokens_as_token_ids": True,
}


@pytest.fixture(scope="session")
def scripted_server() -> Iterator[Server]:
    server = Server(ScriptedEngine(settings=SETTINGS, vocab_size=259, max_model_len=CONTEXT))
    yield server
    server.stop()


@contextmanager
def _embedded(folder: Path, settings: EngineSettings, dtype: str) -> Iterator[Server]:
    import torch

    from instar.engines.embedded.backend import EmbeddedBackend

    backend = EmbeddedBackend(folder, settings, getattr(torch, dtype))
    server = Server(backend)
    server.call(backend.start())
    yield server
    server.call(backend.stop())
    server.stop()


@pytest.fixture(scope="session")
def embedded_server(tiny_model: Path) -> Iterator[Server]:
    """In fp32, so that an answer must be the same to the last token alone and in company."""
    with _embedded(tiny_model, SETTINGS, "float32") as server:
        yield server


@pytest.fixture(scope="session")
def native_server(tiny_model: Path) -> Iterator[Server]:
    """The embedded engine as it serves: in bf16, with decode steps that were compiled for this machine."""
    with _embedded(tiny_model, SETTINGS.model_copy(update={"native": "on"}), "bfloat16") as server:
        yield server


@pytest.fixture(scope="session")
def vllm_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The real vLLM with the tiny model, in fp32 like the embedded engine. Its attention knows no heads of 16."""
    settings = SETTINGS.model_copy(
        update={"kind": "vllm", "program": vllm_program(), "args": ("--dtype", "float32")}
    )
    folder = tmp_path_factory.mktemp("vllm")
    model = lively(write_tiny_model(folder / "tiny", CONTEXT))
    config = json.loads((model / "config.json").read_text())
    config.update(num_attention_heads=HEADS // 2, num_key_value_heads=KV_HEADS // 2, head_dim=2 * HEAD)
    (model / "config.json").write_text(json.dumps(config))
    with vllm_server(model, settings, folder / "vllm.log") as url:
        yield url


ENGINES = [
    "scripted",
    "embedded",
    pytest.param("native", marks=needs_compiler),
    pytest.param("vllm", marks=[pytest.mark.soak, pytest.mark.vllm]),
]


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Endpoint]:
    if request.param == "vllm":
        if request.node.get_closest_marker("ours"):
            pytest.skip("vLLM does this in its own way: test_vllm.py")
        url = request.getfixturevalue("vllm_url")
        found = Endpoint("vllm", url, BASE, None, tmp_path)
        yield found
        for name in found.names() - {BASE}:
            found.unload(name)
        return
    server: Server = request.getfixturevalue(f"{request.param}_server")
    yield Endpoint(request.param, server.url, server.backend.base_name, server, tmp_path)
    for name in server.backend.adapters():
        server.call(server.backend.unload(name))


@pytest.fixture
async def client(engine: Endpoint) -> AsyncIterator[HttpEngine]:
    found = HttpEngine(engine.url, engine.base, [STOP])
    yield found
    await found.close()


async def gather_answer(
    client: HttpEngine, version: str, prompt: list[int], sampling: Sampling
) -> list[TokenChunk]:
    return [chunk async for chunk in client.sample(version, prompt, sampling)]


def ids_of(chunks: list[TokenChunk]) -> list[int]:
    return [token_id for chunk in chunks for token_id in chunk.ids]


def logprobs_of(chunks: list[TokenChunk]) -> list[float]:
    return [value for chunk in chunks for value in chunk.logprobs]


async def eventually(condition: Callable[[], bool | Awaitable[bool]]) -> None:
    """Wait until something holds; the suite's own timeout is the limit."""
    while True:
        found = condition()
        if found is True or (not isinstance(found, bool) and await found):
            return
        await asyncio.sleep(0.01)
