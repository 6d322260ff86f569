"""A loop says that it lives, and since when it has been doing what."""

from __future__ import annotations

import threading
from typing import Any, Protocol

import structlog

from instar.errors import StoreError
from instar.runtime import Clock

log = structlog.get_logger()

INTERVAL_S = 2.0


class Beats(Protocol):
    """The part of the store that a heartbeat needs."""

    def heartbeat(self, loop: str, state: dict[str, Any]) -> None: ...


class Heartbeat:
    """Beats every `interval_s` from a thread of its own, so that long work does not look like death.

    `doing` and `since` (wall seconds) tell long work from work that hangs: the thread lives on in both.
    """

    def __init__(self, store: Beats, loop: str, clock: Clock, interval_s: float = INTERVAL_S) -> None:
        self._store = store
        self._loop = loop
        self._clock = clock
        self._interval_s = interval_s
        self._state: dict[str, Any] = {"doing": "starting", "since": clock.now()}
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name=f"heartbeat-{loop}", daemon=True)

    def __enter__(self) -> Heartbeat:
        self.beat()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(timeout=self._interval_s)
        self.say("stopped")
        self.beat()

    def say(self, doing: str, **facts: Any) -> None:
        """Change what the next beats tell; facts stay until they are said anew."""
        with self._lock:
            if doing != self._state["doing"]:
                self._state["since"] = self._clock.now()
            self._state = {**self._state, **facts, "doing": doing}

    def beat(self) -> None:
        """Beat now. A busy database costs one beat, never the loop."""
        with self._lock:
            state = dict(self._state)
        try:
            self._store.heartbeat(self._loop, state)
        except StoreError as error:
            log.warning("heartbeat_lost", loop=self._loop, error=str(error))

    def _run(self) -> None:
        while not self._over.wait(self._interval_s):
            self.beat()
