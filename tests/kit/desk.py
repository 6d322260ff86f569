"""The turn pipeline without HTTP: requests in, answers as a test words them, turns in a real store."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from instar.chat_format import ChatFormat
from instar.errors import EngineError
from instar.flow.conversation import context_hash
from instar.flow.exchange import ChatRequest, Serving
from instar.flow.serve_turn import ServeTurn
from instar.records import Caller, Message, Sampling, Turn, TurnOutcome, TurnStatus
from instar.runtime import FakeClock
from tests.kit.fake_engine import FakeEngine
from tests.kit.store_scenes import new_store
from tests.kit.tiny_model import write_chat_files

ANN = Caller("key", "ann")


class _Base:
    @asynccontextmanager
    async def lease(self, wanted: str | None) -> AsyncIterator[str]:
        yield "base"

    async def reload(self, version: str) -> None: ...


@dataclass
class Desk:
    """`ask` gives the turn that a request became, as it was when it was opened. An answer is a text, or a message
    with tool calls; with `fault` the engine breaks off."""

    folder: Path
    clock: FakeClock = field(default_factory=FakeClock)

    def __post_init__(self) -> None:
        chat = ChatFormat(write_chat_files(self.folder / "model", context_length=200_000))
        self.store = new_store(self.folder / "instar.db", clock=self.clock)
        self.engine = FakeEngine(chat)
        self._serve = ServeTurn(self.store, self.engine, chat, _Base(), self.clock, in_thread=_at_once)
        self._close = self.store.close_turn
        self._calling: Message | None = None
        self.store.close_turn = self._close_turn  # type: ignore[method-assign]

    def _close_turn(self, turn_id: str, outcome: TurnOutcome) -> None:
        """Answers with tool calls are put in as the store keeps them, whatever the engine can say itself."""
        turn = self.store.turn(turn_id)
        if self._calling is not None and outcome.status is TurnStatus.DONE and turn is not None:
            whole = context_hash(turn.messages, self._calling)
            outcome = replace(outcome, answer=self._calling, context_hash=whole)
        self._close(turn_id, outcome)

    async def ask(
        self,
        messages: list[Message],
        answer: str | Message = "ok.",
        *,
        fault: bool = False,
        caller: Caller = ANN,
        **more: Any,
    ) -> Turn:
        self.clock.advance(1.0)
        self._calling = dict(answer) if isinstance(answer, Mapping) else None
        self.engine.script = lambda version, prompt: answer if isinstance(answer, str) else "(calls)"
        self.engine.fail_after = 1 if fault else None
        request = ChatRequest([dict(m) for m in messages], Sampling(max_tokens=10_000), **more)
        turns: list[Turn] = []
        try:
            async for event in self._serve.serve(request, caller):
                turns += event.turns if isinstance(event, Serving) else []
        except EngineError:
            assert fault
        return turns[0]

    def heard(self) -> dict[str, list[tuple[str, str]]]:
        """What was said of each turn of which anything was."""
        views = self.store.turn_views(limit=10_000)
        told = {v["id"]: [(s["kind"], s["text"]) for s in v["next_states"]] for v in views}
        return {turn_id: states for turn_id, states in told.items() if states}


async def _at_once(work: Any, *arguments: Any) -> Any:
    """Threads would only make a test slower."""
    return work(*arguments)


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def assistant(text: str) -> Message:
    return {"role": "assistant", "content": text}


def tool(call_id: str, text: str) -> Message:
    return {"role": "tool", "tool_call_id": call_id, "content": text}
