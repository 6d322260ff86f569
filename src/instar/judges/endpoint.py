"""Ways to ask a model that judges: any OpenAI-compatible server, or our own engine's untouched model."""

from __future__ import annotations

import json
from contextlib import aclosing
from typing import Any, Protocol
from urllib.parse import urlsplit

import aiohttp

from instar.chat_format import ChatFormat
from instar.errors import EngineError, JudgeUnavailable, RequestError
from instar.ports import Engine
from instar.records import BASE, Message, Sampling

JUDGE_PRIORITY = 10
"""At our own engine: behind every chat, which has 0."""

TEMPERATURE = 0.7
"""Votes are only worth counting if they may differ."""

CONNECT_S = 5.0
MAX_BODY_BYTES = 1 << 20


class Asker(Protocol):
    """Prompt in, reply out. `name` says whom it asks, for people."""

    name: str

    async def ask(self, messages: list[Message], *, seed: int, max_tokens: int) -> str:
        """One sampled reply. Raises JudgeUnavailable; being cancelled stops the model too."""
        ...

    async def close(self) -> None: ...


class HttpAsker:
    """`POST {url}/chat/completions` of Ollama, vLLM, llama.cpp, LM Studio and their like. One long-lived client.

    An address without a path means `/v1`. Redirects and proxies of the environment are not followed: the
    conversation goes to the address that the user named, and to no other.
    """

    def __init__(self, url: str, model: str, key: str | None = None) -> None:
        base = url.rstrip("/")
        self._url = f"{base if urlsplit(base).path else base + '/v1'}/chat/completions"
        self._model = model
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._http: aiohttp.ClientSession | None = None
        self.name = f"{model} at {base}"

    async def ask(self, messages: list[Message], *, seed: int, max_tokens: int) -> str:
        body = {
            "model": self._model,
            "messages": messages,
            "temperature": TEMPERATURE,
            "seed": seed,
            "max_tokens": max_tokens,
            "stream": False,
        }
        try:
            async with self._session().post(self._url, json=body, allow_redirects=False) as response:
                data = await _read(response)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise JudgeUnavailable(
                f"{self.name} does not answer: {str(error) or type(error).__name__}"
            ) from error
        if "x-instar-turn" in response.headers:
            raise JudgeUnavailable(f"{self.name} is a gateway of Instar, which would learn from being asked")
        if response.status != 200:
            raise JudgeUnavailable(f"{self.name} answers with status {response.status}{_reason(data)}")
        return _reply(data, self.name)

    def _session(self) -> aiohttp.ClientSession:
        if self._http is None:
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S)  # the caller has a deadline
            self._http = aiohttp.ClientSession(headers=self._headers, timeout=timeout)
        return self._http

    async def close(self) -> None:
        if self._http is not None:
            await self._http.close()
            self._http = None


class EngineAsker:
    """Our own engine, straight over its contract: untouched model, behind every chat, and never recorded."""

    def __init__(self, engine: Engine, chat: ChatFormat) -> None:
        self._engine, self._chat = engine, chat
        self.name = "our own untouched model"

    async def ask(self, messages: list[Message], *, seed: int, max_tokens: int) -> str:
        sampling = Sampling(max_tokens=max_tokens, temperature=TEMPERATURE, seed=seed)
        ids: list[int] = []
        try:
            prompt_ids = self._chat.encode_prompt(messages)
            answer = self._engine.sample(BASE, prompt_ids, sampling, priority=JUDGE_PRIORITY)
            async with aclosing(answer) as chunks:  # type: ignore[type-var]  # the client's is a generator
                async for chunk in chunks:
                    ids += chunk.ids
        except (EngineError, RequestError) as error:
            raise JudgeUnavailable(f"{self.name} does not answer: {error}") from error
        return self._chat.decode(ids)

    async def close(self) -> None:
        await self._engine.close()


async def _read(response: aiohttp.ClientResponse) -> bytes:
    data = b""
    async for piece in response.content.iter_any():
        data += piece
        if len(data) > MAX_BODY_BYTES:
            response.close()
            raise aiohttp.ClientPayloadError(f"more than {MAX_BODY_BYTES} bytes came")
    return data


def _reason(data: bytes) -> str:
    """The error message of an OpenAI-compatible server, short."""
    try:
        error = json.loads(data)["error"]
        message = error["message"] if isinstance(error, dict) else error
    except (ValueError, RecursionError, KeyError, TypeError):
        return ""
    return f": {' '.join(str(message).split())[:200]}"


def _reply(data: bytes, name: str) -> str:
    try:
        content: Any = json.loads(data)["choices"][0]["message"]["content"]
    except (ValueError, RecursionError, KeyError, IndexError, TypeError) as error:
        raise JudgeUnavailable(f"{name} does not answer like an OpenAI-compatible server") from error
    return content if isinstance(content, str) else ""
