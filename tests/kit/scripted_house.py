"""The real server – gateway, judge and all – over the scripted engine, with a network that can be made to fail.

    client ─► FaultProxy ─► instar serve ─► ScriptedEngine

The scripted engine stands in for a model: what it "samples" is decided by the text of the request. Everything else is
what a person runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from instar.engines.scripted import ScriptedEngine
from instar.engines.wire import Completion
from tests.kit.fault_proxy import FaultProxy
from tests.kit.live_server import Server, running_server
from tests.kit.loop_thread import LoopThread
from tests.kit.tiny_model import byte_tokenizer, write_chat_files

CONTEXT = 65_536  # the tokenizer's tokens are bytes, so a client's prompt is long in them
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

    def __call__(self, request: Completion) -> list[int]:
        asked = self.read(request)
        fallback = f"Answer {len(asked.users)} of {asked.version}."
        text = next((answer for holds, answer in self.rules if holds(asked)), fallback)
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def read(self, request: Completion) -> Asked:
        text = self._tokenizer.decode(list(request.prompt_ids), skip_special_tokens=False)
        parts = [part.partition("\n") for part in text.split("<|im_start|>")[1:-1]]
        messages = [(role, said.partition("<|im_end|>")[0]) for role, _, said in parts]
        return Asked(messages, request.model)


@dataclass
class House:
    """What a test holds in its hand. `proxy.url` is where a client should go."""

    server: Server
    engine: ScriptedEngine
    script: Scripted
    proxy: FaultProxy
    loop: LoopThread

    @property
    def url(self) -> str:
        return self.proxy.url

    def turns(self) -> list[dict[str, Any]]:
        """All turns, oldest first."""
        rows: list[dict[str, Any]] = self.server.get("/v1/turns?limit=1000")["data"]
        return rows[::-1]

    def judged(self, timeout_s: float = 30) -> list[dict[str, Any]]:
        """All turns, once nothing waits for the judge."""
        self.server.until("/v1/status", lambda body: body["counts"]["waiting"]["unjudged"] == 0, timeout_s)
        return self.turns()


@contextmanager
def scripted_house(folder: Path, *options: str, template: str | None = None) -> Iterator[House]:
    model = _model_folder(folder / "model", template)
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
            yield House(server, engine, script, proxy, loop)
            loop.run(proxy.stop())
        loop.run(engine.__aexit__())


def _model_folder(folder: Path, template: str | None) -> Path:
    """Everything of a model that the server looks at; its weights are never read."""
    write_chat_files(folder, CONTEXT)
    if template is not None:
        (folder / "chat_template.jinja").write_text(template, "utf-8")
    save_file({"model.embed_tokens.weight": np.zeros((259, 64), np.float32)}, folder / "model.safetensors")
    return folder
