"""What a client gets from `POST /v1/responses`: one builder makes the events of a stream and the whole response."""

from __future__ import annotations

from typing import Any, Self

from instar.answers import CallPart, Part, Thought
from instar.errors import EngineError, InstarError
from instar.flow.exchange import Ended, Piece, Serving
from instar.gateway.blocks import Blocks
from instar.gateway.errors import describe
from instar.gateway.logprobs import TokenLogprobs
from instar.gateway.responses.body import ResponsesBody
from instar.gateway.responses.echo import echo_of, echo_of_turn
from instar.gateway.sse import named_event
from instar.gateway.turns import Event
from instar.records import Message, Turn, TurnStatus


class ResponseBuilder:
    """Implements `turns.Builder`: turns pieces into output items, and tells of each step as an event.

    Items are `reasoning`, `message` and `function_call`, in the order in which the model made them. Events are
    numbered as they are made, so they must be sent in this order. `echo` is what the response tells of its request;
    with `logprobs`, output text has those of its tokens.
    """

    def __init__(
        self,
        turn: Turn,
        prompt_tokens: int,
        echo: dict[str, Any],
        served_name: str,
        logprobs: TokenLogprobs | None = None,
    ) -> None:
        self._turn = turn
        self._prompt_tokens = prompt_tokens
        self._echo = echo
        self._served_name = served_name
        self._logprobs = logprobs
        self._untold: list[dict[str, Any]] = []  # log-probs of tokens whose text is still held back
        self._number = -1
        self._items = Blocks("function_call")
        self._ending: dict[str, Any] = {"status": "in_progress"}
        self.reasoning_tokens = 0

    @classmethod
    def of(
        cls, serving: Serving, body: ResponsesBody, served_name: str, logprobs: TokenLogprobs | None
    ) -> Self:
        """For an answer that is being sampled."""
        echo = echo_of(body, serving.request.sampling)
        return cls(serving.turns[0], len(serving.prompt_ids), echo, served_name, logprobs)

    def begin(self) -> list[Event]:
        return [self._lifecycle("created"), self._lifecycle("in_progress")]

    def encode(self, event: Event) -> bytes:
        return named_event(event)

    def ping(self) -> bytes:
        """A known event that changes nothing."""
        return named_event(self._event("in_progress", {}, response={**self.whole(), "output": []}))

    def add(self, piece: Piece) -> list[Event]:
        if self._logprobs is not None:
            self._untold += [_always_with_bytes(token) for token in self._logprobs.of(piece)]
        if piece.reasoning:
            self.reasoning_tokens += len(piece.ids)
        events = [event for part in piece.shown for event in self._write(part)]
        if piece.shown:
            self._untold = []  # those of thoughts and calls are not told
        return events

    def _write(self, part: Part | Thought) -> list[Event]:
        if isinstance(part, CallPart):
            return self._call(part)
        if isinstance(part, str):
            untold, self._untold = self._untold, []
            return [*self._open("message"), self._grow("output_text", part, logprobs=untold)]
        return [*self._open("reasoning"), self._grow("reasoning_text", part.text)]

    def end(self, ended: Ended) -> list[Event]:
        was_cut = ended.finish_reason == "length"
        status = "incomplete" if was_cut else "completed"
        events = self._open("message") if not self._items.all else []
        events += self._close(status)
        self._ending = {"status": status, "usage": self._usage(ended.response_tokens)}
        if was_cut:
            self._ending["incomplete_details"] = {"reason": "max_output_tokens"}
        return [*events, self._lifecycle(status)]

    def fail(self, error: InstarError) -> bytes:
        status, body, _ = describe(error)
        code = "rate_limit_exceeded" if status == 429 else "server_error"
        self._break_off("failed", error={"code": code, "message": body["error"]["message"]})
        return named_event(self._lifecycle("failed"))

    def cancel(self) -> None:
        """Its client left before the end."""
        self._break_off("cancelled")

    def _break_off(self, status: str, **why: Any) -> None:
        if self._items.close() is not None:
            self._items.last["status"] = "incomplete"
        self._ending = {"status": status, **why}

    def close(self) -> bytes:
        return b""

    def whole(self) -> dict[str, Any]:
        """The response as far as it has come."""
        return {
            "id": self._turn.id,
            "object": "response",
            "created_at": int(self._turn.created_at),
            "status": "in_progress",
            "error": None,
            "incomplete_details": None,
            "model": self._served_name,
            "output": self._items.all,
            "usage": None,
            **self._echo,
            **self._ending,
        }

    # ── items ─────────────────────────────────────────────────────────────────────────────────────────
    def _open(self, kind: str) -> list[Event]:
        """Make `kind` the item that is written to; nothing happens where it is already."""
        if self._items.continues(kind):
            return []
        events = self._close("completed")
        item, part = self._new(kind)
        events.append(self._add(item))
        item["content"] = [part]
        events.append(self._event("content_part.added", self._at(), part=dict(part)))
        return events

    def _new(self, kind: str) -> tuple[dict[str, Any], dict[str, Any]]:
        item = {"type": kind, "id": self._id(kind), "status": "in_progress"}
        if kind == "reasoning":
            return {**item, "summary": [], "content": []}, {"type": "reasoning_text", "text": ""}
        part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        return {**item, "role": "assistant", "content": []}, part

    def _id(self, kind: str) -> str:
        short = {"reasoning": "rs", "message": "msg", "function_call": "fc"}[kind]
        return f"{short}_{self._turn.id.removeprefix('turn_')}_{len(self._items.all)}"

    def _add(self, item: dict[str, Any]) -> Event:
        self._items.open(item)
        return self._event("output_item.added", {"output_index": self._items.index}, item=dict(item))

    def _grow(self, kind: str, text: str, **more: Any) -> Event:
        """`more` are lists that grow together with the text."""
        part = self._items.last["content"][0]
        part["text"] += text
        for name, values in more.items():
            part[name] = [*part[name], *values]
        return self._event(f"{kind}.delta", self._at(), delta=text, **more)

    def _call(self, part: CallPart) -> list[Event]:
        events = []
        if not self._items.continues_call(part):
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
            self._items.last["arguments"] += part.arguments
            where = self._at(with_content=False)
            events.append(self._event("function_call_arguments.delta", where, delta=part.arguments))
        return events

    def _close(self, status: str) -> list[Event]:
        item = self._items.close()
        if item is None:
            return []
        item["status"] = status
        done = self._event_of_part(item)
        return [*done, self._event("output_item.done", {"output_index": self._items.index}, item=item)]

    def _event_of_part(self, item: dict[str, Any]) -> list[Event]:
        if item["type"] == "function_call":
            done = {"name": item["name"], "arguments": item["arguments"]}
            return [self._event("function_call_arguments.done", self._at(with_content=False), **done)]
        part = item["content"][0]
        more = {"logprobs": part["logprobs"]} if "logprobs" in part else {}
        return [
            self._event(f"{part['type']}.done", self._at(), text=part["text"], **more),
            self._event("content_part.done", self._at(), part=part),
        ]

    # ── events ────────────────────────────────────────────────────────────────────────────────────────
    def _at(self, *, with_content: bool = True) -> dict[str, Any]:
        where = {"item_id": self._items.last["id"], "output_index": self._items.index}
        return {**where, "content_index": 0} if with_content else where

    def _lifecycle(self, name: str) -> Event:
        return self._event(name, {}, response=self.whole())

    def _event(self, name: str, where: dict[str, Any], /, **more: Any) -> Event:
        self._number += 1
        return {"type": f"response.{name}", "sequence_number": self._number, **where, **more}

    def _usage(self, response_tokens: int) -> dict[str, Any]:
        return {
            "input_tokens": self._prompt_tokens,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": response_tokens,
            "output_tokens_details": {"reasoning_tokens": self.reasoning_tokens},
            "total_tokens": self._prompt_tokens + response_tokens,
        }


def _always_with_bytes(token: dict[str, Any]) -> dict[str, Any]:
    """The SDK has it that a token has bytes, be it none; in chat completions it is null then."""
    others = [{**other, "bytes": other["bytes"] or []} for other in token["top_logprobs"]]
    return {**token, "bytes": token["bytes"] or [], "top_logprobs": others}


def stored(turn: Turn, served_name: str, reasoning_tokens: int) -> dict[str, Any]:
    """The response of a turn as it was recorded, whichever API it came through. Log-probs are not told again."""
    builder = ResponseBuilder(turn, len(turn.prompt_ids), echo_of_turn(turn), served_name)
    builder.add(_piece(turn))
    builder.reasoning_tokens = reasoning_tokens
    match turn.status:
        case TurnStatus.DONE:
            reason = turn.finish_reason or "stop"
            builder.end(Ended(turn.choice, reason, len(turn.response_ids), turn.answer or {}))
        case TurnStatus.FAILED:
            builder.fail(EngineError("The answer broke off before its end."))
        case TurnStatus.CANCELLED:
            builder.cancel()
    return builder.whole()


def _piece(turn: Turn) -> Piece:
    """A recorded answer as one piece: thought, text, calls."""
    answer: Message = turn.answer or {}
    thought, text = answer.get("reasoning_content"), answer.get("content")
    calls = [
        CallPart(number, call["function"]["arguments"], call["id"], call["function"]["name"])
        for number, call in enumerate(answer.get("tool_calls") or [])
    ]
    return Piece(
        turn.choice, (*([Thought(thought)] if thought else []), *([text] if text else []), *calls), [], []
    )
