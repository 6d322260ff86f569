from __future__ import annotations

import json
from pathlib import Path

import pytest

from instar.chat_format import ChatFormat
from instar.content import last_user_text, text_of
from instar.errors import ModelError, RequestError
from tests.kit.tiny_model import STOP_ID, write_chat_files


@pytest.fixture(scope="module")
def chat(tmp_path_factory: pytest.TempPathFactory) -> ChatFormat:
    return ChatFormat(write_chat_files(tmp_path_factory.mktemp("model")))


HISTORY = [
    {"role": "user", "content": "hi"},
    {"role": "assistant", "content": "hello"},
    {"role": "user", "content": "more"},
]


def test_prompt_ends_where_the_answer_begins(chat: ChatFormat) -> None:
    assert chat.render(HISTORY[:1]) == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


def test_served_ids_are_spliced_in_as_they_were_sampled(chat: ChatFormat) -> None:
    odd = [STOP_ID - 2, *chat.encode("hello"), STOP_ID]  # an id that text would never give
    spliced = chat.encode_prompt(HISTORY, served={1: odd})
    plain = chat.encode_prompt(HISTORY)
    assert spliced != plain
    at = len(chat.encode("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"))
    assert spliced[at : at + len(odd) - 1] == odd[:-1]
    assert spliced[at + len(odd) - 1 :] == plain[at + len(odd) - 2 :]


def test_splicing_what_text_would_give_changes_nothing(chat: ChatFormat) -> None:
    assert chat.encode_prompt(HISTORY, served={1: chat.encode_answer("hello")}) == chat.encode_prompt(HISTORY)


def test_answer_without_a_clean_place_is_encoded(tmp_path: Path) -> None:
    folder = write_chat_files(tmp_path)
    (folder / "chat_template.jinja").write_text(
        "{% for m in messages %}{{ m['content'] + ' and so on. ' }}{% endfor %}", "utf-8"
    )
    chat = ChatFormat(folder)
    assert chat.encode_prompt(HISTORY, served={1: [77, 78]}) == chat.encode_prompt(HISTORY)


def test_streamed_text_equals_whole_text(chat: ChatFormat) -> None:
    text = "안녕 👍 naïve"
    decoder = chat.decoder()
    streamed = "".join(decoder.push([i]) for i in chat.encode(text)) + decoder.finish()
    assert streamed == text


def test_answer_cut_within_a_character_keeps_its_beginning(chat: ChatFormat) -> None:
    ids = chat.encode("ab안")[:-1]
    decoder = chat.decoder()
    assert (decoder.push(ids) + decoder.finish()).startswith("ab")


def test_lone_surrogates_do_not_crash(chat: ChatFormat) -> None:
    assert chat.encode("a\ud800b") == chat.encode("a?b")


@pytest.mark.parametrize("content", [[{"type": "image_url", "image_url": {"url": "x"}}], [3], {"a": 1}])
def test_parts_that_are_no_text_are_refused(content: object) -> None:
    with pytest.raises(RequestError, match="send text"):
        text_of(content)


def test_text_parts_are_joined() -> None:
    assert text_of([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]) == "ab"
    assert text_of(None) == ""


def test_template_that_refuses_is_the_requests_fault(tmp_path: Path) -> None:
    folder = write_chat_files(tmp_path)
    (folder / "chat_template.jinja").write_text("{{ raise_exception('roles must alternate') }}", "utf-8")
    with pytest.raises(RequestError, match="roles must alternate"):
        ChatFormat(folder).render(HISTORY)


@pytest.mark.parametrize(
    "template",
    [
        "{{ 1 / (messages | length - 1) }}",
        "{{ messages[0].content[9] | int / none }}",
        "{{ deep(messages) }}",
    ],
)
def test_whatever_a_template_raises_is_the_requests_fault(tmp_path: Path, template: str) -> None:
    folder = write_chat_files(tmp_path)
    deep = "{% macro deep(x) %}{{ deep(x) }}{% endmacro %}"
    (folder / "chat_template.jinja").write_text(deep + template, "utf-8")
    with pytest.raises(RequestError, match="template cannot take"):
        ChatFormat(folder).render([{"role": "user", "content": "x"}])


def test_text_that_cannot_fit_is_refused_before_it_is_encoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat = ChatFormat(write_chat_files(tmp_path, context_length=16))
    longest = len("<|endoftext|>") * 16
    frame = len(chat.render([{"role": "user", "content": ""}]))
    chat.render([{"role": "user", "content": "x" * (longest - frame)}])  # longer tokens might hold it
    monkeypatch.setattr(chat, "encode", None)
    with pytest.raises(RequestError) as caught:
        chat.encode_prompt([{"role": "user", "content": "x" * (longest - frame + 1)}])
    assert caught.value.code == "context_length_exceeded"


def test_template_cannot_reach_the_machine(tmp_path: Path) -> None:
    folder = write_chat_files(tmp_path)
    (folder / "chat_template.jinja").write_text("{{ messages.__class__.__mro__ }}", "utf-8")
    with pytest.raises(RequestError):
        ChatFormat(folder).render(HISTORY)


@pytest.mark.parametrize(
    ("missing", "match"), [("chat_template.jinja", "instruct"), ("tokenizer.json", "tokenizer.json")]
)
def test_missing_files_are_named(tmp_path: Path, missing: str, match: str) -> None:
    folder = write_chat_files(tmp_path)
    (folder / missing).unlink()
    with pytest.raises(ModelError, match=match):
        ChatFormat(folder)


def test_question_is_found_in_plain_and_in_part_content() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "image_url"}, {"type": "text", "text": "b"}]
    assert last_user_text([{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]) == "x"
    assert last_user_text([{"role": "user", "content": parts}]) == "a\nb"
    assert last_user_text([{"role": "user", "content": None}]) == ""
    assert last_user_text([]) == ""


@pytest.mark.parametrize(
    ("config", "most", "length"),
    [
        ({"max_position_embeddings": 40_960}, None, 40_960),
        ({"max_position_embeddings": 40_960}, 32_768, 32_768),
        ({"max_position_embeddings": 8_192}, 32_768, 8_192),
        ({"n_positions": 1_024}, None, 1_024),
        ({"text_config": {"max_position_embeddings": 4_096}}, None, 4_096),
        ({"seq_length": True}, None, 2_048),
        ({}, 512, 512),
    ],
)
def test_context_is_what_the_model_was_made_for_and_the_engine_holds(
    tmp_path: Path, config: dict[str, object], most: int | None, length: int
) -> None:
    folder = write_chat_files(tmp_path)
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    assert ChatFormat(folder, most_tokens=most).context_length == length
