"""What of a user message a person said, and what their client wrote there.

Agents speak to the model through user messages too: they stamp the time on what was said, wrap it when they send it
again, and add notes, wake-ups and tasks of their own. None of that is the user speaking, so none of it may judge an
answer, become a hint, or tell two histories apart that are the same conversation.

`MARKS` lists what is known, with the client that writes it; docs/clients.md is made from it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

BEGIN_NOTE = "<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>"
END_NOTE = "<<<END_OPENCLAW_INTERNAL_CONTEXT>>>"
BEGIN_REMINDER, END_REMINDER = "<system-reminder>", "</system-reminder>"


class Role(StrEnum):
    """What a client's own text is to the conversation."""

    FRAME = "frame"  # stands around the user's words, which count without it
    NOTE = "note"  # is sent along with one request and not heard of again
    AGAIN = "again"  # asks for another try at what was asked before; not heard of again either
    OTHER = "other"  # somebody else speaks: a timer, another session, the client itself
    HISTORY = "history"  # stands for older messages


@dataclass(frozen=True, slots=True)
class Mark:
    """A text that a client writes into user messages. `begins` is matched where the user's words would begin.

    `evidence` and `why` are for readers; `seen` says whether it was recorded on the wire or read in what the client
    publishes.
    """

    name: str
    client: str
    role: Role
    begins: re.Pattern[str]
    evidence: str
    why: str
    seen: str = "on the wire"


def _any_of(*texts: str) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, texts)))


STAMP = Mark(
    "stamp", "OpenClaw", Role.FRAME,
    re.compile(r"\[[^\[\]\n]{1,200} \d{4}-\d\d-\d\d \d\d:\d\d(?::\d\d)? [A-Za-z][^\[\]\n]{0,40}\] ?"),
    "begins `[Mon 2026-11-30 10:08 UTC] `, with a channel's name before the date or not",
    "the time at which it was said; the user's words stand behind it",
)  # fmt: skip
RUNTIME = Mark(
    "runtime_line", "OpenClaw", Role.FRAME,
    re.compile(r"Runtime: (?:name|agent|session|sessionId)=[^\n|]*(?: \| \w+=[^\n|]*)+\s*\Z"),
    "ends with a line `Runtime: agent=… | session=… | sessionId=… | …`",
    "facts about the client's host; it names the session where nothing better does",
)  # fmt: skip
QUEUED = Mark(
    "retry_wrapper", "OpenClaw", Role.FRAME,
    re.compile(r"\[Queued user message from a previous active turn;[^\]\n]*\]\n"),
    "begins `[Queued user message from a previous active turn; …]`, mostly ending `Continue the current task from "
    "the existing transcript, …`",
    "the same message again after a fault; it counts as the clean text, once",
)  # fmt: skip
SOURCES = Mark(
    "webui_sources", "Open WebUI", Role.FRAME,
    # up to the last end tag: a document that holds one must not speak for the user
    re.compile(
        r"### Task:\nRespond to the user query using the provided context\b(?s:.*)\n<context>\n(?s:.*)\n</context>\s*"
    ),
    "begins `### Task:` and `Respond to the user query using the provided context`, up to the last `</context>`",
    "files and web pages that go with one request; the user's words stand behind them",
    "in the client's program",
)  # fmt: skip
_CONTINUE = "Continue the current task from the existing transcript,"
_CONTINUED = re.compile(rf"\n\n{re.escape(_CONTINUE)}[^\n]*\Z")

MARKS: tuple[Mark, ...] = (
    Mark(
        "internal_context", "OpenClaw", Role.NOTE, _any_of(BEGIN_NOTE),
        f"`{BEGIN_NOTE}` up to its end mark, mostly a message of its own and the last one",
        "the client's notes to the model; the message before it is what was asked",
    ),
    Mark(
        "system_reminder", "Claude Code", Role.NOTE, _any_of(BEGIN_REMINDER),
        f"`{BEGIN_REMINDER}` up to its end tag, before or behind the user's words, in a part of its own, or alone",
        "the client's notes to the model; the user's words, or the tool's result, beside it are what was asked",
        "in reports",
    ),
    Mark(
        "continue", "OpenClaw", Role.AGAIN, _any_of(_CONTINUE),
        f"begins `{_CONTINUE}`",
        "the same step again after a fault",
    ),
    Mark(
        "no_visible_answer", "OpenClaw", Role.AGAIN,
        re.compile(r"The previous (?:attempt|assistant turn) [^.\n]{0,120}user-visible answer\b"),
        "begins `The previous attempt did not produce a user-visible answer`, or says so of the turn",
        "the same message again, since the answer before could not be shown",
    ),
    Mark(
        "revision", "OpenClaw", Role.AGAIN,
        _any_of("Before accepting the previous final answer, apply this revision request"),
        "begins `Before accepting the previous final answer, apply this revision request`",
        "a plugin of the client wants the answer otherwise, not the user",
        "in the client's program",
    ),
    Mark(
        "permission_change", "OpenClaw", Role.AGAIN,
        _any_of("Permission change. The operator changed this session's permissions."),
        "begins `Permission change. The operator changed this session's permissions.`",
        "the same step again under other permissions",
        "in the client's program",
    ),
    Mark(
        "heartbeat", "OpenClaw", Role.OTHER,
        _any_of(
            "Follow the heartbeat monitor scratch context", "Read HEARTBEAT.md if it exists (workspace context)",
            "Read HEARTBEAT.md if it exists. Follow it strictly.",
            "Run the following periodic tasks (only those due", "[OpenClaw heartbeat poll]",
        ),
        "begins `Follow the heartbeat monitor scratch context` or `[OpenClaw heartbeat poll]`",
        "a wake-up by the client's timer, within the user's session",
    ),
    Mark(
        "wake", "OpenClaw", Role.OTHER,
        _any_of(
            "A scheduled reminder has been triggered.", "A scheduled cron event was triggered,",
            "An async command you ran earlier", "An async command completion event was triggered,",
            "[OpenClaw exec completion]", "[OpenClaw cron wake]", "[OpenClaw session event]",
            "Continue the OpenClaw runtime event.",
        ),
        "begins `A scheduled reminder has been triggered.`, `An async command you ran earlier`, "
        "`[OpenClaw cron wake]` and the like",
        "an event that the client passes on; nobody speaks",
        "in the client's program",
    ),
    Mark(
        "cron", "OpenClaw", Role.OTHER, re.compile(r"\[cron:[^\]\n]+\]"),
        "begins `[cron:<id> name]`",
        "a scheduled run with nobody present",
    ),
    Mark(
        "memory_flush", "OpenClaw", Role.OTHER, _any_of("Pre-compaction memory flush"),
        "begins `Pre-compaction memory flush`",
        "the client has notes written before it shortens the history",
    ),
    Mark(
        "greeting", "OpenClaw", Role.OTHER, _any_of("A new session was started via /new or /reset"),
        "begins `A new session was started via /new or /reset`",
        "the client asks for a greeting; the user has not said anything yet",
        "in the client's program",
    ),
    Mark(
        "other_session", "OpenClaw", Role.OTHER,
        re.compile(r"\[Inter-session message\][^\n]*\bisUser=false"),
        "begins `[Inter-session message] … isUser=false`",
        "another session of the agent speaks",
        "in the client's program",
    ),
    Mark(
        "subagent", "OpenClaw", Role.OTHER, _any_of("[Subagent Context]"),
        "begins `[Subagent Context]`",
        "the agent gives a task to its own sub-agent",
        "in the client's program",
    ),
    Mark(
        "dream", "OpenClaw", Role.OTHER,
        _any_of("Write a dream diary entry from these memory fragments"),
        "begins `Write a dream diary entry from these memory fragments`",
        "the client tidies its memories",
        "in the client's program",
    ),
    Mark(
        "summary", "OpenClaw", Role.HISTORY,
        _any_of(
            "The conversation history before this point was compacted into the following summary:",
            "The following is a summary of a branch that this conversation came back from:",
        ),
        "begins `The conversation history before this point was compacted into the following summary:`",
        "stands for messages that the client left out",
    ),
)  # fmt: skip
"""Texts that are a whole message or stand before the user's words, in the order in which they are looked for."""

FRAMES = (STAMP, QUEUED, RUNTIME, SOURCES)
_NOTE, _REMINDER = MARKS[:2]
_ANY = re.compile("|".join(f"(?P<m{i}>{mark.begins.pattern})" for i, mark in enumerate(MARKS)))


@dataclass(frozen=True, slots=True)
class Text:
    """A user message's text, taken apart: `before + core + behind` is the whole of it.

    `core` is without frames and notes. `mark` tells what it is if it is not simply the user speaking. `joined`: what
    the user says now stands in it behind a message of theirs that was never answered.
    """

    before: str
    core: str
    behind: str
    mark: Mark | None = None
    stamp: str = ""
    joined: bool = False

    @property
    def words(self) -> str:
        """What the user said themselves; "" where nobody but the client spoke."""
        spoke = self.mark in (None, QUEUED) and self.core.strip()
        return self.core if spoke else ""

    @property
    def passes(self) -> bool:
        """Whether it is gone from the history with the next request."""
        return self.mark is not None and self.mark.role in (Role.NOTE, Role.AGAIN)

    @property
    def again(self) -> bool:
        """Whether it asks once more for what was asked before."""
        return self.mark is not None and (self.mark is QUEUED or self.mark.role is Role.AGAIN)


def read(text: str) -> Text:
    """Take the text of a user message apart. Where nothing is around the words, they are left as they are."""
    start, end = _stripped(text, 0, _end_without_runtime(text))
    stamp = STAMP.begins.match(text, start, end)
    note, start, end = _without_notes(text, stamp.end() if stamp else start, end)
    if sources := SOURCES.begins.match(text, start, end):
        start = sources.end()
    queued = False
    while found := QUEUED.begins.match(text, start, end):
        queued, start = True, found.end()
    continued = _CONTINUED.search(text, start, end) if queued else None
    start, end = _stripped(text, start, continued.start() if continued else end)
    mark = _mark_at(text, start, end)
    if mark is None:
        mark = QUEUED if continued else note if start == end else None
    if text[:start].isspace() or not start:
        start = 0
    if text[end:].isspace():
        end = len(text)
    joined = queued and mark is None
    return Text(text[:start], text[start:end], text[end:], mark, stamp[0].strip() if stamp else "", joined)


def _mark_at(text: str, start: int, end: int) -> Mark | None:
    found = _ANY.match(text, start, end)
    return MARKS[int(found.lastgroup[1:])] if found and found.lastgroup else None


def read_content(content: Any) -> Text:
    """Take the content of a user message apart: a text, or a list of parts; what is no text is passed over.

    A client may put its own text and the user's into parts of one message, when it leaves out what stood between.
    """
    if isinstance(content, str):
        return read(content)
    listed = content if isinstance(content, list) else []
    parts = [p["text"] for p in listed if isinstance(p, dict) and isinstance(p.get("text"), str)]
    whole = "".join(parts)
    texts = [read(part) for part in parts]
    said = [i for i, text in enumerate(texts) if text.words]
    if not said or all(text.mark is None for text in texts):
        return read(whole)
    first, last = texts[said[0]], texts[said[-1]]
    before = "".join(parts[: said[0]]) + first.before
    behind = last.behind + "".join(parts[said[-1] + 1 :])
    stamp = next((text.stamp for text in texts if text.stamp), "")
    return Text(before, whole[len(before) : len(whole) - len(behind)], behind, first.mark, stamp)


def runtime_facts(text: str) -> dict[str, str]:
    """The facts of a Runtime line at the end of a message, such as sessionId; {} where there is none."""
    line = text[_end_without_runtime(text) :].strip().removeprefix("Runtime: ")
    return dict(fact.strip().split("=", 1) for fact in line.split("|") if "=" in fact)


def _end_without_runtime(text: str) -> int:
    at = text.rfind("Runtime: ")
    line = RUNTIME.begins.match(text, at) if at == 0 or (at > 0 and text[at - 1] == "\n") else None
    return at if line else len(text)


def _without_notes(text: str, start: int, end: int) -> tuple[Mark | None, int, int]:
    """The kind of notes that stood at the beginning or the end, and where the text begins and ends without them."""
    start, end = _stripped(text, start, end)
    note = None
    while text.startswith(BEGIN_REMINDER, start, end) and (at := text.find(END_REMINDER, start, end)) > 0:
        note, (start, end) = _REMINDER, _stripped(text, at + len(END_REMINDER), end)
    while text.endswith(END_REMINDER, start, end) and (at := text.rfind(BEGIN_REMINDER, start, end)) > start:
        note, (start, end) = _REMINDER, _stripped(text, start, at)
    if text.find(BEGIN_NOTE, start, end) < 0:
        return note, start, end
    if text.endswith(END_NOTE, start, end) and (at := text.find(BEGIN_NOTE, start, end)) > start:
        note, end = _NOTE, at
    elif text.startswith(BEGIN_NOTE, start, end) and (at := text.rfind(END_NOTE, start, end)) > start:
        note, start = _NOTE, at + len(END_NOTE)
    return note, start, end


def _stripped(text: str, start: int, end: int) -> tuple[int, int]:
    """The same range without white space at its ends."""
    while start < end and text[start].isspace():
        start += 1
    while end > start and text[end - 1].isspace():
        end -= 1
    return start, end
