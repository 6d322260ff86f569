"""A conversation of three turns with a correction in the second, as an ordinary user of the SDK writes it.

`three_turns.py CLIENT BASE_URL KEY QUESTION CORRECTION PRAISE`; prints {"answers": […], "version": …}. It sets no
special headers.
"""

from __future__ import annotations

import importlib.metadata
import json
import sys
from collections.abc import Callable
from typing import Any

Ask = Callable[[list[dict[str, Any]]], str]


def openai_whole(url: str, key: str) -> Ask:
    from openai import OpenAI

    client = OpenAI(base_url=url, api_key=key)

    def ask(messages: list[dict[str, Any]]) -> str:
        answer = client.chat.completions.create(model="instar", messages=messages)
        return answer.choices[0].message.content

    return ask


def openai_stream(url: str, key: str) -> Ask:
    from openai import OpenAI

    client = OpenAI(base_url=url, api_key=key)

    def ask(messages: list[dict[str, Any]]) -> str:
        stream = client.chat.completions.create(model="instar", messages=messages, stream=True)
        return "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)

    return ask


def openai_responses(url: str, key: str) -> Ask:
    """The newer API, with the history sent along."""
    from openai import OpenAI

    client = OpenAI(base_url=url, api_key=key)

    def ask(messages: list[dict[str, Any]]) -> str:
        return client.responses.create(model="instar", input=messages).output_text

    return ask


def litellm(url: str, key: str) -> Ask:
    import litellm

    def ask(messages: list[dict[str, Any]]) -> str:
        answer = litellm.completion(model="openai/instar", api_base=url, api_key=key, messages=messages)
        return answer.choices[0].message.content

    return ask


def litellm_stream(url: str, key: str) -> Ask:
    import litellm

    def ask(messages: list[dict[str, Any]]) -> str:
        chunks = litellm.completion(
            model="openai/instar", api_base=url, api_key=key, messages=messages, stream=True
        )
        return "".join(chunk.choices[0].delta.content or "" for chunk in chunks)

    return ask


def langchain(url: str, key: str) -> Ask:
    """Its own message objects make the round trip, with all that it keeps in them."""
    from langchain_core.messages import HumanMessage
    from langchain_openai import ChatOpenAI

    chat = ChatOpenAI(base_url=url, api_key=key, model="instar")
    history: list[Any] = []

    def ask(messages: list[dict[str, Any]]) -> str:
        history.append(HumanMessage(messages[-1]["content"]))
        history.append(chat.invoke(history))
        return history[-1].content

    return ask


def langchain_stream(url: str, key: str) -> Ask:
    from langchain_openai import ChatOpenAI

    chat = ChatOpenAI(base_url=url, api_key=key, model="instar")

    def ask(messages: list[dict[str, Any]]) -> str:
        return "".join(chunk.content for chunk in chat.stream(messages))

    return ask


def anthropic(url: str, key: str) -> Ask:
    from anthropic import Anthropic

    client = Anthropic(base_url=url.removesuffix("/v1"), api_key=key)

    def ask(messages: list[dict[str, Any]]) -> str:
        answer = client.messages.create(model="instar", max_tokens=256, messages=messages)
        return answer.content[0].text

    return ask


def anthropic_stream(url: str, key: str) -> Ask:
    """The answer's content blocks go back as they came, as the SDK's documentation shows it."""
    from anthropic import Anthropic

    client = Anthropic(base_url=url.removesuffix("/v1"), api_key=key)
    history: list[Any] = []

    def ask(messages: list[dict[str, Any]]) -> str:
        history.append(messages[-1])
        with client.messages.stream(model="instar", max_tokens=256, messages=history) as stream:
            answer = stream.get_final_message()
        history.append({"role": "assistant", "content": answer.content})
        return answer.content[0].text

    return ask


def main() -> None:
    client, url, key, *said = sys.argv[1:]
    ask = globals()[client](url, key)
    messages: list[dict[str, Any]] = []
    answers = []
    for text in said:
        messages.append({"role": "user", "content": text})
        answers.append(ask(messages))
        messages.append({"role": "assistant", "content": answers[-1]})
    package = {"langchain": "langchain-openai"}.get(client.partition("_")[0], client.partition("_")[0])
    print(json.dumps({"answers": answers, "version": importlib.metadata.version(package)}))


if __name__ == "__main__":
    main()
