"""What a request says of its session and of itself, whatever API it came through."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr, ValidationError

from instar.config import Settings
from instar.flow.kinds import Hints
from instar.gateway.keys import KeyRing
from instar.gateway.session_hints import SESSION_HEADERS, SessionHints, session_hints, speaker
from instar.records import Caller


@pytest.mark.parametrize("header", SESSION_HEADERS)
def test_each_header_names_the_session(header: str) -> None:
    assert session_hints({header: "s"}, {"prompt_cache_key": "other"}).session_id == "s"


@pytest.mark.parametrize(
    "body",
    [
        {"session_id": "s"}, {"litellm_session_id": "s"}, {"metadata": {"session_id": "s"}},
        {"metadata": {"litellm_session_id": "s"}}, {"metadata": {"conversation_id": "s"}}, {"prompt_cache_key": "s"},
        {"session_id": 5, "metadata": ["x"], "prompt_cache_key": "s"},
        {"session_id": "s", "metadata": {"session_id": "t"}, "prompt_cache_key": "u"},
    ],
)  # fmt: skip
def test_each_field_names_the_session(body: dict[str, Any]) -> None:
    assert session_hints({}, body).session_id == "s"


@pytest.mark.parametrize(
    "nothing", ["", " ", "null", "None", "undefined", "new", "{{LIBRECHAT_BODY_CONVERSATIONID}}"]
)
def test_what_is_sent_where_there_is_no_id_yet_is_none(nothing: str) -> None:
    assert session_hints({"x-conversation-id": nothing}, {"session_id": nothing}) == SessionHints()
    assert session_hints({"x-session-id": nothing}, {"session_id": "s"}).session_id == "s"


def test_a_cache_key_alone_may_stand_for_many_conversations() -> None:
    assert session_hints({}, {"prompt_cache_key": "app"}).hints == Hints(shared_id=True)
    assert session_hints({"session_id": "m2:0"}, {"prompt_cache_key": "m2:0"}).hints == Hints()


def test_a_chat_windows_id_is_known_as_one() -> None:
    assert session_hints({"x-openwebui-chat-id": "c"}, {}).hints == Hints(chat_id=True)


@pytest.mark.parametrize(
    ("headers", "side", "hints"),
    [
        ({"x-turn-type": "side"}, True, Hints()), ({"x-turn-type": "SIDE "}, True, Hints()),
        ({"x-turn-type": "main"}, False, Hints(main=True)), ({"x-turn-type": "odd"}, False, Hints()),
        ({"x-session-done": "1"}, False, Hints(done=True)), ({"x-session-done": "true"}, False, Hints(done=True)),
        ({"x-session-done": "0"}, False, Hints()), ({"x-stainless-retry-count": "0"}, False, Hints()),
        ({"x-stainless-retry-count": "2"}, False, Hints(again=True)),
    ],
)  # fmt: skip
def test_what_headers_say_of_the_request(headers: dict[str, str], side: bool, hints: Hints) -> None:
    found = session_hints(headers, {})
    assert (found.side, found.hints) == (side, hints)


PROXY = Caller("key", "proxy", "proxy")


def test_only_behind_a_proxys_key_a_user_is_believed() -> None:
    assert speaker(Caller("key", "default"), "ann").learner == "default"
    assert speaker(PROXY, "ann") == Caller("key", "proxy/ann", "proxy")
    assert {speaker(PROXY, user) for user in (None, "", "  ", 7, ["ann"])} == {PROXY}
    assert speaker(PROXY, "default").learner != "default"


@pytest.mark.parametrize("user", ["a" * 500, "x\r\nforged: line", "s\x1b[31m"])
def test_hostile_names_are_stored_harmlessly(user: str) -> None:
    learner = speaker(PROXY, user).learner
    assert learner.isprintable()
    assert len(learner) < 100
    assert learner != speaker(PROXY, user + "b").learner


def test_the_proxys_key_is_another_one(tmp_path: Path) -> None:
    ring = KeyRing.of("one", "two")
    assert sorted((c.learner, c.role) for c in ring.digests.values()) == [
        ("default", "user"),
        ("proxy", "proxy"),
    ]
    with pytest.raises(ValidationError, match="proxy_key"):
        Settings(data_dir=tmp_path, api_key=SecretStr("k"), proxy_key=SecretStr("k"))
