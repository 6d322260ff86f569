"""What a client gets from `POST /v1/responses`: one builder makes the events of a stream and the whole response."""

from __future__ import annotations

from typing import Any

from instar.answers import CallPart, Part, Thought
from instar.errors import InstarError
from instar.flow.exchange import Ended, Piece, Serving
from instar.gateway.errors import describe
from instar.gateway.responses.body import ResponsesBody

Event = dict[str, Any]


class ResponseBuilder:
    """Turns pieces into output items, one open at a time, and tells of each step as an event.

    Items are `reasoning`, `message` and `function_call`, in the order in which the model made them. Events are
    numbered as they are made, so they must be sent in this order.
    """

    def __init__(self, serving: Serving, body: ResponsesBody, served_name: str) -> None:
        self._turn = serving.turns[0]
        self._prompt_tokens = len(serving.prompt_ids)
        self._sampling = serving.request.sampling
        self._body = body
        self._served_name = served_name
        self._number = -1
        self._items: list[dict[str, Any]] = []
        self._is_open = False
        self._call_index: int | None = None
        self._reasoning_tokens = 0
        self._ending: dict[str, Any] = {"status": "in_progress"}

    def begin(self) -> list[Event]:
        return [self._lifecycle("created"), self._lifecycle("in_progress")]

    def still(self) -> Event:
        """Says that it goes on: a known event that changes nothing."""
        return self._event("in_progress", {}, response={**self.response(), "output": []})

    def add(self, piece: Piece) -> list[Event]:
        if piece.reasoning:
            self._reasoning_tokens += len(piece.ids)
        return [event for part in piece.shown for event in self._write(part)]

    def _write(self, part: Part | Thought) -> list[Event]:
        if isinstance(part, CallPart):
            return self._call(part)
        if isinstance(part, str):
            return [*self._open("message"), self._grow("output_text", part)]
        return [*self._open("reasoning"), self._grow("reasoning_text", part.text)]

    def end(self, ended: Ended) -> list[Event]:
        was_cut = ended.finish_reason == "length"
        status = "incomplete" if was_cut else "completed"
        events = self._open("message") if not self._items else []
        events += self._close(status)
        self._ending = {"status": status, "usage": self._usage(ended.response_tokens)}
        if was_cut:
            self._ending["incomplete_details"] = {"reason": "max_output_tokens"}
        return [*events, self._lifecycle(status)]

    def fail(self, error: InstarError) -> Event:
        if self._is_open:
            self._items[-1]["status"] = "incomplete"
        status, body, _ = describe(error)
        code = "rate_limit_exceeded" if status == 429 else "server_error"
        self._ending = {"status": "failed", "error": {"code": code, "message": body["error"]["message"]}}
        return self._lifecycle("failed")

    def response(self) -> dict[str, Any]:
        """The response as far as it has come."""
        body, sampling = self._body, self._sampling
        return {
            "id": self._turn.id,
            "object": "response",
            "created_at": int(self._turn.created_at),
            "status": "in_progress",
            "error": None,
            "incomplete_details": None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": body.metadata or {},
            "model": self._served_name,
            "output": self._items,
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": body.previous_response_id,
            "store": body.store is not False,
            "temperature": sampling.temperature,
            "text": _text_config(body),
            "tool_choice": _dump(body.tool_choice) or "auto",
            "tools": [_dump(tool) for tool in body.tools or []],
            "top_p": sampling.top_p,
            "truncation": "disabled",
            "usage": None,
            **self._ending,
        }

    # ── items ─────────────────────────────────────────────────────────────────────────────────────────
    def _open(self, kind: str) -> list[Event]:
        """Make `kind` the item that is written to; nothing happens where it is already."""
        if self._is_open and self._items[-1]["type"] == kind:
            return []
        events = self._close("completed")
        item, part = self._new(kind)
        events.append(self._add(item))
        if part is not None:
            item["content"] = [part]
            events.append(self._event("content_part.added", self._at(), part=dict(part)))
        return events

    def _new(self, kind: str) -> tuple[dict[str, Any], dict[str, Any] | None]:
        item = {"type": kind, "id": self._id(kind), "status": "in_progress"}
        if kind == "reasoning":
            return {**item, "summary": [], "content": []}, {"type": "reasoning_text", "text": ""}
        part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        return {**item, "role": "assistant", "content": []}, part

    def _id(self, kind: str) -> str:
        short = {"reasoning": "rs", "message": "msg", "function_call": "fc"}[kind]
        return f"{short}_{self._turn.id.removeprefix('turn_')}_{len(self._items)}"

    def _add(self, item: dict[str, Any]) -> Event:
        self._items.append(item)
        self._is_open = True
        return self._event("output_item.added", {"output_index": len(self._items) - 1}, item=dict(item))

    def _grow(self, kind: str, text: str) -> Event:
        self._items[-1]["content"][0]["text"] += text
        return self._event(f"{kind}.delta", self._at(), delta=text, **_logprobs(kind))

    def _call(self, part: CallPart) -> list[Event]:
        events = []
        is_new = not self._is_open or self._items[-1]["type"] != "function_call"
        if is_new or part.index != self._call_index:
            self._call_index = part.index
            events += self._close("completed")
            item_id = self._id("function_call")
            item = {
                "type": "function_call",
                "id": item_id,
                "call_id": part.id or item_id,
                "name": part.name or "",
                "arguments": "",
                "status": "in_progress",
            }
            events.append(self._add(item))
        if part.arguments:
            self._items[-1]["arguments"] += part.arguments
            where = self._at(with_content=False)
            events.append(self._event("function_call_arguments.delta", where, delta=part.arguments))
        return events

    def _close(self, status: str) -> list[Event]:
        if not self._is_open:
            return []
        self._is_open = False
        item = self._items[-1]
        item["status"] = status
        events = self._part_done(item)
        events.append(self._event("output_item.done", {"output_index": len(self._items) - 1}, item=item))
        return events

    def _part_done(self, item: dict[str, Any]) -> list[Event]:
        if item["type"] == "function_call":
            done = {"name": item["name"], "arguments": item["arguments"]}
            return [self._event("function_call_arguments.done", self._at(with_content=False), **done)]
        part = item["content"][0]
        kind = part["type"]
        return [
            self._event(f"{kind}.done", self._at(), text=part["text"], **_logprobs(kind)),
            self._event("content_part.done", self._at(), part=part),
        ]

    # ── events ────────────────────────────────────────────────────────────────────────────────────────
    def _at(self, *, with_content: bool = True) -> dict[str, Any]:
        where = {"item_id": self._items[-1]["id"], "output_index": len(self._items) - 1}
        return {**where, "content_index": 0} if with_content else where

    def _lifecycle(self, name: str) -> Event:
        return self._event(name, {}, response=self.response())

    def _event(self, name: str, where: dict[str, Any], /, **more: Any) -> Event:
        self._number += 1
        return {"type": f"response.{name}", "sequence_number": self._number, **where, **more}

    def _usage(self, response_tokens: int) -> dict[str, Any]:
        return {
            "input_tokens": self._prompt_tokens,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": response_tokens,
            "output_tokens_details": {"reasoning_tokens": self._reasoning_tokens},
            "total_tokens": self._prompt_tokens + response_tokens,
        }


def _logprobs(kind: str) -> dict[str, Any]:
    """A field that output text must have; log-probs themselves are for chat completions."""
    return {"logprobs": []} if kind == "output_text" else {}


def _text_config(body: ResponsesBody) -> dict[str, Any]:
    return {"format": _dump(body.text.format) if body.text and body.text.format else {"type": "text"}}


def _dump(value: Any) -> Any:
    return value.model_dump(by_alias=True, exclude_none=True) if hasattr(value, "model_dump") else value
