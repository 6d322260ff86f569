"""HTTP by hand: what no client library would send, and connections that are held open."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

HANG_S = 60.0


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


async def connect(url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    parts = urlsplit(url)
    return await asyncio.open_connection(parts.hostname, parts.port)


async def read_answer(reader: asyncio.StreamReader) -> Answer:
    """One answer; its body by its length, in chunks, or up to the connection's end. Raises at an early end."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    status, *lines = head.split("\r\n")
    headers = {n.lower(): v.strip() for n, _, v in (line.partition(":") for line in lines if line)}
    if "content-length" in headers:
        body = await reader.readexactly(int(headers["content-length"]))
    elif headers.get("transfer-encoding") == "chunked":
        body = b""
        while size := int(await reader.readline(), 16):
            body += (await reader.readexactly(size + 2))[:-2]
        await reader.readline()
    else:
        body = await reader.read()
    return Answer(int(status.split()[1]), headers, body)


async def exchange(url: str, sent: bytes) -> Answer:
    """Send these bytes on a connection of their own and read the answer, however it is received."""
    reader, writer = await connect(url)
    try:
        async with asyncio.timeout(HANG_S):
            writing = asyncio.ensure_future(_send(writer, sent))
            try:
                return await read_answer(reader)
            finally:
                writing.cancel()
    finally:
        writer.transport.abort()


async def _send(writer: asyncio.StreamWriter, sent: bytes) -> None:
    writer.write(sent)
    await writer.drain()


async def is_closed(reader: asyncio.StreamReader) -> bool:
    """True once the server has closed; reads over what it said last."""
    try:
        return await asyncio.wait_for(reader.read(), HANG_S) is not None
    except ConnectionError:
        return True
    except TimeoutError:
        return False


def head_of(method: str, path: str, key: str, *lines: str) -> bytes:
    """A request's head for this key, with more header lines."""
    first = [f"{method} {path} HTTP/1.1", "host: test", f"authorization: Bearer {key}", *lines]
    return "\r\n".join([*first, "", ""]).encode("latin-1")
