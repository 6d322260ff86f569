"""What a list of chat messages says, whoever sent it: its parts by meaning, and its fingerprints.

Clients send the whole history with every request. Two histories are the same conversation when their
fingerprints agree. A fingerprint covers roles, text and tool calls by meaning; it leaves out the system message
(clients put clocks into it), surrounding white space, tool-call ids and the order of keys in arguments, since
clients rewrite those.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from instar.chat_format import text_of
from instar.errors import RequestError
from instar.records import Message

_UNHEARD = {"system", "developer"}


def prefix_hashes(messages: Sequence[Message]) -> list[str]:
    """Fingerprint of the conversation up to and including each message (hex, one per message)."""
    hashes: list[str] = []
    running = hashlib.sha256(b"conversation").hexdigest()
    for message in messages:
        if message.get("role") not in _UNHEARD:
            running = hashlib.sha256(
                f"{running}\n{_canonical(message)}".encode("utf-8", "surrogatepass")
            ).hexdigest()
        hashes.append(running)
    return hashes


def context_hash(request: Sequence[Message], answer: Message) -> str:
    """Fingerprint of a conversation that ends in our answer."""
    return prefix_hashes([*request, answer])[-1]


def _canonical(message: Message) -> str:
    parts: dict[str, Any] = {"role": message.get("role"), "text": text_of(message.get("content")).strip()}
    calls = message.get("tool_calls")
    if isinstance(calls, list) and calls:
        parts["calls"] = [_call(call) for call in calls]
    try:
        return json.dumps(parts, sort_keys=True, ensure_ascii=False)
    except RecursionError as error:
        raise RequestError(
            "The arguments of a tool call are nested too deeply.", param="messages", code="too_deep"
        ) from error


def _call(call: Any) -> Any:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        return call
    arguments = function.get("arguments")
    with suppress(ValueError, RecursionError):  # not JSON, or too deep: compared as the text it is
        arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
    return {"name": function.get("name"), "arguments": arguments}


def reply_after(messages: Sequence[Message], index: int) -> tuple[list[str], str | None]:
    """What follows our answer at `index`: the texts of its tool results, and the user's reply if there is one.

    Stops at the next answer. Several user messages in a row are one reply.
    """
    tools: list[str] = []
    said: list[str] = []
    for message in messages[index + 1 :]:
        role = message.get("role")
        if role == "assistant":
            break
        if role in {"tool", "function"}:
            tools.append(text_of(message.get("content")))
        elif role == "user":
            said.append(text_of(message.get("content")))
    return tools, "\n".join(said) if said else None
