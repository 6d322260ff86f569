"""A fake of `ports.Engine` within the process, for tests of the flow and the gateway only."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from pathlib import Path

from instar.chat_format import ChatFormat
from instar.errors import EngineError, EngineUnavailable
from instar.ports import TokenChunk
from instar.records import BASE, Sampling


class FakeEngine:
    """Answers with `script(version, prompt_text)`, `at_once` tokens at a time. Knobs are plain attributes."""

    def __init__(self, chat: ChatFormat, script: Callable[[str, str], str] | None = None) -> None:
        self.chat = chat
        self.script = script or (lambda version, prompt: f"answer of {version}")
        self.pause_s = 0.0
        self.at_once = 1
        self.versions = {BASE}
        self.up = True
        self.fail_after: int | None = None  # tokens, then the connection breaks
        self.refuse: EngineError | None = None
        self.load_error: EngineError | None = None
        self.gate: asyncio.Event | None = (
            None  # sampling waits for it after each token but the last, from this one:
        )
        self.gate_at = 0
        self.prefill: asyncio.Event | None = None  # sampling waits for it before the first token
        self.prompts: list[list[int]] = []
        self.samplings: list[Sampling] = []
        self.asked: list[tuple[str, int]] = []  # version and priority
        self.tells_forced = (
            True  # under a grammar, of every second token; the script is not held to the grammar
        )
        self.context_length: int | None = None
        self.aborted = 0
        self.sampling = 0

    async def sample(
        self, version: str, prompt_ids: Sequence[int], sampling: Sampling, *, priority: int = 0
    ) -> AsyncGenerator[TokenChunk, None]:
        if not self.up:
            raise EngineUnavailable("nobody listens")
        if self.refuse:
            raise self.refuse
        if version not in self.versions:
            raise EngineError(f"no adapter {version}", status=404)
        self.prompts.append(list(prompt_ids))
        self.samplings.append(sampling)
        self.asked.append((version, priority))
        text = self.script(version, self.chat.decode(prompt_ids))
        ids = self.chat.encode_answer(text)
        cut = len(ids) > sampling.max_tokens
        ids = ids[: sampling.max_tokens]
        self.sampling += 1
        finished = False
        try:
            if self.prefill:
                await self.prefill.wait()
            for start in range(0, len(ids), self.at_once):
                if self.fail_after is not None and start >= self.fail_after:
                    raise EngineUnavailable("the connection broke")
                span = range(start, min(start + self.at_once, len(ids)))
                last = span.stop == len(ids)
                finish = ("length" if cut else "stop") if last else None
                forced = [at % 2 == 0 for at in span] if sampling.grammar and self.tells_forced else None
                logprobs = [-0.5 - at / 100 for at in span]
                most = sampling.top_logprobs
                likeliest = [[(ids[at], -0.5 - at / 100), (ids[at] - 1, -3.0)][:most] for at in span]
                top = likeliest if most else None
                yield TokenChunk(ids[start : span.stop], logprobs, finish, top, forced)
                await asyncio.sleep(self.pause_s)
                if self.gate and not last and span[-1] >= self.gate_at:
                    await self.gate.wait()
            finished = True
        finally:
            self.sampling -= 1
            self.aborted += not finished

    async def load(self, version: str, adapter_dir: Path) -> None:
        if not self.up:
            raise EngineUnavailable("nobody listens")
        if self.load_error:
            raise self.load_error
        self.versions.add(version)

    async def unload(self, version: str) -> None:
        self.versions.discard(version)

    async def loaded(self) -> set[str]:
        if not self.up:
            raise EngineUnavailable("nobody listens")
        return set(self.versions)

    async def healthy(self) -> bool:
        return self.up

    async def close(self) -> None:
        self.up = False
