"""The text of messages, and what of it the user said."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from instar.errors import RequestError
from instar.records import Message
from instar.words import read_content

RAW = "instar_raw"
"""Key of a message whose text is a prompt to be continued as it is, without the chat template."""


def is_raw(messages: Sequence[Message]) -> bool:
    return len(messages) == 1 and messages[0].get(RAW) is True


def text_of(content: Any) -> str:
    """The text of a message's content: a string, None, or a list of text parts.

    Raises RequestError for parts that are no text, since dropping them would answer another question.
    """
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    parts = []
    for part in content if isinstance(content, list) else [content]:
        if not isinstance(part, dict) or not isinstance(part.get("text", part.get("refusal")), str):
            kind = part.get("type", "unknown") if isinstance(part, dict) else type(part).__name__
            raise RequestError(
                f"Content parts of type {str(kind)[:40]!r} are not supported; send text.",
                param="messages",
                code="unsupported_content",
            )
        parts.append(part["text"] if "text" in part else part["refusal"])
    return "".join(parts)


def plain_text(content: Any) -> str:
    """The text of a stored message's content for readers: what is no text is passed over, parts stand on lines."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    return "\n".join(p["text"] for p in content if isinstance(p, dict) and isinstance(p.get("text"), str))


def last_user_index(messages: Sequence[Message]) -> int | None:
    """Index of the newest message in which the user spoke; where only their client did, of what that wrote."""
    client: int | None = None
    for i in reversed(range(len(messages))):
        message = messages[i]
        if not isinstance(message, dict) or message.get("role") != "user":
            continue
        text = read_content(message.get("content"))
        if text.words:
            return i
        client = i if client is None or not text.passes else client
    return client


def last_user_text(messages: Sequence[Message]) -> str:
    """The newest thing that the user said, for readers; "" where nobody spoke."""
    last = last_user_index(messages)
    return "" if last is None else said_text(messages[last].get("content"))


def said_text(content: Any) -> str:
    """The user's own words in a stored message's content; what their client wrote, where it wrote all of it."""
    text = read_content(content)
    framed = text.before or text.behind or text.mark
    return text.core if framed and text.core else plain_text(content)
