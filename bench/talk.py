"""Clients: the openai SDK, streaming, as any program would use it."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any

import httpx
import openai

from bench.users import User

OFF = {"X-Instar-Learn": "off"}
"""Sent with questions that evaluate, and with no others."""

Message = dict[str, str]


@dataclass(slots=True)
class Answer:
    """One streamed answer. `turn` and `version` come from its headers, None when it failed before them.

    `acknowledged`: the stream came to its proper end, so the server promised to keep the turn.
    """

    text: str = ""
    turn: str | None = None
    version: str | None = None
    finish_reason: str | None = None
    asked_at: float = 0.0
    first_s: float | None = None
    total_s: float = 0.0
    acknowledged: bool = False
    error: str | None = None


@dataclass(slots=True)
class Client:
    """One user's program, for any number of threads. Never retries: a failure is counted as one."""

    url: str
    key: str
    max_tokens: int = 128
    temperature: float = 0.7
    model: str = "instar"
    headers: dict[str, str] = field(default_factory=dict)
    sdk: openai.OpenAI = field(init=False)

    def __post_init__(self) -> None:
        self.sdk = openai.OpenAI(base_url=f"{self.url}/v1", api_key=self.key, max_retries=0, timeout=180.0)

    def ask(self, messages: list[Message], max_tokens: int | None = None) -> Answer:
        """Stream one answer to its end; errors are told in the Answer."""
        answer, began = Answer(asked_at=time.time()), time.monotonic()
        try:
            self._stream(messages, max_tokens or self.max_tokens, answer, began)
        except (openai.OpenAIError, httpx.HTTPError, OSError) as error:
            answer.error = f"{type(error).__name__}: {error}"[:300]
        answer.total_s = time.monotonic() - began
        return answer

    def _stream(self, messages: list[Message], max_tokens: int, answer: Answer, began: float) -> None:
        create: Callable[..., Any] = self.sdk.chat.completions.with_raw_response.create
        raw = create(
            model=self.model,
            messages=messages,
            stream=True,
            max_tokens=max_tokens,
            temperature=self.temperature,
            extra_headers=self.headers or None,
        )
        answer.turn = raw.headers.get("x-instar-turn")
        answer.version = raw.headers.get("x-instar-version")
        for chunk in raw.parse():
            for choice in chunk.choices:
                if choice.delta.content:
                    answer.text += choice.delta.content
                    if answer.first_s is None:
                        answer.first_s = time.monotonic() - began
                answer.finish_reason = choice.finish_reason or answer.finish_reason
        answer.acknowledged = answer.finish_reason is not None


@dataclass(slots=True)
class Interaction:
    """A fresh session: question, answer, reaction, and the answer to the reaction. Then silence."""

    question: str
    answer: Answer
    reaction: str
    meant: int
    kept: bool
    reacted_at: float
    reply: Answer

    def json(self) -> dict[str, Any]:
        return asdict(self)


def interact(
    client: Client, user: User, question: str, think_s: float, before: str = "", system: str = ""
) -> Interaction:
    """`before` is put in front of the question, `system` stands as a message of its own: notes that make a prompt
    long."""
    asked = [{"role": "system", "content": system}] if system else []
    asked += [{"role": "user", "content": before + question}]
    answer = client.ask(asked)
    time.sleep(think_s)
    reaction = user.react(answer.text, question)
    reacted_at = time.time()
    history = [*asked, {"role": "assistant", "content": answer.text}]
    reply = client.ask([*history, {"role": "user", "content": reaction.text}])
    return Interaction(question, answer, reaction.text, reaction.meant, reaction.kept, reacted_at, reply)


def shuffled_questions(questions: Sequence[str], n: int, seed: int) -> list[str]:
    """`n` questions in random order, none again before all were asked."""
    rng, found = random.Random(f"questions/{seed}"), list[str]()
    while len(found) < n:
        found += rng.sample(list(questions), len(questions))
    return found[:n]


def evaluate(
    client: Client, questions: Sequence[str], repeats: int, at_once: int = 6
) -> list[dict[str, Any]]:
    """Ask every question `repeats` times in fresh sessions that are kept out of learning."""
    quiet = Client(client.url, client.key, client.max_tokens, client.temperature, client.model, OFF)
    asked = [q for _ in range(repeats) for q in questions]
    with ThreadPoolExecutor(at_once) as pool:
        answers = list(pool.map(lambda q: quiet.ask([{"role": "user", "content": q}]), asked))
    keep = ("version", "finish_reason", "error")
    return [
        {"question": q, "answer": a.text, **{name: getattr(a, name) for name in keep}}
        for q, a in zip(asked, answers, strict=True)
    ]


class ServingWatch:
    """Notes in a thread when each version was first served (`served_version` of GET /v1/status)."""

    def __init__(self, served: Callable[[], str | None], every_s: float = 0.5) -> None:
        self.first_seen: dict[str, float] = {}
        self._served, self._every_s = served, every_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def _watch(self) -> None:
        while not self._stop.wait(self._every_s):
            try:
                version = self._served()
            except (httpx.HTTPError, ValueError):
                continue  # it is starting again; the next look will tell
            if version:
                self.first_seen.setdefault(version, time.time())

    def __enter__(self) -> ServingWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(timeout=30)
