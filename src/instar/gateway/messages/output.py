"""What a client gets from `POST /v1/messages`: one builder makes the events of a stream and the whole message."""

from __future__ import annotations

import json
from typing import Any

from instar.answers import CallPart, Part, Thought
from instar.errors import InstarError
from instar.flow.exchange import Ended, Piece, Serving
from instar.gateway.blocks import Blocks
from instar.gateway.errors import anthropic_error, describe
from instar.gateway.sse import named_event
from instar.gateway.turns import Event


class MessageBuilder:
    """Implements `turns.Builder`: turns pieces into content blocks, and tells of each step as an event."""

    def __init__(self, serving: Serving, served_name: str, *, shows_thinking: bool) -> None:
        self._turn = serving.turns[0]
        self._served_name = served_name
        self._shows_thinking = shows_thinking
        self._blocks = Blocks("tool_use")
        self._arguments = ""
        self._usage = {"input_tokens": len(serving.prompt_ids), "output_tokens": 0}
        self._ending: dict[str, Any] = {"stop_reason": None, "stop_sequence": None}

    def begin(self) -> list[Event]:
        return [{"type": "message_start", "message": self.whole()}]

    def add(self, piece: Piece) -> list[Event]:
        return [event for part in piece.shown for event in self._add(part)]

    def end(self, ended: Ended) -> list[Event]:
        events = self._close()
        self._ending = {"stop_reason": _stop_reason(ended), "stop_sequence": ended.stop_string}
        self._usage["output_tokens"] = ended.response_tokens
        delta = {"type": "message_delta", "delta": self._ending, "usage": self._usage}
        return [*events, delta, {"type": "message_stop"}]

    def encode(self, event: Event) -> bytes:
        return named_event(event)

    def ping(self) -> bytes:
        return named_event({"type": "ping"})

    def fail(self, error: InstarError) -> bytes:
        status, body, _ = describe(error)
        return named_event(anthropic_error(status, body))

    def close(self) -> bytes:
        return b""

    def whole(self) -> dict[str, Any]:
        """The message as far as it has come."""
        return {
            "id": self._turn.id,
            "type": "message",
            "role": "assistant",
            "model": self._served_name,
            "content": list(self._blocks.all),
            **self._ending,
            "usage": dict(self._usage),
        }

    def _add(self, part: Part | Thought) -> list[Event]:
        if isinstance(part, CallPart):
            return self._call(part)
        if isinstance(part, str):
            return self._grow("text", part)
        return self._grow("thinking", part.text) if self._shows_thinking else []

    # ── blocks ────────────────────────────────────────────────────────────────────────────────────────
    def _grow(self, kind: str, text: str) -> list[Event]:
        events = []
        if not self._blocks.continues(kind):
            more = {"signature": ""} if kind == "thinking" else {}
            events += self._open({"type": kind, kind: "", **more})
        self._blocks.last[kind] += text
        return [*events, self._delta({"type": f"{kind}_delta", kind: text})]

    def _call(self, part: CallPart) -> list[Event]:
        events = []
        if not self._blocks.continues_call(part):
            call_id = part.id or f"{self._turn.id}_{part.index}"
            events += self._open({"type": "tool_use", "id": call_id, "name": part.name or "", "input": {}})
            self._arguments = ""
        if part.arguments:
            self._arguments += part.arguments
            events.append(self._delta({"type": "input_json_delta", "partial_json": part.arguments}))
        return events

    def _open(self, block: dict[str, Any]) -> list[Event]:
        events = self._close()
        self._blocks.open(block)
        start = {"type": "content_block_start", "index": self._blocks.index, "content_block": dict(block)}
        return [*events, start]

    def _close(self) -> list[Event]:
        block = self._blocks.close()
        if block is None:
            return []
        events = []
        if block["type"] == "tool_use":
            block["input"] = _input(self._arguments)
        elif block["type"] == "thinking":
            block["signature"] = self._turn.id  # opaque to clients, who drop a thought without one
            events.append(self._delta({"type": "signature_delta", "signature": self._turn.id}))
        return [*events, {"type": "content_block_stop", "index": self._blocks.index}]

    def _delta(self, delta: dict[str, Any]) -> Event:
        return {"type": "content_block_delta", "index": self._blocks.index, "delta": delta}


def _stop_reason(ended: Ended) -> str:
    if ended.stop_string is not None:
        return "stop_sequence"
    return {"length": "max_tokens", "tool_calls": "tool_use"}.get(ended.finish_reason, "end_turn")


def _input(arguments: str) -> dict[str, Any]:
    """Arguments as an object. What is none – the token limit cut it, say – is handed on as the text that it is, and so
    is what could not be sent: halves of characters, and numbers beyond all bounds."""
    try:
        found = json.loads(arguments or "{}")
        json.dumps(found, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError):
        found = None
    return found if isinstance(found, dict) else {"arguments": arguments}
