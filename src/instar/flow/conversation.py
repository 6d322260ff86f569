"""What a list of chat messages says, whoever sent it: its parts by meaning, and its fingerprints.

Clients send the whole history with every request. Two histories are the same conversation when their
fingerprints agree. A fingerprint covers roles, text and tool calls by meaning; it leaves out the system message
(clients put clocks into it), surrounding white space, tool-call ids, the order of keys in arguments and what the
model thought aloud, since clients rewrite or drop those, and what clients write around or between the user's words
(words.py), since that is there in one request and gone in the next.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import takewhile
from typing import Any

from instar.answers.reasoning import KNOWN_TAGS
from instar.content import text_of
from instar.errors import RequestError
from instar.records import Message
from instar.words import Role, Text, read_content, runtime_facts

GENERATION = re.compile(r"(.+):(\d{1,9})")
"""A session's name with the number of its compactions behind it."""
_UNHEARD = {"system", "developer"}
_THOUGHT = re.compile(
    rf"\s*(?:{'|'.join(f'{re.escape(opens)}.*?{re.escape(closes)}' for opens, closes in KNOWN_TAGS)})",
    re.DOTALL,
)


def prefix_hashes(messages: Sequence[Message]) -> list[str]:
    """Fingerprint of the conversation up to and including each message (hex, one per message)."""
    hashes: list[str] = []
    running = hashlib.sha256(b"conversation").hexdigest()
    for message in messages:
        text = user_text(message)
        if message.get("role") not in _UNHEARD and not (text and text.passes):
            running = _hashed(f"{running}\n{_canonical(message, text)}")
        hashes.append(running)
    return hashes


def context_hash(request: Sequence[Message], answer: Message) -> str:
    """Fingerprint of a conversation that ends in our answer."""
    return prefix_hashes([*request, answer])[-1]


def request_hash(hashes: Sequence[str], messages: Sequence[Message]) -> str:
    """Fingerprint of a request: two that agree ask the very same.

    Unlike a history's it covers the stamp of the newest thing said: "hi" at ten and "hi" at noon are two requests.
    """
    said = newest_said(messages)
    return _hashed(f"{hashes[-1]}\n{said.stamp}") if said and said.stamp else hashes[-1]


def user_text(message: Message) -> Text | None:
    """The text of a user message, taken apart; None for any other message."""
    return read_content(message.get("content")) if message.get("role") == "user" else None


def newest_said(messages: Sequence[Message]) -> Text | None:
    """The newest user message but for those that are gone with the next request."""
    texts = (user_text(message) for message in reversed(messages))
    return next((text for text in texts if text and not text.passes), None)


def runtime_session(messages: Sequence[Message]) -> str | None:
    """The session that a client's Runtime line names. After a compaction the newest line is the one that counts."""
    for message in reversed(messages):
        if message.get("role") == "user":
            facts = runtime_facts(text_of(message.get("content")))
            if named := facts.get("sessionId") or facts.get("session"):
                return named
    return None


def is_summed_up(messages: Sequence[Message]) -> bool:
    """Whether a message stands for others that the client left out."""
    texts = (user_text(message) for message in messages)
    return any(text.mark.role is Role.HISTORY for text in texts if text and text.mark)


def instructions(messages: Sequence[Message]) -> list[str]:
    """What fingerprints leave out: the texts of the system and of developers."""
    return [text_of(message.get("content")) for message in messages if message.get("role") in _UNHEARD]


def same_message(one: Message, other: Message) -> bool:
    """Whether two messages say the same, whatever a client did to their form."""
    return _canonical(one, user_text(one)) == _canonical(other, user_text(other))


def last_answer(messages: Sequence[Message]) -> int | None:
    """Index of the newest message of the assistant."""
    return next((i for i in reversed(range(len(messages))) if messages[i].get("role") == "assistant"), None)


def results_after(messages: Sequence[Message], index: int) -> list[str]:
    """Texts of the results of the tool calls that our answer at `index` made, up to the next answer."""
    calls = _call_ids(messages[index])
    return [
        text_of(messages[i].get("content"))
        for i in _until_next_answer(messages, index)
        if messages[i].get("role") in {"tool", "function"} and _is_result_of(messages[i], calls)
    ]


def said_after(messages: Sequence[Message], index: int | None) -> list[int]:
    """Indices of what the user said behind the answer at `index`, up to the next one; None for the very beginning.

    Several user messages in a row are one reply.
    """
    return [i for i in _until_next_answer(messages, index) if (text := user_text(messages[i])) and text.words]


def _until_next_answer(messages: Sequence[Message], index: int | None) -> Iterator[int]:
    start = 0 if index is None else index + 1
    return takewhile(lambda i: messages[i].get("role") != "assistant", range(start, len(messages)))


def words_at(messages: Sequence[Message], indices: Sequence[int]) -> str:
    """The user's own words in these messages, as one text."""
    return "\n".join(text.words for i in indices if (text := user_text(messages[i])))


def _hashed(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _canonical(message: Message, user: Text | None) -> str:
    text = user.core if user else text_of(message.get("content"))
    if message.get("role") == "assistant":
        text = _THOUGHT.sub("", text, count=1) if _THOUGHT.match(text) else text
    parts: dict[str, Any] = {"role": message.get("role"), "text": text.strip()}
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


def _call_ids(answer: Message) -> set[str]:
    """Ids of an answer's tool calls, in the form that survives clients which drop signs from them."""
    calls = answer.get("tool_calls")
    ids = [call.get("id") for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []
    return {_plain_id(i) for i in ids if isinstance(i, str)}


def _is_result_of(message: Message, calls: set[str]) -> bool:
    """Where either side names no call, a result belongs to the answer that it follows."""
    call_id = message.get("tool_call_id")
    return not calls or not isinstance(call_id, str) or _plain_id(call_id) in calls


def _plain_id(call_id: str) -> str:
    return "".join(c for c in call_id if c.isalnum())
