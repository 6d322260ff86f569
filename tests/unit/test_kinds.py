"""What a request is, told from its messages and from what it says of itself."""

from __future__ import annotations

from typing import Any

import pytest

from instar.flow.kinds import RECOGNISERS, Hints, What, recognise, rows, side_reasons
from instar.flow.reasons import REASONS
from instar.records import Kind, Message
from instar.words import MARKS, Role
from tests.kit.desk import assistant, tool, user
from tests.unit.test_words import CONTINUE, NOTE, QUEUED, SAMPLES, STAMP


def what(messages: list[Message], **more: Any) -> What:
    given: dict[str, Any] = {"session": None, "has_tools": False, "side": False, "hints": Hints(), **more}
    return recognise(messages, **given)


def system(text: str) -> Message:
    return {"role": "system", "content": text}


def webui(task: str, heading: str = "Chat History") -> Message:
    """In the form of Open WebUI's own templates, by their public names."""
    return user(
        f"### Task:\n{task}\n### Output:\nJSON\n### {heading}:\n<chat_history>\nUSER: hi\n</chat_history>"
    )


SIDE: list[tuple[str, list[Message], dict[str, Any]]] = [
    ("compaction", [system("You are a context summarization assistant. Your task"), user("<c>")], {}),
    ("title", [system("<!-- x -->"), user("short title")], {"session": "slug-generator-0adbede7:0"}),
    ("title", [user(f"{STAMP}Based on this conversation, generate a short 1-2 word filename slug (low")], {}),
    (
        "title",
        [
            system(
                "Generate a concise session title (3-6 words). You are labeling the supplied message, not "
                "participating in its conversation. Treat"
            ),
            user("hello"),
        ],
        {},
    ),
    ("cron", [user("anything")], {"session": "openclaw-cron-a22884", "has_tools": True}),
    ("cron", [user("anything")], {"session": "agent:main:cron:2d43cc4d", "has_tools": True}),
    ("cron", [user(SAMPLES["cron"]), assistant("x"), tool("c", "y")], {"has_tools": True}),
    (
        "model_run",
        [system("s"), user("Reply with exactly: pong")],
        {"session": "internal-session-effects-0c:0"},
    ),
    ("model_run", [system("Current model identity: rl/stub. If asked"), user("pong")], {}),
    ("review", [system("You are OpenClaw's exec safety reviewer. You review"), user("ls")], {}),
    ("webui_task", [webui("Generate a concise title summarizing the chat history.")], {}),
    ("webui_task", [webui("Generate 1-3 broad tags categorizing the main themes of the chat history")], {}),
    ("webui_task", [webui("Suggest 3-5 relevant follow-up questions or prompts")], {}),
    ("webui_task", [system("Be kind."), webui("You are an autocompletion system.", "Context")], {}),
    (
        "webui_task",
        [
            user(
                "### Task:\nSummarize the conversation history that will be compacted out of the active chat "
                "context.\n\n### Instructions:\n- Be factual.\n\n### Messages Being Compacted:\nUSER: hi"
            )
        ],
        {},
    ),
    (
        "webui_task",
        [
            user(
                "You have been provided with a set of responses from various models to the latest user query: "
                '"hi"\n\nYour task is to synthesize these responses'
            )
        ],
        {},
    ),
    ("webui_task", [user("Your task is to reflect the speaker's likely facial expression through a")], {}),
    (
        "webui_task",
        [
            system(
                "Available Tools: []\n\nYour task is to choose and return the correct tool(s) from the list of "
                "available tools based on the query."
            ),
            user("Query: hi"),
        ],
        {},
    ),
    (
        "librechat_title",
        [user("Provide a concise, 5-word-or-less title for the conversation, using its same language")],
        {},
    ),
    (
        "librechat_title",
        [
            user(
                "Analyze this conversation and provide:\n1. The detected language of the conversation\n2. A concise "
                "title in the detected language (5 words or less)"
            )
        ],
        {},
    ),
    ("heartbeat", [user("q"), assistant("a"), user(SAMPLES["heartbeat"]), user(NOTE)], {"has_tools": True}),
    *((mark.name, [user(SAMPLES[mark.name])], {}) for mark in MARKS if mark.role is Role.OTHER),
]


@pytest.mark.parametrize(("name", "messages", "more"), SIDE, ids=[row[0] for row in SIDE])
def test_what_clients_do_for_themselves(name: str, messages: list[Message], more: dict[str, Any]) -> None:
    found = what(messages, **more)
    assert (found.kind, found.name, found.reason) == (Kind.SIDE, name, name)
    assert found.why


def test_every_recogniser_has_an_example_here() -> None:
    known = {one.name for one in RECOGNISERS} | {mark.name for mark in MARKS if mark.role is Role.OTHER}
    assert {name for name, _, _ in SIDE} == known


PLAIN: list[tuple[list[Message], dict[str, Any]]] = [
    ([user("hi")], {}),
    ([user("Give me a short title for my essay")], {}),
    ([user("### Task:\nSort this list: <chat_history> is not in it")], {}),
    (
        [
            user(
                "### Task:\nRespond to the user query using the provided context\n<context>\nx\n</context>\nhi"
            )
        ],
        {},
    ),
    ([system("You are a context summarization assistant"), user("hi")], {"has_tools": True}),
    ([system("You are helpful."), user("You are a context summarization assistant")], {}),
    (
        [
            user("q"),
            assistant("a"),
            user("Provide a concise, 5-word-or-less title for the conversation, now"),
        ],
        {},
    ),
    ([user("q")], {"session": "my-slug-generator-1"}),
    ([user("q")], {"session": "slug-generator-1", "has_tools": True}),
    ([user(SAMPLES["heartbeat"]), assistant("NO_REPLY"), user("thanks")], {}),
]


@pytest.mark.parametrize(("messages", "more"), PLAIN)
def test_what_only_looks_alike_is_conversation(messages: list[Message], more: dict[str, Any]) -> None:
    assert what(messages, **more) == What(Kind.MAIN)


def test_what_its_client_says_comes_first() -> None:
    title = SIDE[1][1]
    assert what(title, session="slug-generator-1", hints=Hints(main=True)) == What(Kind.MAIN)
    assert what([user("hi")], side=True).reason == "side"
    retried = [user(f"{STAMP}{QUEUED}q{CONTINUE}")]
    assert what(retried, hints=Hints(main=True)).kind is Kind.RETRY


def test_steps_and_tries() -> None:
    step = [user("q"), assistant("a"), tool("c", "r")]
    assert what(step) == What(Kind.TOOL_STEP, after_tools=True)
    assert what([*step, user(NOTE)]) == What(Kind.TOOL_STEP, after_tools=True)
    again = what([*step, user(CONTINUE.strip()), user(NOTE)])
    assert (again.kind, again.name, again.after_tools) == (Kind.RETRY, "continue", True)
    wrapped = what([user(f"{STAMP}{QUEUED}q{CONTINUE}"), user(NOTE)])
    assert (wrapped.kind, wrapped.name, wrapped.after_tools) == (Kind.RETRY, "retry_wrapper", False)
    unseen = what([user("q"), user(f"{STAMP}{SAMPLES['no_visible_answer']}")])
    assert (unseen.kind, unseen.name) == (Kind.RETRY, "no_visible_answer")
    assert what([user("q")], hints=Hints(again=True)).name == "resent"
    old = [user(f"{QUEUED}q{CONTINUE}"), assistant("a"), user("next")]
    assert what(old).kind is Kind.MAIN


def test_requests_without_anything_said() -> None:
    assert what([system("s")]).kind is Kind.MAIN
    assert what([user(NOTE)]).kind is Kind.MAIN
    assert what([user("")]).kind is Kind.MAIN


def test_every_reason_is_told_in_words() -> None:
    assert side_reasons().keys() <= REASONS.keys()
    assert all(all(cell for cell in row) for row in rows())
    names = [(row[0], row[1], row[2]) for row in rows()]
    assert len(set(names)) == len(names)
