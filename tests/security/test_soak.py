"""The long ones, on a server as a person starts it: `make soak-protocol`. Each prints what it measured."""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from tests.kit import process_facts, wire
from tests.kit.bare_server import bare_server
from tests.kit.live_server import Server, running_server
from tests.kit.tiny_model import write_tiny_model

pytestmark = [
    pytest.mark.soak,
    pytest.mark.protocol,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
]

HI = [{"role": "user", "content": "hi"}]
MINUTES = float(os.environ.get("SOAK_MINUTES", "30"))
"""How long the overload lasts."""


def client(server: Server, **more: object) -> httpx.AsyncClient:
    headers = {"authorization": f"Bearer {server.key}"}
    limits = httpx.Limits(max_connections=None)
    return httpx.AsyncClient(
        base_url=server.url, headers=headers, timeout=60, trust_env=False, limits=limits, **more
    )  # type: ignore[arg-type]


async def ask(http: httpx.AsyncClient, **more: object) -> httpx.Response:
    body = {"model": "instar", "messages": HI, "max_tokens": 8, **more}
    return await http.post("/v1/chat/completions", json=body)


async def latencies(http: httpx.AsyncClient, over: Callable[[], bool]) -> list[float]:
    found = []
    while not over():
        began = time.monotonic()
        assert (await ask(http)).status_code == 200
        found.append(time.monotonic() - began)
        await asyncio.sleep(0.05)
    return found


def figures(seconds: list[float]) -> str:
    cuts = statistics.quantiles(seconds, n=100)
    return f"{len(seconds)} answers, p50 {cuts[49] * 1e3:.1f} ms, p99 {cuts[98] * 1e3:.1f} ms"


async def slow_socket(server: Server, number: int) -> float:
    """Says a byte now and then until it is closed. Returns how long that took."""
    reader, writer = await wire.connect(server.url)
    began = time.monotonic()
    announced = ("content-type: application/json", "content-length: 1000")
    starts = [
        b"",
        b"GET /v1/models HTTP/1.1\r\nx-a: ",
        wire.head_of("POST", "/v1/chat/completions", server.key, *announced),
        wire.head_of("POST", "/v1/chat/completions", "wrong", *announced),
    ]
    writer.write(starts[number % len(starts)])
    closed = asyncio.ensure_future(reader.read())
    while not closed.done():
        with suppress(ConnectionError):
            writer.write(b" ")
            await writer.drain()
        await asyncio.wait({closed}, timeout=1.0)
        if time.monotonic() - began > 60:
            break
    with suppress(ConnectionError):
        await closed
    writer.transport.abort()
    return time.monotonic() - began


def test_five_hundred_slow_sockets_are_closed_in_fifteen_seconds(tmp_path: Path) -> None:
    async def main(server: Server) -> None:
        async with client(server) as http:
            before = await latencies(http, _for(5))
            sockets = [asyncio.create_task(slow_socket(server, number)) for number in range(500)]
            during = await latencies(http, lambda: all(s.done() for s in sockets))
            took = [await socket for socket in sockets]
            print(
                f"slowest socket closed after {max(took):.1f} s; before {figures(before)}; during {figures(during)}"
            )
            assert max(took) <= 15

    with bare_server(tmp_path) as server:
        asyncio.run(main(server))


def _for(seconds: float) -> Callable[[], bool]:
    end = time.monotonic() + seconds
    return lambda: time.monotonic() > end


async def _opened(server: Server) -> asyncio.StreamWriter | None:
    with suppress(OSError, TimeoutError):
        return (await asyncio.wait_for(wire.connect(server.url), 30))[1]
    return None


def test_thousand_connections_at_256_descriptors(tmp_path: Path) -> None:
    async def main(server: Server) -> None:
        opened = [await _opened(server) for _ in range(1_000)]
        async with client(server) as http:
            statuses = Counter([(await ask(http)).status_code for _ in range(20)])
            busy = await _statuses([lambda: ask(http, stream=True)] * 1_000)
            print(
                f"{sum(w is not None for w in opened)} of 1,000 opened; beside them {statuses}; at once {busy}"
            )
            assert statuses == {200: 20}
            assert busy[200] > 0
            assert not {status for status in busy if status >= 500} - {503}
            for writer in opened:
                if writer is not None:
                    writer.close()
            await asyncio.sleep(12)
            assert Counter([(await ask(http)).status_code for _ in range(20)]) == {200: 20}

    with bare_server(tmp_path, files=256) as server:
        pids = {loop: server.pid(loop) for loop in ("gateway", "engine")}
        asyncio.run(main(server))
        assert {loop: server.pid(loop) for loop in pids} == pids, "none of them died"
        assert server.stop() == 0


async def _statuses(asking: list[Callable[[], Awaitable[httpx.Response]]]) -> Counter[int]:
    """How often each status came; 0 for a connection that was refused or broken."""

    async def status(one: Callable[[], Awaitable[httpx.Response]]) -> int:
        try:
            return (await one()).status_code
        except httpx.HTTPError:
            return 0

    return Counter(await asyncio.gather(*map(status, asking)))


def test_ten_thousand_requests_leave_no_descriptor(tmp_path: Path) -> None:
    async def burst(server: Server, count: int) -> None:
        async with client(server) as http:
            for start in range(0, count, 20):
                kinds = [{"stream": bool(n % 2), **({"n": 99} if n % 10 == 0 else {})} for n in range(20)]
                await asyncio.gather(*(ask(http, **kind) for kind in kinds))
                if start % 1_000 == 0:  # some leave in the middle
                    leaving = [asyncio.create_task(ask(http, stream=True)) for _ in range(10)]
                    await asyncio.sleep(0.01)
                    for task in leaving:
                        task.cancel()
                    await asyncio.gather(*leaving, return_exceptions=True)

    with bare_server(tmp_path) as server:
        pids = {loop: server.pid(loop) for loop in ("gateway", "engine")}
        asyncio.run(burst(server, 500))
        time.sleep(6)
        before = {loop: process_facts.descriptors(pid) for loop, pid in pids.items()}
        asyncio.run(burst(server, 10_000))
        time.sleep(6)
        after = {loop: process_facts.descriptors(pid) for loop, pid in pids.items()}
        print(f"descriptors before {before}, after 10,000 requests {after}")
        assert all(after[loop] <= before[loop] for loop in pids)


def test_overload_is_refused_at_once_and_memory_stays(tmp_path: Path) -> None:
    refusals: list[float] = []

    async def press(http: httpx.AsyncClient, over: Callable[[], bool]) -> Counter[int]:
        seen: Counter[int] = Counter()
        while not over():
            began = time.monotonic()
            answer = await ask(http, messages=[{"role": "user", "content": "x" * 200}])
            seen[answer.status_code] += 1
            if answer.status_code == 429:
                assert int(answer.headers["retry-after"]) >= 1
                refusals.append(time.monotonic() - began)
                await asyncio.sleep(0.2)  # more than we ask for, less than a client that heeds Retry-After
        return seen

    async def main(server: Server, minutes: float) -> Counter[int]:
        async with client(server) as http:
            clients = [press(http, _for(minutes * 60)) for _ in range(32)]
            return sum(await asyncio.gather(*clients), Counter())

    few = ["--set", "engine.max_streams=2", "--set", "engine.max_waiting=4"]
    with bare_server(tmp_path, *few, token_s=0.02) as server:
        pid = server.pid("gateway")
        asyncio.run(main(server, min(2.0, MINUTES / 3)))
        refusals.clear()
        before = process_facts.resident_bytes(pid)
        seen = asyncio.run(main(server, MINUTES))
        after = process_facts.resident_bytes(pid)
        grown = after / before - 1
        print(f"{seen}; refusals: {figures(refusals)}; memory {before / 2**20:.0f} MiB, {grown:+.1%}")
        assert set(seen) == {200, 429}
        assert grown <= 0.10


def test_two_hundred_cancelled_requests_are_never_learned_from(tmp_path: Path) -> None:
    """Before the embedded engine: the cancelling reaches the sampling, and the next answer starts at once."""

    async def main(server: Server) -> None:
        async with client(server) as http:
            await ask(http)
            for start in range(0, 200, 20):
                asking = [
                    asyncio.create_task(ask(http, stream=bool(n % 2), max_tokens=400)) for n in range(20)
                ]
                await asyncio.sleep(0.05 * (1 + start % 40 / 20))
                for task in asking:
                    task.cancel()
                await asyncio.gather(*asking, return_exceptions=True)
            began = time.monotonic()
            assert (await ask(http)).status_code == 200
            took = time.monotonic() - began
            turns = (await http.get("/v1/turns", params={"limit": 1_000})).json()["data"]
            statuses = Counter((turn["status"], turn["reason"]) for turn in turns)
            print(f"the next answer took {took:.2f} s after 200 cancelled ones; turns {dict(statuses)}")
            assert took < 5
            left = [turn for turn in turns if turn["status"] != "done"]
            assert len(left) > 100
            assert {(turn["status"], turn["reason"], turn["learned"]) for turn in left} == {
                ("cancelled", "cancelled", False)
            }

    model = write_tiny_model(tmp_path / "model")
    with running_server(tmp_path / "data", "--model", str(model)) as server:
        asyncio.run(main(server))
