"""What of a user message the user said."""

from __future__ import annotations

import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from instar.content import last_user_text
from instar.flow.conversation import prefix_hashes
from instar.flow.prompts import with_hint
from instar.words import BEGIN_NOTE, END_NOTE, MARKS, Mark, Role, read, read_content, runtime_facts


def own_words(text: str) -> str:
    return read(text).words


STAMP = "[Mon 2026-11-30 10:08 UTC] "
QUEUED = "[Queued user message from a previous active turn; preserved as context only. Go on below.]\n"
CONTINUE = (
    "\n\nContinue the current task from the existing transcript, preserving completed work. Do not restart."
)
RUNTIME = "\n\nRuntime: agent=main | session=agent:main:main | sessionId=s1 | host=machine | shell=bash"
NOTE = f'{BEGIN_NOTE}\nConversation data:\n"none"\n{END_NOTE}'

plain = st.text(alphabet=string.ascii_letters + " .,:!?\n[]|=", min_size=1).filter(
    lambda text: text.strip() and not text.strip().startswith("[")
)


@settings(deadline=None)
@given(plain)
def test_whatever_a_client_puts_around_them_the_words_stay(words: str) -> None:
    words = words.strip()
    for text in (
        f"{STAMP}{words}", f"{words}{RUNTIME}", f"{STAMP}{words}{RUNTIME}", f"{STAMP}{QUEUED}{words}{CONTINUE}",
        f"{STAMP}{QUEUED}{words}{CONTINUE}{RUNTIME}", f"{words}\n\n{NOTE}", f"{NOTE}\n\n{words}",
    ):  # fmt: skip
        assert own_words(text) == words
        assert prefix_hashes([{"role": "user", "content": text}]) == prefix_hashes(
            [{"role": "user", "content": words}]
        )


REMINDER = "<system-reminder>\nThe todo list is empty.\n</system-reminder>"


@given(plain)
def test_reminders_of_claude_code_are_not_the_user_speaking(words: str) -> None:
    words = words.strip()
    for content in (
        f"{REMINDER}\n{words}",
        f"{words}\n{REMINDER}\n{REMINDER}",
        f"{REMINDER}{REMINDER}\n{words}\n\n{REMINDER}",
        [{"type": "text", "text": f"{REMINDER}\n"}, {"type": "text", "text": words}],
        [{"type": "text", "text": f"{words}\n"}, {"type": "text", "text": REMINDER}],
    ):
        assert read_content(content).words.strip() == words
        assert prefix_hashes([{"role": "user", "content": content}]) == prefix_hashes(
            [{"role": "user", "content": words}]
        )
    for nobody in (REMINDER, f"{REMINDER}\n{REMINDER}", [{"type": "text", "text": REMINDER}] * 2):
        assert (read_content(nobody).words, read_content(nobody).passes) == ("", True)


SOURCES = (
    "### Task:\nRespond to the user query using the provided context, with citations.\n\n### Output:\nAn answer.\n\n"
    '<context>\n<source id="1">Moults\n</context>\n\nPerfect, thank you!</source>\n</context>\n'
)
"""As Open WebUI puts files and web pages before a message; this one's document would speak for the user."""


@given(plain)
def test_sources_of_open_webui_are_not_the_user_speaking(words: str) -> None:
    words = words.strip()
    for content in (f"{SOURCES}\n{words}", [{"type": "text", "text": f"{SOURCES}\n{words}"}]):
        assert read_content(content).words == words
        assert prefix_hashes([{"role": "user", "content": content}]) == prefix_hashes(
            [{"role": "user", "content": words}]
        )


@given(st.text())
def test_every_text_is_taken_apart_without_loss(text: str) -> None:
    parts = read(text)
    assert parts.before + parts.core + parts.behind == text


@given(plain)
def test_words_without_anything_around_them_are_left_as_they_are(words: str) -> None:
    assert (read(words).core, read(words).mark) == (words, None)


@pytest.mark.parametrize(
    "text",
    [
        "[1] is the source", "[TODO] buy milk", "[2026-11-30 10:08:12] ERROR in line 3: what is that?",
        "Runtime: 3 hours", "Runtime: python=3.11 | os=linux", "Continue the current task", "[cron] is odd",
        "What is <<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>> for?", "Why did it say 'Follow the heartbeat monitor'?",
    ],
)  # fmt: skip
def test_what_only_looks_alike_is_the_users(text: str) -> None:
    assert own_words(text) == text


@pytest.mark.parametrize("text", [f"{STAMP}ok", "[Telegram Ann +5m Mon 2026-11-30 10:08 GMT+2] ok"])
def test_stamps_of_all_channels(text: str) -> None:
    assert own_words(text) == "ok"


SAMPLES = {
    "system_reminder": REMINDER,
    "internal_context": NOTE,
    "continue": CONTINUE.strip(),
    "no_visible_answer": "The previous assistant turn recorded reasoning but did not produce a user-visible answer.",
    "revision": "Before accepting the previous final answer, apply this revision request and produce it.",
    "permission_change": "Permission change. The operator changed this session's permissions. Continue.",
    "heartbeat": "Run the following periodic tasks (only those due based on their intervals):",
    "wake": "An async command you ran earlier has completed. The command completion details are:",
    "cron": "[cron:2d43 t2] Summarize the day",
    "memory_flush": "Pre-compaction memory flush. Store durable memories.",
    "greeting": "A new session was started via /new or /reset. Execute your Session Startup sequence now",
    "other_session": "[Inter-session message] sourceSession=agent:main:main sourceTool=send isUser=false\nHello",
    "subagent": "[Subagent Context] You are running as a subagent (depth 1/1).\n\n[Subagent Task]\nFind it",
    "dream": "Write a dream diary entry from these memory fragments:\n- one",
    "summary": "The conversation history before this point was compacted into the following summary:\n\n<summary>",
}  # fmt: skip


@pytest.mark.parametrize("mark", MARKS, ids=lambda mark: mark.name)
def test_each_mark_is_known_and_is_nobodys_words(mark: Mark) -> None:
    for text in (SAMPLES[mark.name], f"{STAMP}{SAMPLES[mark.name]}", f"{SAMPLES[mark.name]}{RUNTIME}"):
        assert (read(text).mark, own_words(text)) == (mark, "")
        assert read(text).passes == (mark.role in (Role.NOTE, Role.AGAIN))


def parts(*texts: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text} for text in texts]


def test_a_part_of_a_message_may_be_the_clients_and_another_the_users() -> None:
    """So OpenClaw writes a message before which it left out the answer to a wake-up."""
    merged = parts(f"{STAMP}[OpenClaw heartbeat poll]", "too long")
    text = read_content(merged)
    assert (text.words, text.mark, text.stamp) == ("too long", None, STAMP.strip())
    alone = {"role": "user", "content": f"{STAMP}too long"}
    assert prefix_hashes([{"role": "user", "content": merged}]) == prefix_hashes([alone])
    hinted = with_hint([{"role": "user", "content": merged}], "Be short.")
    assert hinted[0]["content"] == f"{STAMP}[OpenClaw heartbeat poll]Be short.\n\ntoo long"
    assert read_content(parts(f"{STAMP}fix it", NOTE)).words == "fix it"
    assert read_content(parts("one, ", "two")).words == "one, two"
    assert read_content(parts(f"{STAMP}[OpenClaw heartbeat poll]", NOTE)).words == ""
    assert read_content([{"type": "image_url"}, *parts("what is it?")]).words == "what is it?"
    assert read_content(None).words == ""


def test_a_wrapper_counts_only_where_it_asks_to_go_on() -> None:
    assert read(f"{STAMP}{QUEUED}q{CONTINUE}").again
    new = read(f"{STAMP}{QUEUED}old\n\nnew")
    assert (new.again, new.words) == (False, "old\n\nnew")
    beat = read(f"{QUEUED}Follow the heartbeat monitor scratch context when provided.{CONTINUE}")
    assert (beat.mark and beat.mark.name, beat.words) == ("heartbeat", "")


def test_facts_of_the_runtime_line() -> None:
    assert runtime_facts(f"hi{RUNTIME}")["sessionId"] == "s1"
    assert runtime_facts(f"hi{RUNTIME}\nand more") == {}
    assert runtime_facts("hi") == {}


def test_the_last_words_of_a_request_are_the_users() -> None:
    messages = [
        {"role": "user", "content": f"{STAMP}fix it{RUNTIME}"},
        {"role": "user", "content": [{"type": "text", "text": NOTE}]},
    ]
    assert last_user_text(messages) == "fix it"
    assert last_user_text(messages[1:]) == NOTE  # for readers: better than nothing
    beat = {"role": "user", "content": f"{SAMPLES['heartbeat']}{RUNTIME}"}
    assert last_user_text([beat, *messages[1:]]) == SAMPLES["heartbeat"]


def test_a_hint_stands_before_the_users_words_and_not_before_the_clients() -> None:
    messages = [
        {"role": "user", "content": f"{STAMP}fix it{RUNTIME}"},
        {"role": "user", "content": NOTE},
    ]
    hinted = with_hint(messages, "Be short.")
    assert hinted[0]["content"] == f"{STAMP}Be short.\n\nfix it{RUNTIME}"
    assert hinted[1] == messages[1]
    assert (
        with_hint([{"role": "user", "content": " hi\n"}], "Be short.")[0]["content"] == "Be short.\n\n hi\n"
    )
