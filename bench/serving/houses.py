"""What is measured: `instar serve` with a version, vLLM beside it, and models and prompts of the sizes wanted."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
from tokenizers import Tokenizer

from bench.prompts import TRAIN
from bench.server import Server, ServerDied, free_port
from bench.serving.load import Endpoint
from instar.engines.starter import model_facts
from instar.records import Manifest
from instar.registry import FolderRegistry
from instar.store import open_store

VLLM_START_S = 600.0
QUIET = {"INSTAR_TRAIN__ENABLED": "false", "INSTAR_JUDGE__CHAIN": "explicit", "INSTAR_LOG_LEVEL": "warning"}
"""For what is to be measured without learning."""


# ── prompts and models ──────────────────────────────────────────────────────────────────────────────────


class Texts:
    """Texts of about so many tokens, made of everyday questions; no two begin alike."""

    def __init__(self, model_dir: Path) -> None:
        self._tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
        self._made = 0

    def of(self, tokens: int) -> str:
        self._made += 1
        draw = random.Random(self._made)
        text = f"{draw.randrange(10**6)}. "
        while self.count(text) < tokens:
            missing = tokens - self.count(text)
            text += " ".join(draw.choice(TRAIN) for _ in range(missing // 12 + 1)) + " "
        return str(
            self._tokenizer.decode(self._tokenizer.encode(text, add_special_tokens=False).ids[:tokens])
        )

    def count(self, text: str) -> int:
        return len(self.ids(text))

    def ids(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)


def young_adapter(model_dir: Path, folder: Path) -> Path:
    """After one update on a few texts: of the rank and the layers that the trainer gives it."""
    from bench.young_adapters import train_adapters

    texts = Texts(model_dir)
    lessons = [(texts.ids(texts.of(40)) * 2)[:32] for _ in range(2)]
    return train_adapters(model_dir, folder, lessons, (1,))[0]


def random_model(starter: Path, folder: Path, positions: int) -> Path:
    """The starter's architecture and tokenizer with random weights and more positions."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    shutil.copytree(starter, folder, ignore=shutil.ignore_patterns("*.safetensors", "instar-model.json"))
    config = AutoConfig.from_pretrained(str(starter))
    config.max_position_embeddings = positions
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).to(torch.bfloat16).save_pretrained(str(folder))
    return folder


def scripted_model(
    starter: Path, folder: Path, answer: list[int], first_token_s: float, token_s: float
) -> Path:
    """The starter's folder, with a script in the place of its weights' work."""
    folder.mkdir(parents=True)
    for path in starter.iterdir():
        if path.name != "instar-model.json":
            (folder / path.name).symlink_to(path)
    plan = {"answers": [answer], "first_token_s": first_token_s, "token_s": token_s}
    (folder / "scripted.json").write_text(json.dumps(plan), "utf-8")
    return folder


# ── ours ────────────────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def ours(folder: Path, model: Path | str, **settings: str) -> Iterator[Server]:
    """`settings` as the environment has them, without their prefix: ENGINE__THREADS="1"."""
    extra = {f"INSTAR_{name}": value for name, value in settings.items()}
    with Server(folder / "data", model=str(model), extra=extra) as server:
        yield server


def quiet(threads: int, **more: str) -> dict[str, str]:
    bare = {name.removeprefix("INSTAR_"): value for name, value in QUIET.items()}
    return {**bare, "ENGINE__THREADS": str(threads), **more}


def publish(data_dir: Path, model_dir: Path, adapter: Path, name: str) -> None:
    """Put a version of this model into the registry, as the trainer does."""
    work = data_dir.parent / f"work-{name}"
    shutil.copytree(adapter, work)
    for path in work.iterdir():
        if path.name not in {"adapter_config.json", "adapter_model.safetensors"}:
            path.unlink()
    sha256 = model_facts(model_dir).sha256
    manifest = Manifest(name, "base", time.time(), f"update_{name}", "bench", sha256, {}, [], {}, {}, {}, {})
    FolderRegistry(data_dir / "versions").publish(work, manifest)


def activate(server: Server, name: str, limit_s: float = 600.0) -> float:
    """As the trainer does: through the store. Returns seconds until it serves."""
    began = time.monotonic()
    with contextlib.closing(open_store(f"sqlite:///{server.data_dir / 'instar.db'}")) as store:
        store.activate(name, "bench")
    while server.status()["served_version"] != name:
        if time.monotonic() - began > limit_s:
            raise ServerDied(f"{name} was not served:\n{server.log_end()}")
        time.sleep(0.1)
    return time.monotonic() - began


def run_facts(server: Server) -> dict[str, Any]:
    """What the supervisor told its children: the engine's address and key among it."""
    state = json.loads((server.data_dir / "run" / "state.json").read_text("utf-8"))
    found: dict[str, Any] = state["run"]
    return found


def loop_pid(server: Server, loop: str) -> int:
    return int(server.status()["loops"][loop]["pid"])


def pss_bytes(pid: int) -> int:
    """A process's share of memory: what several share counts once among them."""
    return int(psutil.Process(pid).memory_full_info().pss)


def tree(pid: int) -> list[psutil.Process]:
    root = psutil.Process(pid)
    return [root, *root.children(recursive=True)]


# ── vLLM ────────────────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def vllm(program: Path, model_dir: Path, adapter: Path | None, threads: int, log: Path) -> Iterator[Endpoint]:
    """`vllm serve` on this machine's processor or GPU, with an adapter or without any support for one."""
    port = free_port()
    command = [str(program), "serve", str(model_dir), "--host", "127.0.0.1", "--port", str(port)]
    command += ["--served-model-name", "base", "--dtype", "bfloat16", "--max-num-seqs", "8"]
    command += ["--generation-config", "vllm", "--disable-uvicorn-access-log", "--max-model-len", "4096"]
    if adapter is not None:
        command += ["--enable-lora", "--max-lora-rank", "16", "--lora-modules", f"young={adapter}"]
    more = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": str(threads)}  # fmt: skip
    with log.open("ab") as out:
        process = subprocess.Popen(
            command, stdout=out, stderr=out, env={**os.environ, **more}, start_new_session=True
        )
    name, model = ("vLLM, adapter", "young") if adapter else ("vLLM", "base")
    to = Endpoint(name, f"http://127.0.0.1:{port}", "none", model)
    try:
        _until_healthy(process, to.url, log)
        yield to
    finally:
        _end(process)


def _until_healthy(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = time.monotonic() + VLLM_START_S
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(f"{url}/health", timeout=2.0, trust_env=False).status_code == 200:
                return
        time.sleep(0.5)
    end = "\n".join(log.read_text("utf-8", "replace").splitlines()[-20:])
    raise ServerDied(f"vLLM did not come up:\n{end}")


def _end(process: subprocess.Popen[bytes]) -> None:
    family = tree(process.pid) if process.poll() is None else []
    process.terminate()
    _, left = psutil.wait_procs(family, timeout=30)
    for one in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            one.kill()
