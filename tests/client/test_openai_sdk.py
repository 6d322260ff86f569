"""The openai SDK with strict validation: answers are what its types say, and a stream says the same as a whole."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any, Literal

import openai
import pydantic
import pytest
from openai.types import Completion, CompletionChoice

from tests.kit.scripted_gateway import Gateway, scripted_gateway

HI: list[Any] = [{"role": "user", "content": "hi"}]
ASKED: dict[str, dict[str, Any]] = {
    "plain": {},
    "greedy": {"temperature": 0},
    "several": {"n": 3, "temperature": 1, "seed": 7},
    "log-probs": {"logprobs": True, "top_logprobs": 2},
    "cut": {"max_tokens": 3},
    "cut by the other name": {"max_completion_tokens": 3},
    "stopped": {"stop": ["e", "a", "o"]},
    "a system and a developer": {
        "messages": [{"role": "system", "content": "x"}, {"role": "developer", "content": "y"}, *HI]
    },
    "parts": {"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]},
    "a history": {
        "messages": [*HI, {"role": "assistant", "content": "yes"}, {"role": "user", "content": "no"}]
    },
    "pinned": {"model": "instar@v1"},
    "the untouched model": {"model": "instar@base"},
    "metadata": {"metadata": {"session_id": "a"}, "user": "b", "store": False, "service_tier": "auto"},
}
RAW_ASKED: dict[str, dict[str, Any]] = {
    "plain": {},
    "several": {"n": 3, "temperature": 1, "seed": 7},
    "log-probs": {"logprobs": 2},
    "stopped": {"stop": ["e", "a", "o"]},
    "token ids": {"prompt": [105, 106, 107]},
    "pinned": {"model": "instar@v1"},
}


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with scripted_gateway(tmp_path_factory.mktemp("sdk")) as gateway:
        yield gateway


@pytest.fixture(scope="module")
def sdk(gateway: Gateway) -> Iterator[openai.OpenAI]:
    url = f"{gateway.url}/v1"
    with openai.OpenAI(
        base_url=url, api_key=gateway.key, max_retries=0, timeout=60, _strict_response_validation=True
    ) as sdk:
        yield sdk


def request(more: dict[str, Any]) -> dict[str, Any]:
    return {"model": "instar", "messages": HI, "temperature": 0, **more}


@pytest.mark.parametrize("more", ASKED.values(), ids=ASKED)
def test_whole_answers_and_streams_are_valid_and_say_the_same(
    sdk: openai.OpenAI, more: dict[str, Any]
) -> None:
    asked = request(more)
    whole = sdk.chat.completions.create(**asked)
    texts, reasons = defaultdict(str), Counter[int]()
    ended: dict[int, str] = {}
    usage = None
    ids = set()
    for chunk in sdk.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}):
        ids.add(chunk.id)
        usage = chunk.usage or usage
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            if choice.finish_reason:
                reasons[choice.index] += 1
                ended[choice.index] = choice.finish_reason
    assert len(ids) == 1
    assert set(reasons.values()) == {1}, "one finish_reason for each choice"
    assert {c.index: (c.message.content, c.finish_reason) for c in whole.choices} == {
        index: (texts[index], ended[index]) for index in ended
    }
    assert usage == whole.usage


def test_log_probs_of_streams_and_whole_answers_are_the_same(sdk: openai.OpenAI) -> None:
    asked = request({"logprobs": True, "top_logprobs": 2})
    whole = sdk.chat.completions.create(**asked).choices[0].logprobs
    assert whole is not None
    assert whole.content
    streamed = [
        token
        for chunk in sdk.chat.completions.create(**asked, stream=True)
        for choice in chunk.choices
        if choice.logprobs
        for token in choice.logprobs.content or []
    ]
    assert streamed == whole.content


def test_models(sdk: openai.OpenAI) -> None:
    models = list(sdk.models.list())
    assert [model.id for model in models] == ["instar", "instar@base", "instar@v1", "instar@v2"]
    assert [sdk.models.retrieve(model.id) for model in models] == models


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({"messages": []}, openai.BadRequestError),
        ({"model": "gpt-4"}, openai.NotFoundError),
        ({"n": 9}, openai.BadRequestError),
        ({"extra_headers": {"authorization": "Bearer x"}}, openai.AuthenticationError),
        ({"extra_headers": {"content-type": "text/plain"}}, openai.APIStatusError),
    ],
)
def test_refusals_are_the_errors_of_the_sdk(sdk: openai.OpenAI, change: dict[str, Any], kind: Any) -> None:
    with pytest.raises(kind) as caught:
        sdk.chat.completions.create(**request(change))
    assert set(caught.value.body) == {"message", "type", "param", "code"}


class StreamedChoice(CompletionChoice):
    """What a chunk holds. The SDK reads chunks into the type of whole answers, which has a finish_reason always.

    OpenAI's own server sends null there until the last chunk, as we do; so its strict mode refuses both.
    """

    finish_reason: Literal["stop", "length", "content_filter"] | None


class StreamedCompletion(Completion):
    choices: list[StreamedChoice]


@pytest.mark.parametrize("more", RAW_ASKED.values(), ids=RAW_ASKED)
def test_completions_and_their_streams_are_valid_and_say_the_same(
    sdk: openai.OpenAI, more: dict[str, Any]
) -> None:
    asked = {"model": "instar", "prompt": "hi", "temperature": 0, "max_tokens": 8, **more}
    whole = sdk.completions.create(**asked)
    body = {**asked, "stream": True, "stream_options": {"include_usage": True}}
    stream = sdk.post(
        "/completions",
        body=body,
        cast_to=StreamedCompletion,
        stream=True,
        stream_cls=openai.Stream[StreamedCompletion],
    )
    *chunks, last = list(stream)
    texts, ended = defaultdict(str), defaultdict(list)
    for chunk in chunks:
        (choice,) = chunk.choices
        texts[choice.index] += choice.text
        if choice.finish_reason is not None:
            ended[choice.index].append(choice.finish_reason)
            Completion.model_validate(chunk.model_dump())  # by the SDK's own type, too
    assert {c.index: (c.text, [c.finish_reason]) for c in whole.choices} == {
        index: (texts[index], ended[index]) for index in texts
    }
    assert {(chunk.id, chunk.object) for chunk in [*chunks, last]} == {(last.id, "text_completion")}
    assert (last.choices, last.usage) == ([], whole.usage)


def test_a_chunk_of_a_completion_lacks_for_the_sdks_type_its_finish_reason_alone(sdk: openai.OpenAI) -> None:
    """Why the test above reads them itself. If this fails, the SDK has learned it: use its own method there."""
    asked: dict[str, Any] = {"model": "instar", "prompt": "hi", "max_tokens": 8, "stream": True}
    with pytest.raises(openai.APIResponseValidationError) as caught:
        list(sdk.completions.create(**asked))
    wrong = caught.value.__cause__
    assert isinstance(wrong, pydantic.ValidationError)
    assert [error["loc"] for error in wrong.errors()] == [("choices", 0, "finish_reason")]


def test_responses(sdk: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": "instar", "input": "hi", "temperature": 0, "max_output_tokens": 16}
    whole = sdk.responses.create(**asked)
    events = list(sdk.responses.create(**asked, stream=True))
    ended = [event for event in events if event.type in {"response.completed", "response.incomplete"}]
    assert len(ended) == 1
    assert ended[0].response.output_text == whole.output_text
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == whole.output_text
