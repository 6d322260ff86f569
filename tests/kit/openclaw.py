"""Requests that a real OpenClaw client sent, and a server that gives the answers it had then.

The recordings in tests/unit/data/openclaw are whole but for the client's own long prompts, the tools' descriptions,
keys and facts about the machine. A recorded history shows what the server had answered; whatever else a test needs of
the answers it says itself.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from instar.errors import EngineError
from instar.flow.conversation import context_hash
from instar.records import Message, TurnOutcome, TurnStatus
from tests.kit.live_gateway import Live

FOLDER = Path(__file__).resolve().parents[1] / "unit" / "data" / "openclaw"
FAULT_500, CUT = "fault 500", "cut"


@dataclass(frozen=True)
class Recorded:
    """One request of a recording. `n` is its number there."""

    n: int
    method: str
    path: str
    headers: dict[str, str]
    body: dict[str, Any] | None


def recording(name: str) -> list[Recorded]:
    (path,) = FOLDER.glob(f"{name}*.json")
    rows = json.loads(path.read_text("utf-8"))["requests"]
    return [Recorded(row["n"], row["method"], row["path"], row["headers"], row.get("body")) for row in rows]


def recordings() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.json"))


def calls(*named: tuple[str, dict[str, Any]], text: str | None = None) -> Message:
    """An answer that calls tools, as our own server writes it: other ids and other blanks than clients echo."""
    return {
        "role": "assistant",
        "content": text,
        "tool_calls": [
            {
                "id": f"call_{i:x}",
                "type": "function",
                "function": {"name": name, "arguments": json.dumps(arguments)},
            }
            for i, (name, arguments) in enumerate(named, 0xAB12)
        ],
    }


@dataclass
class Player:
    """Sends recorded requests to a gateway whose engine answers as told."""

    live: Live
    _next_call: Message | None = None

    def __post_init__(self) -> None:
        """Answers with tool calls are put in as the store writes them, whatever the engine can say itself."""
        close = self.live.store.close_turn

        def close_turn(turn_id: str, outcome: TurnOutcome) -> None:
            answer = self._next_call
            if answer is not None and outcome.status is TurnStatus.DONE:
                turn = self.live.store.turn(turn_id)
                assert turn is not None
                outcome = replace(outcome, answer=answer, context_hash=context_hash(turn.messages, answer))
            close(turn_id, outcome)

        self.live.store.close_turn = close_turn  # type: ignore[method-assign]

    async def send(
        self, request: Recorded, answer: str | Message | None, without: frozenset[str] = frozenset()
    ) -> dict[str, Any]:
        """Send one request; the turn it became, as /v1/turns shows it. `without` are headers to leave out."""
        engine = self.live.engine
        engine.refuse = EngineError("out of order", status=500) if answer == FAULT_500 else None
        engine.fail_after = 1 if answer == CUT else None
        self._next_call = answer if isinstance(answer, Mapping) else None
        engine.script = lambda version, prompt: answer if isinstance(answer, str) else "(calls tools)"
        headers = {k: v for k, v in request.headers.items() if k not in without}
        got = await self.live.http.request(request.method, request.path, json=request.body, headers=headers)
        assert got.status_code == (502 if answer == FAULT_500 else 200), got.text
        (turn,) = await self.live.turns(limit=1)
        return turn
