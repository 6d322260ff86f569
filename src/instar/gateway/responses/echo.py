"""What a response tells again of its request: from the body at once, from the stored turn later on."""

from __future__ import annotations

from typing import Any

from instar.gateway.responses.body import ResponsesBody
from instar.records import Sampling, Turn

INSTRUCTED = "instructions"
"""Key of a turn's params: its first message are instructions, which hold for that turn only."""
_ASKED = "asked"
"""Key of a turn's params: what is told again and stands nowhere else in the turn."""
_NOTHING_ASKED = {
    "max_output_tokens": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "store": True,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
}


def kept_of(body: ResponsesBody) -> dict[str, Any]:
    """Params of the turn, so that it can be told again."""
    return {INSTRUCTED: body.instructions is not None, _ASKED: _asked(body)}


def _asked(body: ResponsesBody) -> dict[str, Any]:
    text = body.text.format if body.text else None
    return {
        "max_output_tokens": body.max_output_tokens,
        "metadata": body.metadata or {},
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": body.previous_response_id,
        "store": body.store is not False,
        "text": {"format": _dump(text) if text else {"type": "text"}},
        "tool_choice": _dump(body.tool_choice) or "auto",
    }


def echo_of(body: ResponsesBody, sampling: Sampling) -> dict[str, Any]:
    return {
        **_asked(body),
        "instructions": body.instructions,
        "temperature": sampling.temperature,
        "tools": [_dump(tool) for tool in body.tools or []],
        "top_p": sampling.top_p if body.top_p is None else body.top_p,
        "truncation": "disabled",
    }


def echo_of_turn(turn: Turn) -> dict[str, Any]:
    """The same of any turn, whichever API it came through."""
    params = turn.params
    return {
        **_NOTHING_ASKED,
        **params.get(_ASKED, {}),
        "instructions": turn.messages[0]["content"] if params.get(INSTRUCTED) else None,
        "temperature": params.get("temperature", 1.0),
        "tools": [{"type": "function", **tool.get("function", {})} for tool in turn.tools],
        "top_p": 1.0 if params.get("top_p") is None else params["top_p"],
        "truncation": "disabled",
    }


def _dump(value: Any) -> Any:
    return value.model_dump(by_alias=True, exclude_none=True) if hasattr(value, "model_dump") else value
