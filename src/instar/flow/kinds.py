"""What a request is: part of the conversation, another try, or something that a client does for itself.

`RECOGNISERS` tells requests by their system message, their only message, or their session's name; what single user
messages tell is listed in words.py. Both are data: docs/clients.md is made from them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from instar.content import text_of
from instar.flow.conversation import newest_said, user_text
from instar.records import Kind, Message
from instar.words import FRAMES, MARKS, Role, Text

SIDE = "side"
"""Reason of a turn whose request says itself that it is none of the conversation."""


@dataclass(frozen=True, slots=True)
class Hints:
    """What a request says about itself beside its messages.

    `main`: it is conversation, whatever it looks like. `done`: the session ends with it. `again`: the client's HTTP
    library sends it once more. `shared_id`: the field that names its session may be one key for all conversations of an
    application. `chat_id`: it is a chat window's, where messages can be edited.
    """

    main: bool = False
    done: bool = False
    again: bool = False
    shared_id: bool = False
    chat_id: bool = False


@dataclass(frozen=True, slots=True)
class Sign:
    """Evidence; all that is given must be there.

    `system`, `user` and `session` are patterns for the beginning of the system message, of the newest user message
    and of the session's name. `holds` is searched in either text. `tools` says whether tools are offered; with
    `alone` nothing was answered yet.
    """

    system: str = ""
    user: str = ""
    session: str = ""
    holds: str = ""
    tools: bool | None = None
    alone: bool = False

    def fits(self, seen: _Seen) -> bool:
        return (
            _begins(self.system, seen.system)
            and _begins(self.user, seen.user)
            and _begins(self.session, seen.session)
            and (not self.holds or self.holds in (seen.system if self.system else seen.user))
            and (self.tools is None or self.tools == seen.tools)
            and not (self.alone and seen.answered)
        )


@dataclass(frozen=True, slots=True)
class Recogniser:
    """A request that a client makes for itself. One of `signs` is enough; `name` is the reason of its turn."""

    name: str
    client: str
    signs: tuple[Sign, ...]
    evidence: str
    why: str
    seen: str = "on the wire"


_OPEN_WEBUI_TASK = r"### Task:\n(?s:.*)\n### (?:Chat History|Context):\n<chat_history>\n"
_OPEN_WEBUI_COMPACTION = (
    r"### Task:\nSummarize the conversation history that will be compacted out of the active chat"
)

RECOGNISERS: tuple[Recogniser, ...] = (
    Recogniser(
        "compaction", "OpenClaw",
        (Sign(system="You are a context summarization assistant", tools=False),),
        "system message begins `You are a context summarization assistant`; no tools",
        "the client sums up an old conversation",
    ),
    Recogniser(
        "title", "OpenClaw",
        (
            Sign(session=r"slug-generator-", tools=False),
            Sign(user="Based on this conversation, generate a short 1-2 word filename slug", alone=True, tools=False),
            Sign(
                system="Generate a (?:concise session title|very short topic label)", tools=False,
                holds="You are labeling the supplied message, not participating in its conversation.",
            ),
        ),
        "session `slug-generator-…`, or it asks for a file name or a session title; no tools",
        "the client looks for a title or a file name",
    ),
    Recogniser(
        "cron", "OpenClaw",
        (Sign(session=r"openclaw-cron-"), Sign(session=r"agent:[^:]+:cron:")),
        "session `openclaw-cron-…`, or `agent:…:cron:…` in the Runtime line",
        "a scheduled run with nobody present",
    ),
    Recogniser(
        "model_run", "OpenClaw",
        (
            Sign(session=r"internal-session-effects-", tools=False),
            Sign(system="Current model identity:", alone=True, tools=False),
        ),
        "session `internal-session-effects-…`, or the system message begins `Current model identity:`; no tools",
        "a trial of the model (`openclaw infer model run`)",
    ),
    Recogniser(
        "review", "OpenClaw",
        (Sign(system="You are OpenClaw's (?:exec|dashboard widget) safety reviewer"),),
        "system message begins `You are OpenClaw's exec safety reviewer`, or `dashboard widget`",
        "the client has a command reviewed",
        "in the client's program",
    ),
    Recogniser(
        "webui_task", "Open WebUI",
        (
            Sign(user=_OPEN_WEBUI_TASK, alone=True),
            Sign(user=_OPEN_WEBUI_COMPACTION, alone=True),
            Sign(user="You have been provided with a set of responses from various models to the latest", alone=True),
            Sign(user="Your task is to reflect the speaker's likely facial expression", alone=True),
            Sign(
                system="Available Tools: ", alone=True,
                holds="Your task is to choose and return the correct tool(s) from the list of available tools",
            ),
        ),
        "the only message begins `### Task:` and quotes a `<chat_history>`: titles, tags, follow-up questions, search "
        "queries, image prompts, completions; or has a conversation summed up that is `compacted`; or it asks for an "
        "emoji, or for one answer from those of `various models`; or the system message asks to choose tools",
        "the client makes a title, tags, queries, a summary or suggestions for itself",
        "titles, tags and follow-ups on the wire, the rest in the client's program",
    ),
    Recogniser(
        "librechat_title", "LibreChat",
        (
            Sign(user="Provide a concise, 5-word-or-less title for the conversation, ", alone=True),
            Sign(
                user="Analyze this conversation and provide:\n1\\. The detected language of the conversation\n2\\. A "
                "concise title",
                alone=True,
            ),
        ),
        "the only message begins `Provide a concise, 5-word-or-less title for the conversation` or `Analyze this "
        "conversation and provide:` with language and title",
        "the client looks for a title",
        "in the client's program",
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class What:
    """What a request is, and in words why. `name` is that of what told it, None where it is plainly conversation.

    `after_tools`: it goes on after tool results. `reason` is why its turn is never learned from, if so.
    """

    kind: Kind
    name: str | None = None
    why: str = ""
    after_tools: bool = False

    @property
    def reason(self) -> str | None:
        return self.name if self.kind is Kind.SIDE else None


def recognise(
    messages: Sequence[Message], *, session: str | None, has_tools: bool, side: bool, hints: Hints
) -> What:
    """Tell what a request is. What its client says outright goes before what it looks like."""
    if side:
        return What(Kind.SIDE, SIDE, "its client says that it is none of the conversation (X-Turn-Type)")
    asked, notes = _asked(messages)
    if not hints.main and (own := _of_its_own(messages, session, has_tools)):
        return own
    after_tools = asked.get("role") in {"tool", "function"}
    if again := _again([*notes, user_text(asked)], hints):
        return replace(again, after_tools=after_tools)
    return What(Kind.TOOL_STEP if after_tools else Kind.MAIN, after_tools=after_tools)


@dataclass(frozen=True, slots=True)
class _Seen:
    system: str
    user: str
    session: str
    tools: bool
    answered: bool


def _asked(messages: Sequence[Message]) -> tuple[Message, list[Text]]:
    """The message that is to be answered, and the notes behind it, newest first."""
    notes: list[Text] = []
    for message in reversed(messages):
        text = user_text(message)
        if text is None or not text.passes:
            return message, notes
        notes.append(text)
    return messages[-1], notes


def _of_its_own(messages: Sequence[Message], session: str | None, has_tools: bool) -> What | None:
    """What the client does for itself, if this is that."""
    said = newest_said(messages)
    system = next((m for m in messages if m.get("role") in {"system", "developer"}), {})
    seen = _Seen(
        system=text_of(system.get("content")).lstrip(),
        user=said.core.lstrip() if said else "",
        session=session or "",
        tools=has_tools,
        answered=any(m.get("role") == "assistant" for m in messages),
    )
    for one in RECOGNISERS:
        if any(sign.fits(seen) for sign in one.signs):
            return What(Kind.SIDE, one.name, one.why)
    if said and said.mark and said.mark.role is Role.OTHER:
        return What(Kind.SIDE, said.mark.name, said.mark.why)
    return None


def _again(texts: Sequence[Text | None], hints: Hints) -> What | None:
    """Another try: the client says so in its newest messages, or its HTTP library in a header."""
    for text in texts:
        if text and text.again and text.mark:
            return What(Kind.RETRY, text.mark.name, text.mark.why)
    if hints.again:
        return What(Kind.RETRY, "resent", "the client's HTTP library sent it again (x-stainless-retry-count)")
    return None


def _begins(pattern: str, text: str) -> bool:
    return not pattern or re.match(pattern, text) is not None


def side_reasons() -> dict[str, str]:
    """Reason of a side turn → in words. Those of one name differ in their client alone."""
    others = {mark.name: mark.why for mark in MARKS if mark.role is Role.OTHER}
    return {**others, **{one.name: one.why for one in RECOGNISERS}}


_BECOMES = {
    Role.FRAME: "taken off",
    Role.NOTE: "left out",
    Role.AGAIN: "left out; `retry`",
    Role.OTHER: "`side`",
    Role.HISTORY: "kept, as nobody's words",
}


def rows() -> Iterator[tuple[str, str, str, str, str, str]]:
    """The table of the documentation: name, client, evidence, what becomes of it, why, where it was seen."""
    for one in RECOGNISERS:
        yield one.name, one.client, one.evidence, "`side`", one.why, one.seen
    for mark in (*FRAMES, *MARKS):
        becomes = "taken off; `retry` if it asks to continue" if mark.name == "retry_wrapper" else ""
        yield mark.name, mark.client, mark.evidence, becomes or _BECOMES[mark.role], mark.why, mark.seen
