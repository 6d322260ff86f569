"""The teacher's prompts: the same model, shown what the user said afterwards."""

from __future__ import annotations

from dataclasses import dataclass

from instar.chat_format import ChatFormat
from instar.content import last_user_index
from instar.records import Message, Sample
from instar.words import read_content


@dataclass(frozen=True, slots=True)
class ChatTeacherPrompts:
    """Implements `ports.TeacherPrompts` with the model's own chat template."""

    chat: ChatFormat

    def hinted(self, sample: Sample, hint: str) -> list[int]:
        """Ids of the request with the user's words before its last user message."""
        return self.chat.encode_prompt(with_hint(sample.request_messages, hint), tools=sample.tools)

    def encode_answer(self, text: str) -> list[int]:
        return self.chat.encode_answer(text)


def with_hint(messages: list[Message], hint: str) -> list[Message]:
    """The messages with `hint` before the user's last words; the rest as it was, client's stamps included.

    Of the places for it, a small model follows this one best without losing the subject (docs/log.md).
    """
    last = last_user_index(messages)
    if last is None:
        return [*messages, {"role": "user", "content": hint}]
    asked = read_content(messages[last].get("content"))
    hinted = {**messages[last], "content": f"{asked.before}{hint}\n\n{asked.core}{asked.behind}"}
    return [*messages[:last], hinted, *messages[last + 1 :]]
