"""The real server – gateway, judge and all – over the scripted engine, with a network that can be made to fail.

    client ─► FaultProxy ─► instar serve ─► ScriptedEngine

The scripted engine stands in for a model: what it "samples" is decided by the text of the request. Everything else is
what a person runs.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from instar.engines.scripted import ScriptedEngine
from instar.engines.starter import model_facts
from instar.engines.wire import Completion
from instar.records import Manifest
from instar.registry import FolderRegistry
from tests.kit.fault_proxy import FaultProxy
from tests.kit.live_server import Server, running_server
from tests.kit.loop_thread import LoopThread
from tests.kit.tiny_model import byte_tokenizer, weightless_model

CONTEXT = 262_144  # the tokenizer's tokens are bytes, so a client's prompt is long in them
TEMPLATE = """\
{%- if tools %}<|im_start|>system
<tools>{% for tool in tools %}{{ tool | tojson }}{% endfor %}</tools>
Call one with <tool_call>{"name": ..., "arguments": ...}</tool_call><|im_end|>
{% endif %}
{%- for message in messages %}<|im_start|>{{ message.role }}
{{ message.content or "" }}
{%- for call in message.tool_calls or [] %}
<tool_call>{{ {"name": call.function.name, "arguments": call.function.arguments} | tojson }}</tool_call>
{%- endfor %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
"""ChatML with tools in the form that most small models know."""
INTERNAL = "<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>"
Rule = tuple[Callable[["Asked"], bool], str]


@dataclass(frozen=True, slots=True)
class Asked:
    """A prompt as the engine got it, taken apart again: role and text of each message."""

    messages: list[tuple[str, str]]
    version: str

    @property
    def role(self) -> str:
        return self.messages[-1][0]

    @property
    def last(self) -> str:
        return self.messages[-1][1]

    @property
    def users(self) -> list[str]:
        return [text for role, text in self.messages if role == "user"]


@dataclass
class Scripted:
    """Answers by rules, the newest first; where none holds, "Answer <n> of <version>." for the n-th user message."""

    rules: list[Rule] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._tokenizer = byte_tokenizer()

    def on(self, said: str, answer: str, role: str = "user") -> None:
        """When the last message, of this role, holds `said`."""
        self.rules.insert(0, (lambda asked: asked.role == role and said in asked.last, answer))

    def call(self, said: str, *calls: tuple[str, dict[str, Any]], role: str = "user") -> None:
        """When the last message, of this role, holds `said`: call these tools."""
        asked = [json.dumps({"name": name, "arguments": arguments}) for name, arguments in calls]
        self.on(said, "\n".join(f"<tool_call>\n{one}\n</tool_call>" for one in asked), role)

    def __call__(self, request: Completion) -> list[int]:
        asked = self.read(request)
        fallback = f"Answer {len(asked.users)} of {asked.version}."
        text = next((answer for holds, answer in self.rules if holds(asked)), fallback)
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def read(self, request: Completion) -> Asked:
        """What was asked, but for the block that OpenClaw may put behind it: a model takes that for no user."""
        text = self._tokenizer.decode(list(request.prompt_ids), skip_special_tokens=False)
        parts = [part.partition("\n") for part in text.split("<|im_start|>")[1:-1]]
        messages = [(role, said.partition("<|im_end|>")[0]) for role, _, said in parts]
        version = request.model.partition("-")[0]  # an engine that may be shared knows it by its content, too
        return Asked([m for m in messages if not m[1].startswith(INTERNAL)], version)


@dataclass
class House:
    """What a test holds in its hand. `proxy.url` is where a client should go."""

    server: Server
    engine: ScriptedEngine
    script: Scripted
    proxy: FaultProxy
    loop: LoopThread
    model: Path

    @property
    def url(self) -> str:
        return self.proxy.url

    def turns(self) -> list[dict[str, Any]]:
        """All turns, oldest first."""
        rows: list[dict[str, Any]] = self.server.get("/v1/turns?limit=1000")["data"]
        return rows[::-1]

    def publish(self, name: str, parent: str = "base") -> None:
        """A version that the scripted engine loads; it answers with its name."""
        work = self.server.data_dir / f"work-{name}"
        work.mkdir()
        config = {"peft_type": "LORA", "r": 1, "lora_alpha": 2}
        (work / "adapter_config.json").write_text(json.dumps(config), "utf-8")
        stem = "base_model.model.model.layers.0.self_attn.q_proj"
        shapes = {"lora_A": (1, 64), "lora_B": (64, 1)}
        tensors = {f"{stem}.{side}.weight": np.zeros(shape, np.float32) for side, shape in shapes.items()}
        save_file(tensors, work / "adapter_model.safetensors")
        facts = model_facts(self.model)
        manifest = Manifest(name, parent, 1.0, f"update_{name}", "tiny", facts.sha256, {}, [], {}, {}, {}, {})
        FolderRegistry(self.server.data_dir / "versions").publish(work, manifest)

    def activate(self, name: str) -> None:
        with self.server.http as http:
            http.post(f"/v1/versions/{name}/activate").raise_for_status()

    def until_running(self, timeout_s: float = 30) -> None:
        """Wait until the engine is in the middle of an answer."""
        self._until(lambda: self.engine.running > 0, timeout_s)

    def until_idle(self, timeout_s: float = 30) -> None:
        self._until(lambda: self.engine.running == 0, timeout_s)

    def _until(self, holds: Callable[[], bool], timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while not holds():
            assert time.monotonic() < deadline, "the engine never came to it"
            time.sleep(0.02)

    def judged(self, timeout_s: float = 30) -> list[dict[str, Any]]:
        """All turns, once nothing waits for the judge."""
        self.server.until("/v1/status", lambda body: body["counts"]["waiting"]["unjudged"] == 0, timeout_s)
        return self.turns()


@contextmanager
def scripted_house(folder: Path, *options: str) -> Iterator[House]:
    model = weightless_model(folder / "model", CONTEXT, TEMPLATE)
    script = Scripted()
    engine = ScriptedEngine(
        script, base_name="base", vocab_size=259, max_model_len=CONTEXT, tokens_per_chunk=8
    )
    with LoopThread() as loop:
        loop.run(engine.__aenter__())
        given = ["--model", str(model), "--set", "engine.kind=url", "--set", f"engine.url={engine.base_url}"]
        given += ["--set", "train.enabled=false", "--set", "gate.held_back=0", *options]
        with running_server(folder / "data", *given) as server:
            proxy = FaultProxy(server.url)
            loop.run(proxy.start())
            yield House(server, engine, script, proxy, loop, model)
            loop.run(proxy.stop())
        loop.run(engine.__aexit__())
