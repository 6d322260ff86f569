"""The embedded engine for long, on a server as a person starts it: `make soak-engine`. Each prints what it measured.

What takes a time is printed, not asserted, but for the seconds until the next answer after many cancelled ones.
`SOAK_MINUTES` is how long the last one takes, `SOAK_SWAPS` how often the first one swaps.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from bench.serving.houses import Texts, pss_bytes, publish, tree, young_adapter
from bench.serving.load import Endpoint, Reply, ask, session
from bench.stats import percentile

from instar.config import models_dir
from instar.engines.starter import ensure_model
from instar.store import open_store
from tests.kit.live_server import Server, running_server

pytestmark = [
    pytest.mark.soak,
    pytest.mark.engine,
    pytest.mark.model,
    pytest.mark.timeout(7200),
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
]

MINUTES = float(os.environ.get("SOAK_MINUTES", "30"))
SWAPS = int(os.environ.get("SOAK_SWAPS", "100"))
STREAMS, VERSIONS = 32, 3
QUIET = ["--set", "train.enabled=false", "--set", "judge.chain=explicit"]


@pytest.fixture(scope="module")
def model() -> Path:
    return ensure_model("starter", models_dir())


@contextlib.contextmanager
def serving(folder: Path, *settings: str) -> Iterator[Server]:
    options = [word for setting in settings for word in ("--set", setting)]
    with running_server(folder / "data", *QUIET, *options) as server:
        yield server


def endpoint(server: Server) -> Endpoint:
    return Endpoint("ours", server.url, server.key, "instar", "/v1/chat/completions")


def body(text: str, tokens: int) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], "max_tokens": tokens, "temperature": 0.7}


async def clients(
    to: Endpoint, count: int, over: Callable[[], bool], texts: Texts, tokens: int, length: int = 30
) -> list[Reply]:
    """Each asks again and again, in sessions of its own."""
    async with session() as http:

        async def one() -> list[Reply]:
            found = []
            while not over():
                found.append(await ask(http, to, body(texts.of(length), tokens)))
            return found

        return [
            reply for replies in await asyncio.gather(*(one() for _ in range(count))) for reply in replies
        ]


def after(seconds: float) -> Callable[[], bool]:
    end = time.monotonic() + seconds
    return lambda: time.monotonic() > end


def p99_ms(replies: list[Reply]) -> float:
    return 1_000 * percentile([gap for reply in replies for gap in reply.gaps_s], 99)


def turns_of(server: Server) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    before = ""
    while page := server.get(f"/v1/turns?limit=500{before}")["data"]:
        found.update((turn["id"], turn) for turn in page)
        before = f"&before={page[-1]['id']}"
    return found


async def swaps(server: Server, count: int) -> None:
    """By hand and as the trainer does it, in turns; the next one comes once this one serves."""
    url = f"sqlite:///{server.data_dir / 'instar.db'}"
    with contextlib.closing(open_store(url)) as store, server.http as http:
        for number in range(count):
            version = f"v{1 + number % VERSIONS}"
            if number % 2:
                asked = await asyncio.to_thread(http.post, f"/v1/versions/{version}/activate")
                assert asked.status_code == 200, asked.text
            else:
                await asyncio.to_thread(store.activate, version, "soak")
            said: Callable[[Any], bool] = lambda status, v=version: status["served_version"] == v  # noqa: E731
            await asyncio.to_thread(server.until, "/v1/status", said)
            await asyncio.sleep(0.3)


def test_hundred_swaps_under_32_streams_fail_nothing(tmp_path: Path, model: Path) -> None:
    adapter, texts = young_adapter(model, tmp_path / "adapter"), Texts(model)

    async def main(server: Server) -> tuple[list[Reply], list[Reply]]:
        to = endpoint(server)
        before = await clients(to, STREAMS, after(min(60.0, 2.0 * SWAPS)), texts, 48)
        swapping = asyncio.create_task(swaps(server, SWAPS))
        during = await clients(to, STREAMS, swapping.done, texts, 48)
        await swapping
        return before, during

    room = ["engine.max_streams=32", "engine.prewarm_s=1"]  # 32 streams leave no idle time to wait for
    with serving(tmp_path, *room) as server:
        for number in range(1, VERSIONS + 1):
            publish(server.data_dir, model, adapter, f"v{number}")
        before, during = asyncio.run(main(server))
        turns = turns_of(server)
    errors = Counter(reply.error for reply in (*before, *during) if reply.error)
    served = Counter(reply.version for reply in during)
    ratio = p99_ms(during) / p99_ms(before)
    print(
        f"{SWAPS} swaps, {len(during)} answers, failed {dict(errors)}; by version {dict(served)}; p99 gap "
        f"{p99_ms(before):.0f} ms before, {p99_ms(during):.0f} ms during: {ratio:.2f} (to reach: below 2)"
    )
    assert not errors
    assert set(served) == {f"v{number}" for number in range(1, VERSIONS + 1)} | ({"base"} & set(served))
    told = {reply.turn: reply.version for reply in (*before, *during)}
    assert {name: turns[name or ""]["version"] for name in told} == told
    assert {turns[name or ""]["status"] for name in told} == {"done"}


def test_two_hundred_cancelled_requests_leave_the_engine_free(tmp_path: Path, model: Path) -> None:
    """Some are still waiting, some in the middle of a long prompt, some of an answer."""
    texts = Texts(model)

    async def main(server: Server) -> float:
        to = endpoint(server)
        async with session() as http:
            assert (await ask(http, to, body(texts.of(30), 8))).error is None
            for start in range(0, 200, 20):
                lengths = [1_500 if number % 4 == 0 else 60 for number in range(20)]
                asking = [asyncio.create_task(ask(http, to, body(texts.of(n), 400))) for n in lengths]
                await asyncio.sleep(0.2 + start / 100)
                for task in asking:
                    task.cancel()
                await asyncio.gather(*asking, return_exceptions=True)
            reply = await ask(http, to, body("How do tides work?", 8))
            assert reply.error is None
            assert reply.first_s is not None
            return reply.first_s

    with serving(tmp_path) as server:
        first_s = asyncio.run(main(server))
        fates = Counter((turn["status"], turn["reason"]) for turn in turns_of(server).values())
    print(f"the next answer began {first_s:.2f} s after 200 cancelled ones; turns {dict(fates)}")
    assert first_s < 5
    assert {fate for fate in fates if fate[0] != "done"} == {("cancelled", "cancelled")}
    assert fates["cancelled", "cancelled"] > 100


def _pss(server: Server) -> int:
    return sum(pss_bytes(one.pid) for one in tree(server.process.pid))


def test_memory_stays_while_sessions_come_and_go(tmp_path: Path, model: Path) -> None:
    """Prompts of many lengths, so that kept conversations, slots and buffers are all used."""
    texts, sizes = Texts(model), list[int]()

    async def main(server: Server) -> list[Reply]:
        to = endpoint(server)
        warm = await clients(to, 4, after(60 * min(3.0, MINUTES / 3)), texts, 48, length=1_200)
        over = after(60 * MINUTES)

        async def watch() -> None:
            while not over():
                sizes.append(await asyncio.to_thread(_pss, server))
                await asyncio.sleep(5)

        mixed = [clients(to, 2, over, texts, 48, length=length) for length in (40, 1_200)]
        *found, _ = await asyncio.gather(*mixed, watch())
        return [reply for replies in (warm, *found) for reply in replies]

    with serving(tmp_path) as server:
        replies = asyncio.run(main(server))
    errors = Counter(reply.error for reply in replies if reply.error)
    third = max(1, len(sizes) // 3)
    early, late = statistics.median(sizes[:third]), statistics.median(sizes[-third:])
    print(
        f"{len(replies)} answers in {MINUTES:g} minutes, failed {dict(errors)}; memory "
        f"{early / 2**20:.0f} MiB at first, {late / 2**20:.0f} MiB at last: {late / early - 1:+.1%}"
    )
    assert not errors
    assert late <= 1.10 * early
