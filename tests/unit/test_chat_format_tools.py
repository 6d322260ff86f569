"""Tools, calls, results and thinking in prompts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import pytest

from instar.answers import FORMATS, FormatName
from instar.chat_format import ChatFormat
from instar.config import Settings
from tests.kit import templates
from tests.kit.tiny_model import TEMPLATE, write_chat_files

TOOL = {
    "type": "function",
    "function": {"name": "ls", "description": "Lists", "parameters": {"type": "object"}},
}
OPEN = "<|im_start|>assistant\n"


def made(call_id: str = "call_1", arguments: str = '{"path": "/"}', **more: Any) -> dict[str, Any]:
    call = {"id": call_id, "type": "function", "function": {"name": "ls", "arguments": arguments}}
    return {"role": "assistant", "content": None, "tool_calls": [call], **more}


def step(call_id: str = "call_1", **more: Any) -> list[dict[str, Any]]:
    return [
        {"role": "user", "content": "What is there?"},
        made(call_id, **more),
        {"role": "tool", "tool_call_id": call_id, "content": "a.txt"},
    ]


@pytest.fixture(params=[TEMPLATE, *templates.ALL.values()], ids=["told in words", *templates.ALL])
def any_template(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def chat_of(
    folder: Path, template: str, special: tuple[str, ...] = (), form: FormatName | None = None
) -> ChatFormat:
    return ChatFormat(write_chat_files(folder, 512, template, special), form)


def test_settings_and_formats_name_the_same() -> None:
    known = get_args(Settings.model_fields["tool_format"].annotation)
    assert set(known) == {"auto", *FORMATS}


def test_a_template_that_knows_tools_gets_them_and_arguments_as_objects(tmp_path: Path) -> None:
    chat = chat_of(tmp_path, templates.HERMES)
    assert (chat.tool_format.name, chat.takes_tools) == ("hermes", True)
    text = chat.render(step(), tools=[TOOL])
    assert json.dumps(TOOL) in text
    assert '<tool_call>\n{"name": "ls", "arguments": {"path": "/"}}\n</tool_call><|im_end|>' in text
    assert "<tool_response>\na.txt\n</tool_response>" in text


def test_ids_are_what_mistral_demands_and_a_clients_rewriting_changes_nothing(tmp_path: Path) -> None:
    chat = chat_of(tmp_path, templates.MISTRAL)
    text = chat.render(step("call_abcdef0123"), tools=[TOOL])
    assert text.count('"000000000"') == 2
    assert text == chat.render(step("callabcdef0123"), tools=[TOOL])


def test_a_template_without_tools_is_told_in_words(tmp_path: Path) -> None:
    chat = chat_of(tmp_path, TEMPLATE)
    assert (chat.tool_format.name, chat.takes_tools) == ("hermes", False)
    messages = [{"role": "system", "content": "Be brief."}, *step(), {"role": "user", "content": "And now?"}]
    text = chat.render(messages, tools=[TOOL])
    assert text.startswith("<|im_start|>system\nBe brief.\n\nYou may call these functions:\n")
    assert '{"name": "ls", "description": "Lists", "parameters": {"type": "object"}}' in text
    assert OPEN + '<tool_call>\n{"name": "ls", "arguments": {"path": "/"}}\n</tool_call><|im_end|>' in text
    assert "<|im_start|>user\n<tool_response>\na.txt\n</tool_response>\nAnd now?<|im_end|>" in text, (
        "results and the user's words are one message"
    )
    assert "<|im_start|>tool" not in text


def test_without_tools_nothing_is_added(tmp_path: Path) -> None:
    chat = chat_of(tmp_path, TEMPLATE)
    assert chat.render([{"role": "user", "content": "hi"}]) == f"<|im_start|>user\nhi<|im_end|>\n{OPEN}"


def test_a_template_that_takes_no_system_message_gets_the_tools_before_the_users_words(
    tmp_path: Path,
) -> None:
    refuses = (
        "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
        "{{ m.role }}: {{ m.content }}\n{% endfor %}"
    )
    text = chat_of(tmp_path, refuses).render([{"role": "user", "content": "hi"}], tools=[TOOL])
    assert text.startswith("user: You may call these functions:")
    assert text.endswith("\n\nhi\n")


def test_the_setting_overrides_the_template(tmp_path: Path) -> None:
    chat = chat_of(tmp_path, templates.HERMES, form="json")
    assert (chat.tool_format.name, chat.takes_tools) == ("json", False)
    assert '{"name": "ls", "arguments": {"path": "/"}}<|im_end|>' in chat.render(step(), tools=[TOOL])


@pytest.mark.parametrize("template", [templates.HERMES, TEMPLATE])
def test_sampled_calls_are_spliced_in_as_they_were(tmp_path: Path, template: str) -> None:
    chat = chat_of(tmp_path, template)
    sampled = chat.encode_answer('<tool_call>{"name":"ls","arguments":{"path":"/"}}</tool_call>')  # no spaces
    spliced = chat.encode_prompt(step(), served={1: sampled}, tools=[TOOL])
    plain = chat.encode_prompt(step(), tools=[TOOL])
    assert spliced != plain
    assert chat.decode(spliced) == chat.decode(plain).replace(
        '<tool_call>\n{"name": "ls", "arguments": {"path": "/"}}\n</tool_call>',
        '<tool_call>{"name":"ls","arguments":{"path":"/"}}</tool_call>',
    )


def test_where_the_template_wants_to_see_the_call_it_is_encoded(tmp_path: Path) -> None:
    chat = chat_of(tmp_path, templates.MISTRAL)
    sampled = chat.encode_answer('[TOOL_CALLS][{"name":"ls","arguments":{"path":"/"}}]')
    messages = [*step(), {"role": "assistant", "content": "a.txt"}, {"role": "user", "content": "thanks"}]
    odd = [0, *chat.encode("a.txt"), 2]
    spliced = chat.encode_prompt(messages, served={1: sampled, 3: odd}, tools=[TOOL])
    assert chat.encode_prompt(messages, served={3: odd}, tools=[TOOL]) == spliced
    assert 0 in spliced, "the answer without a call is spliced all the same"


THOUGHT = "<think>\nLet me see.\n</think>\n\n"


def test_thinking_is_spliced_where_the_template_keeps_it(tmp_path: Path) -> None:
    chat = chat_of(tmp_path, templates.THINKING)
    assert chat.tags.native
    sampled = chat.encode_answer(THOUGHT + '<tool_call>{"name":"ls","arguments":{"path":"/"}}</tool_call>')
    spliced = chat.encode_prompt(step(reasoning_content="Let me see."), served={1: sampled}, tools=[TOOL])
    assert THOUGHT + '<tool_call>{"name":"ls"' in chat.decode(spliced)


def test_thinking_is_left_out_where_the_template_drops_it_and_the_rest_is_spliced(tmp_path: Path) -> None:
    chat = chat_of(tmp_path, templates.THINKING)
    sampled = chat.encode_answer(THOUGHT + '<tool_call>{"name":"ls","arguments":{"path":"/"}}</tool_call>')
    messages = [*step(reasoning_content="Let me see."), {"role": "user", "content": "thanks"}]
    text = chat.decode(chat.encode_prompt(messages, served={1: sampled}, tools=[TOOL]))
    assert "Let me see." not in text
    assert '<tool_call>{"name":"ls"' in text


def test_a_prompt_that_opens_thinking_is_known_and_what_was_thought_does_not_come_back(
    tmp_path: Path,
) -> None:
    chat = chat_of(tmp_path, templates.OPENED)
    prompt = chat.encode_prompt([{"role": "user", "content": "hi"}])
    assert chat.is_thinking(prompt)
    assert not chat.is_thinking(prompt[:-12])
    sampled = chat.encode_answer("Hm.\n</think>\n\nhello")
    messages = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "hello", "reasoning_content": "Hm."},
        {"role": "user", "content": "more"},
    ]
    text = chat.decode(chat.encode_prompt(messages, served={1: sampled}))
    assert text == "user\nhi\nassistant\nhello\nuser\nmore\nassistant\n<think>\n"


def test_markers_that_are_special_tokens_reach_the_reader(tmp_path: Path) -> None:
    chat = chat_of(tmp_path, templates.MISTRAL, ("[TOOL_CALLS]", "[INST]"))
    ids = chat.encode_answer('[TOOL_CALLS][{"name": "ls", "arguments": {}}]')
    assert len(ids) == len('[{"name": "ls", "arguments": {}}]') + 2
    seen = chat.decoder(with_calls=True)
    assert seen.push(ids) + seen.finish() == '[TOOL_CALLS][{"name": "ls", "arguments": {}}]'
    unseen = chat.decoder()
    assert unseen.push(ids) + unseen.finish() == '[{"name": "ls", "arguments": {}}]'


def test_an_answer_covers_its_tokens_unless_its_text_was_cut(tmp_path: Path) -> None:
    chat = chat_of(tmp_path, TEMPLATE)
    assert chat.covers(chat.encode_answer("hello"), "hello")
    assert chat.covers(chat.encode_answer("<tool_call>…"), None), "it ended by itself: nothing was left out"
    assert chat.covers(chat.encode("hel"), "hel"), "cut by the token limit"
    assert not chat.covers(chat.encode("hello. More"), "hello"), "cut by a stop string"
    assert not chat.covers([], "")


# ── every template ──────────────────────────────────────────────────────────────────────────────────────
def test_what_a_developer_says_reaches_the_model(tmp_path: Path, any_template: str) -> None:
    chat = chat_of(tmp_path, any_template)
    said = [{"role": "developer", "content": "Say it in rhymes."}, {"role": "user", "content": "hi"}]
    text = chat.render(said, tools=[TOOL])
    assert "Say it in rhymes." in text
    assert "developer" not in text
    both = chat.render([{"role": "system", "content": "Be brief."}, *said])
    assert both == chat.render([{"role": "system", "content": "Be brief.\n\nSay it in rhymes."}, said[1]])
    assert chat.render([said[1], {"role": "assistant", "content": "hello"}, said[1]])


def test_a_template_that_knows_developers_keeps_them(tmp_path: Path) -> None:
    knows = TEMPLATE + "{# system, developer #}"
    text = chat_of(tmp_path, knows).render(
        [{"role": "developer", "content": "Rhyme."}, {"role": "user", "content": "hi"}], tools=[TOOL]
    )
    assert text.startswith("<|im_start|>developer\nRhyme.\n\nYou may call these functions:")


def test_a_functions_result_reaches_the_model(tmp_path: Path, any_template: str) -> None:
    chat = chat_of(tmp_path, any_template)
    call = {"function": {"name": "ls", "arguments": "{}"}}
    history = [
        {"role": "user", "content": "What is there?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "function", "name": "ls", "content": "a.txt"},
    ]
    assert "a.txt" in chat.render(history, tools=[TOOL])
    assert chat.render(history, tools=[TOOL]) == chat.render(step(arguments="{}"), tools=[TOOL])


@pytest.mark.parametrize("arguments", ["not json", '{"path": ', "[1]", "3", "null", "", None, '{"a": NaN}'])
def test_a_call_that_came_to_nothing_can_stay_in_the_history(
    tmp_path: Path, any_template: str, arguments: str | None
) -> None:
    """Else a conversation in which an answer was cut within a call could never go on."""
    chat = chat_of(tmp_path, any_template)
    text = chat.render(step(arguments=arguments), tools=[TOOL])
    assert "a.txt" in text
    assert "ls" in text
    assert (arguments or "") in text.replace("\\", "")
