"""How many requests are worked on at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from fastapi.routing import APIRoute
from starlette.types import Receive, Scope, Send

from instar.errors import Overloaded


@dataclass(slots=True)
class WaitingRoom:
    """Holds as many answers as may be sampled or wait to be; who comes later is told so at once.

    Nothing was read of a request that is turned away, and nothing is recorded of it.
    """

    places: int
    taken: int = field(default=0, init=False)

    @contextmanager
    def place(self) -> Iterator[None]:
        """Raises Overloaded (429) when all places are taken."""
        if self.taken >= self.places:
            raise Overloaded(
                f"{self.places} requests are being answered or wait already (settings engine.max_streams and "
                "engine.max_waiting). Try again in a moment."
            )
        self.taken += 1
        try:
            yield
        finally:
            self.taken -= 1


class CountedRoute(APIRoute):
    """A route that takes much: each request has a place in the `WaitingRoom` until its last byte is sent.

    The room is at `app.state.waiting_room`.
    """

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        room: WaitingRoom = scope["app"].state.waiting_room
        with room.place():
            await super().handle(scope, receive, send)


class AnsweringRoute(CountedRoute):
    """A route that samples answers. `openapi.add_answering` adds such routes."""
