"""A stream's source is closed at every end, also at one before the first event."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from instar.gateway.sse import EventStream


class Source:
    def __init__(self) -> None:
        self.closed = 0

    async def aclose(self) -> None:
        self.closed += 1


async def events() -> AsyncGenerator[bytes, None]:
    yield b"one"
    await asyncio.Event().wait()


async def nobody_leaves() -> Any:
    await asyncio.Event().wait()


async def everybody_has_left() -> Any:
    return {"type": "http.disconnect"}


def stream(source: Source) -> EventStream:
    return EventStream(source, events(), {}, ping=lambda: b"ping", ping_s=60)


async def test_source_is_closed_when_the_first_byte_cannot_be_sent() -> None:
    async def broken(message: Any) -> None:
        raise ConnectionError

    source = Source()
    with pytest.raises(ConnectionError):
        await stream(source)({}, nobody_leaves, broken)
    assert source.closed == 1


async def test_source_is_closed_when_the_client_has_left_before_the_first_event() -> None:
    async def never(message: Any) -> None:
        await asyncio.Event().wait()

    source = Source()
    await asyncio.wait_for(stream(source)({}, everybody_has_left, never), 10)
    assert source.closed == 1


async def test_source_is_closed_when_the_answer_is_cancelled() -> None:
    begun = asyncio.Event()

    async def takes(message: Any) -> None:
        begun.set()

    source = Source()
    answering = asyncio.create_task(stream(source)({}, nobody_leaves, takes))
    await begun.wait()
    answering.cancel()
    await asyncio.gather(answering, return_exceptions=True)
    assert source.closed == 1
