"""Streams over HTTP, as a client sees them: when the first words came, how long each wait was, how many tokens."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from bench.stats import percentile

_TIMEOUT_S = 1800.0
Body = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where to ask: ours, vLLM, or the engine behind ours. `model` goes into every body."""

    name: str
    url: str
    key: str
    model: str
    path: str = "/v1/completions"


@dataclass(slots=True)
class Reply:
    """One streamed answer. Seconds; `gaps_s` are the waits between two pieces that held something."""

    first_s: float | None = None
    total_s: float = 0.0
    tokens: int = 0
    gaps_s: list[float] = field(default_factory=list)
    text: str = ""
    version: str | None = None
    turn: str | None = None
    finish_reason: str | None = None
    error: str | None = None


def session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        timeout=aiohttp.ClientTimeout(total=_TIMEOUT_S),
        read_bufsize=1 << 20,
    )


async def ask(
    http: aiohttp.ClientSession, to: Endpoint, body: Body, headers: dict[str, str] | None = None
) -> Reply:
    """Stream one answer to its end. What goes wrong is told in the reply."""
    reply, began = Reply(), time.perf_counter()
    whole = {"model": to.model, "stream": True, "stream_options": {"include_usage": True}, **body}
    sent = {"Authorization": f"Bearer {to.key}", **(headers or {})}
    try:
        async with http.post(to.url + to.path, json=whole, headers=sent) as response:
            if response.status != 200:
                reply.error = f"{response.status}: {(await response.text())[:300]}"
            else:
                reply.version = response.headers.get("x-instar-version")
                reply.turn = response.headers.get("x-instar-turn")
                await _read(response, reply, began)
    except (aiohttp.ClientError, TimeoutError, ConnectionError) as error:
        reply.error = f"{type(error).__name__}: {error}"
    reply.total_s = time.perf_counter() - began
    if reply.error is None and reply.finish_reason is None:
        reply.error = "the answer had no end"
    return reply


async def _read(response: aiohttp.ClientResponse, reply: Reply, began: float) -> None:
    last, pieces = began, 0
    async for event in _events(response):
        if "error" in event:
            reply.error = str(event["error"])[:300]
        if usage := event.get("usage"):
            reply.tokens = usage["completion_tokens"]
        for choice in event.get("choices") or []:
            reply.finish_reason = choice.get("finish_reason") or reply.finish_reason
            said = choice.get("text") or (choice.get("delta") or {}).get("content") or ""
            if not (said or choice.get("token_ids")):
                continue
            now = time.perf_counter()
            if reply.first_s is None:
                reply.first_s = now - began
            else:
                reply.gaps_s.append(now - last)
            last, pieces = now, pieces + 1
            reply.text += said
    reply.tokens = reply.tokens or pieces


async def _events(response: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any]]:
    async for line in response.content:
        if line.startswith(b"data:") and line[5:].strip() != b"[DONE]":
            yield json.loads(line[5:])


async def stream_block(
    to: Endpoint, streams: int, requests: int, body: Callable[[int], Body], **more: Any
) -> list[Reply]:
    """`streams` clients side by side, each with `requests` answers one after the other. `body` gets a number that no
    other request of the block has."""
    # made beforehand: to tokenise a text for one client would hold up what the others are about to read
    bodies = [[body(number * requests + turn) for turn in range(requests)] for number in range(streams)]
    async with session() as http:

        async def client(mine: list[Body]) -> list[Reply]:
            return [await ask(http, to, one, **more) for one in mine]

        return [reply for replies in await asyncio.gather(*map(client, bodies)) for reply in replies]


def block(to: Endpoint, streams: int, requests: int, body: Callable[[int], Body], **more: Any) -> list[Reply]:
    """`stream_block`, for callers without an event loop."""
    return asyncio.run(stream_block(to, streams, requests, body, **more))


def figures(replies: Sequence[Reply], streams: int) -> dict[str, float]:
    """Of one block. Tokens a second are those of one client, times clients: who ends early takes nothing away.

    Raises RuntimeError when a request failed: a figure beside failures would mean nothing.
    """
    failed = [reply.error for reply in replies if reply.error]
    if failed:
        raise RuntimeError(f"{len(failed)} of {len(replies)} requests failed: {failed[0]}")
    seconds = sum(reply.total_s for reply in replies)
    firsts = [reply.first_s for reply in replies if reply.first_s is not None]
    gaps = [gap for reply in replies for gap in reply.gaps_s] or [0.0]
    return {
        "tokens_per_s": round(streams * sum(reply.tokens for reply in replies) / seconds, 2),
        "first_ms": round(1_000 * percentile(firsts, 50), 2) if firsts else 0.0,
        "gap_p50_ms": round(1_000 * percentile(gaps, 50), 2),
        "gap_p95_ms": round(1_000 * percentile(gaps, 95), 2),
        "total_s": round(percentile([reply.total_s for reply in replies], 50), 4),
        "tokens": sum(reply.tokens for reply in replies),
    }
