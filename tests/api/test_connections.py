"""What a connection may not do: be slow without end, crowd others out, or stop the server by either."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from instar.gateway.connection import Limits
from instar.gateway.server import connections_for
from tests.kit import wire
from tests.kit.live_gateway import KEY, Live, live_gateway

QUICK = Limits(connections=24, head_s=1.0, body_bytes_per_s=20_000, linger_s=0.3, stalled_s=0.5)
ASK = json.dumps({"model": "instar", "messages": [{"role": "user", "content": "hi"}]}).encode()
STREAM = ASK[:-1] + b', "stream": true}'


@pytest.fixture
async def live(tmp_path: Path) -> AsyncIterator[Live]:
    async with live_gateway(tmp_path, limits=QUICK) as live:
        yield live


def post(*lines: str) -> bytes:
    return wire.head_of("POST", "/v1/chat/completions", KEY, "content-type: application/json", *lines)


def whole(body: bytes) -> bytes:
    return post(f"content-length: {len(body)}") + body


async def trickle(writer: asyncio.StreamWriter, text: bytes, pause_s: float = 0.05) -> None:
    """Send byte after byte until the server has enough."""
    with suppress(ConnectionError):
        for number in range(len(text)):
            writer.write(text[number : number + 1])
            await writer.drain()
            await asyncio.sleep(pause_s)


ENDLESS_HEAD = b"GET /v1/models HTTP/1.1\r\nx-a: " + b"y" * 1_000
ENDLESS_BODY = post("content-length: 1000") + b" " * 900


async def test_heads_and_bodies_that_never_end_are_closed_while_others_are_answered(live: Live) -> None:
    begun = ENDLESS_BODY[: -len(b" " * 900)]
    sockets = [await wire.connect(live.url) for _ in range(20)]
    for number, (_, writer) in enumerate(sockets):
        writer.write(begun if number % 2 else ENDLESS_HEAD[:30])
    senders = [
        asyncio.create_task(trickle(writer, b" " * 900 if number % 2 else b"y" * 900))
        for number, (_, writer) in enumerate(sockets)
    ]
    for _ in range(5):
        assert (await live.ask("hi")).status_code == 200
    answers = [await asyncio.wait_for(wire.read_answer(reader), wire.HANG_S) for reader, _ in sockets]
    assert [answer.status for answer in answers] == [408] * 20
    assert all(answer.json()["error"]["code"] == "request_timeout" for answer in answers)
    assert all([await wire.is_closed(reader) for reader, _ in sockets])
    for sender in senders:
        sender.cancel()


async def test_connection_that_says_nothing_is_closed(live: Live) -> None:
    reader, writer = await wire.connect(live.url)
    assert await wire.is_closed(reader)
    writer.close()


@pytest.mark.parametrize("rest", [b"GET /v1/mod", b"\r\n" * 200, b"\n" * 200], ids=["head", "lines", "feeds"])
async def test_trickle_behind_an_answer_is_closed_too(live: Live, rest: bytes) -> None:
    """At its first byte uvicorn forgets its own limit for idle connections."""
    reader, writer = await wire.connect(live.url)
    writer.write(whole(ASK))
    assert (await wire.read_answer(reader)).status == 200
    sending = asyncio.create_task(trickle(writer, rest * 40, 0.02))
    assert await wire.is_closed(reader)
    sending.cancel()


async def test_slow_but_steady_upload_is_taken(live: Live) -> None:
    """It takes twice what a head may: a body's time grows with what has come."""
    reader, writer = await wire.connect(live.url)
    body = ASK[:-1] + b" " * 60_000 + b"}"
    writer.write(post(f"content-length: {len(body)}"))
    for start in range(0, len(body), 2_000):
        writer.write(body[start : start + 2_000])
        await writer.drain()
        await asyncio.sleep(0.07)
    assert (await asyncio.wait_for(wire.read_answer(reader), wire.HANG_S)).status == 200


@pytest.mark.parametrize("announced", [True, False])
async def test_refusal_of_a_body_is_read_and_the_rest_is_not_awaited(live: Live, announced: bool) -> None:
    reader, writer = await wire.connect(live.url)
    part = b" " * 100_000
    chunk = b"%x\r\n%s\r\n" % (len(part), part)
    writer.write(post("content-length: 1000000000" if announced else "transfer-encoding: chunked"))

    async def send() -> None:
        while True:
            writer.write(part if announced else chunk)
            await writer.drain()

    sending = asyncio.create_task(send())
    answer = await asyncio.wait_for(wire.read_answer(reader), wire.HANG_S)
    assert answer.status == 413
    assert answer.json()["error"]["code"] == "request_too_large"
    assert await wire.is_closed(reader)
    sending.cancel()
    with suppress(ConnectionError, asyncio.CancelledError):
        await sending


async def test_announced_body_is_refused_before_any_of_it_comes(live: Live) -> None:
    answer = await wire.exchange(live.url, post("content-length: 1000000000"))
    assert (answer.status, answer.json()["error"]["code"]) == (413, "request_too_large")


async def test_upload_that_was_granted_long_has_no_long_time_left_when_refused(tmp_path: Path) -> None:
    patient = Limits(head_s=0.3, body_bytes_per_s=10, linger_s=0.3)
    async with live_gateway(tmp_path, limits=patient, max_body_bytes=100_000) as live:
        reader, writer = await wire.connect(live.url)
        writer.write(post("transfer-encoding: chunked"))
        part = b"4e20\r\n" + b" " * 20_000 + b"\r\n"
        for _ in range(6):  # by the last one it has been granted half an hour
            writer.write(part)
            await asyncio.sleep(0.15)
        assert (await asyncio.wait_for(wire.read_answer(reader), wire.HANG_S)).status == 413
        sending = asyncio.create_task(trickle(writer, b"1\r\n \r\n" * 500, 0.02))
        assert await wire.is_closed(reader)
        sending.cancel()


async def test_stream_that_nobody_reads_is_given_up(tmp_path: Path) -> None:
    async with live_gateway(tmp_path, lambda *_: "a" * 7_000, context_length=8_192, limits=QUICK) as live:
        live.engine.gate = asyncio.Event()
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)  # else the kernel takes it all
            client.connect(("127.0.0.1", int(live.url.rpartition(":")[2])))
            client.sendall(whole(STREAM[:-1] + b', "max_tokens": 7000}'))
            while not live.engine.sampling:
                await asyncio.sleep(0.01)
            for connection in live.server.server_state.connections:
                served = connection.transport.get_extra_info("socket")
                served.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)
            live.engine.gate.set()
            async with asyncio.timeout(wire.HANG_S):
                while (turn := (await live.turns())[0])["status"] == "open":
                    await asyncio.sleep(0.05)
        assert turn["status"] == "cancelled"
        assert live.engine.sampling == 0


async def test_waiting_connections_make_room_and_answers_under_way_do_not(live: Live) -> None:
    live.engine.gate = asyncio.Event()
    answering = [await wire.connect(live.url) for _ in range(4)]
    for _, writer in answering:
        writer.write(whole(STREAM))
    for reader, _ in answering:
        await reader.readuntil(b'"content": "a"')
    waiting = [await wire.connect(live.url) for _ in range(3 * QUICK.connections)]
    one_more = await wire.exchange(live.url, wire.head_of("GET", "/health", KEY))
    assert one_more.status == 200
    live.engine.gate.set()
    for reader, _ in answering:
        rest = await asyncio.wait_for(reader.readuntil(b"data: [DONE]"), wire.HANG_S)
        assert b'"finish_reason": "stop"' in rest
    for _, writer in [*waiting, *answering]:
        writer.close()


async def test_one_more_than_all_under_way_is_told_to_come_again(live: Live) -> None:
    live.engine.gate = asyncio.Event()
    await live.http.aclose()  # its connection would make room
    answering = [await wire.connect(live.url) for _ in range(QUICK.connections)]
    for _, writer in answering:
        writer.write(whole(STREAM))
    for reader, _ in answering:
        await reader.readuntil(b'"content": "a"')
    reader, _ = await wire.connect(live.url)
    answer = await asyncio.wait_for(wire.read_answer(reader), wire.HANG_S)
    assert (answer.status, answer.headers["retry-after"]) == (503, "1")
    assert answer.json()["error"]["code"] == "too_many_connections"
    live.engine.gate.set()
    for reader, writer in answering:
        await asyncio.wait_for(reader.readuntil(b"data: [DONE]"), wire.HANG_S)
        writer.close()


async def test_request_behind_a_long_answer_waits_for_it_without_being_late(tmp_path: Path) -> None:
    """Nor is it taken for the rest of a body that was refused."""
    async with live_gateway(tmp_path, limits=Limits(head_s=1.0, linger_s=0.1)) as live:
        live.engine.gate = asyncio.Event()
        reader, writer = await wire.connect(live.url)
        half = len(whole(ASK)) // 2
        writer.write(whole(ASK) + whole(ASK)[:half])
        await asyncio.sleep(1.2)
        live.engine.gate.set()
        assert (await asyncio.wait_for(wire.read_answer(reader), wire.HANG_S)).status == 200
        await asyncio.sleep(0.3)
        writer.write(whole(ASK)[half:])
        assert (await asyncio.wait_for(wire.read_answer(reader), wire.HANG_S)).status == 200
        writer.close()


async def test_unfinished_request_behind_others_waits_until_it_is_its_turn(tmp_path: Path) -> None:
    """Three at once: the third may not end the second, which is under way when it grows old."""
    async with live_gateway(tmp_path, limits=Limits(head_s=0.5, linger_s=0.1)) as live:
        live.engine.gate = asyncio.Event()
        reader, writer = await wire.connect(live.url)
        writer.write(whole(STREAM) + whole(ASK) + post("content-length: 1000"))
        await reader.readuntil(b'"content": "a"')
        live.engine.prefill = asyncio.Event()  # for the second
        live.engine.gate.set()
        await asyncio.wait_for(reader.readuntil(b"0\r\n\r\n"), wire.HANG_S)
        await asyncio.sleep(1.0)
        live.engine.prefill.set()
        assert (await asyncio.wait_for(wire.read_answer(reader), wire.HANG_S)).status == 200
        assert (await asyncio.wait_for(wire.read_answer(reader), wire.HANG_S)).status == 408
        writer.close()


async def test_body_that_never_comes_behind_an_answer_is_not_awaited(live: Live) -> None:
    """Its head came in one piece, so no later byte could start the clock; its place would be held for ever."""
    reader, writer = await wire.connect(live.url)
    writer.write(whole(ASK))
    assert (await wire.read_answer(reader)).status == 200
    writer.write(post("content-length: 1000"))
    answer = await asyncio.wait_for(wire.read_answer(reader), 15)
    assert (answer.status, answer.json()["error"]["code"]) == (408, "request_timeout")
    assert await wire.is_closed(reader)
    while live.app.state.waiting_room.taken:
        await asyncio.sleep(0.02)
    writer.close()


@pytest.mark.parametrize("stream", [False, True])
async def test_client_that_had_sent_two_requests_and_leaves_cancels_the_first(
    live: Live, stream: bool
) -> None:
    live.engine.gate = asyncio.Event()
    _, writer = await wire.connect(live.url)
    writer.write(whole(STREAM if stream else ASK) + whole(ASK))
    while not live.engine.sampling:
        await asyncio.sleep(0.01)
    writer.transport.abort()
    async with asyncio.timeout(15):
        while (turns := await live.turns())[0]["status"] == "open":
            await asyncio.sleep(0.02)
    assert [turn["status"] for turn in turns] == ["cancelled"], "and the second was never begun"
    assert live.engine.sampling == 0


async def test_time_of_a_head_begins_with_its_first_byte(tmp_path: Path) -> None:
    async with live_gateway(tmp_path, limits=Limits(head_s=1.2)) as live:
        reader, writer = await wire.connect(live.url)
        await asyncio.sleep(0.7)
        writer.write(whole(ASK)[:20])
        await asyncio.sleep(0.7)
        writer.write(whole(ASK)[20:])
        assert (await asyncio.wait_for(wire.read_answer(reader), wire.HANG_S)).status == 200
        writer.close()


ENDLESS = {
    "a head": b"GET /v1/models HTTP/1.1\r\nx-a: ",
    "trailers": post("transfer-encoding: chunked") + b"0\r\nx-a: ",
    "an extension": post("transfer-encoding: chunked") + b"1;x=",
    "a second head": whole(ASK) + b"GET /v1/models HTTP/1.1\r\nx-a: ",
}


@pytest.mark.parametrize("begun", ENDLESS.values(), ids=ENDLESS)
async def test_headers_without_an_end_are_refused_at_64_kib(tmp_path: Path, begun: bytes) -> None:
    patient = Limits(head_s=1_000)
    async with live_gateway(tmp_path, limits=patient) as live:
        reader, writer = await wire.connect(live.url)
        writer.write(begun)
        if begun.startswith(whole(ASK)):
            assert (await wire.read_answer(reader)).status == 200
        sending = asyncio.create_task(trickle(writer, b"y" * 80, 0.0))
        writer.write(b"y" * 70_000)
        answer = await asyncio.wait_for(wire.read_answer(reader), wire.HANG_S)
        assert (answer.status, answer.json()["error"]["code"]) == (431, "headers_too_large")
        sending.cancel()
        writer.transport.abort()


async def test_whole_head_that_comes_at_once_is_measured_too(live: Live) -> None:
    head = wire.head_of("GET", "/v1/models", KEY, "x-a: " + "y" * 70_000)
    [connection] = await _connected(live)
    connection.data_received(head)  # as one piece, whatever the kernel makes of it
    assert connection._refused
    assert connection.cycle is None, "nobody was asked"


async def _connected(live: Live) -> list[Any]:
    """The server's side of a connection that says nothing yet."""
    before = set(live.server.server_state.connections)
    await wire.connect(live.url)
    while not (new := set(live.server.server_state.connections) - before):
        await asyncio.sleep(0.01)
    return list(new)


@pytest.mark.parametrize("rest", [b"GET /v1/models HTTP/1.1\r\nx-a: " + b"y" * 99_000, b"no HTTP\r\n"])
async def test_refusal_is_not_put_into_the_answer_that_is_under_way(live: Live, rest: bytes) -> None:
    live.engine.gate = asyncio.Event()
    reader, writer = await wire.connect(live.url)
    writer.write(whole(STREAM))
    await reader.readuntil(b'"content": "a"')
    writer.write(rest)
    assert b"HTTP/1.1" not in await asyncio.wait_for(reader.read(), wire.HANG_S)
    assert (await live.ask("hi", max_tokens=1)).status_code == 200
    writer.close()


@pytest.mark.parametrize(("files", "clients"), [(256, 96), (1_024, 480), (10**6, 4_096), (10, 8)])
def test_clients_that_descriptors_are_enough_for(files: int, clients: int) -> None:
    """Each client's answer needs a second one, to the engine."""
    assert connections_for(files) == clients
