"""What to give to clients that are set up by hand: a block each, complete, to be pasted and run as it is.

`{url}` ends in `/v1`, `{root}` does not; the tests run every program among these against a live server.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from instar.cli.openclaw import Served


@dataclass(frozen=True, slots=True)
class Snippet:
    """`first` installs the client; `note` is what one would otherwise find out too late."""

    title: str
    first: str
    block: str
    note: str = ""

    def filled(self, model: Served) -> Snippet:
        values = {"url": f"{model.url}/v1", "root": model.url, "key": model.key, "name": model.name}
        block, note = self.block, self.note
        for name, value in values.items():
            block, note = (text.replace("{" + name + "}", value) for text in (block, note))
        return replace(self, block=block, note=note)


SNIPPETS = {
    "env": Snippet(
        "any program that reads OpenAI's variables",
        "",
        """\
export OPENAI_BASE_URL={url}
export OPENAI_API_KEY={key}
""",
        "The model's name is {name}; it is set where the program keeps it.",
    ),
    "openai": Snippet(
        "the OpenAI SDK for Python",
        "pip install openai",
        """\
from openai import OpenAI

client = OpenAI(base_url="{url}", api_key="{key}")
messages = [{"role": "user", "content": "Hello!"}]
answer = client.chat.completions.create(model="{name}", messages=messages)
print(answer.choices[0].message.content)
""",
    ),
    "openai-node": Snippet(
        "the OpenAI SDK for Node",
        "npm install openai",
        """\
import OpenAI from "openai";

const client = new OpenAI({ baseURL: "{url}", apiKey: "{key}" });
const messages = [{ role: "user", content: "Hello!" }];
const answer = await client.chat.completions.create({ model: "{name}", messages });
console.log(answer.choices[0].message.content);
""",
        "Save it with the ending .mjs.",
    ),
    "litellm": Snippet(
        "LiteLLM",
        "pip install litellm",
        """\
import litellm

messages = [{"role": "user", "content": "Hello!"}]
answer = litellm.completion(
    model="openai/{name}", api_base="{url}", api_key="{key}", messages=messages
)
print(answer.choices[0].message.content)
""",
        "`openai/` in front of the model's name says which API is spoken.",
    ),
    "langchain": Snippet(
        "LangChain",
        "pip install langchain-openai",
        """\
from langchain_openai import ChatOpenAI

chat = ChatOpenAI(base_url="{url}", api_key="{key}", model="{name}")
print(chat.invoke("Hello!").content)
""",
    ),
    "anthropic": Snippet(
        "the Anthropic SDK",
        "pip install anthropic",
        """\
from anthropic import Anthropic

client = Anthropic(base_url="{root}", api_key="{key}")
messages = [{"role": "user", "content": "Hello!"}]
answer = client.messages.create(model="{name}", max_tokens=256, messages=messages)
print(answer.content[0].text)
""",
        "The base URL has no /v1 here: this SDK adds it.",
    ),
    "openwebui": Snippet(
        "Open WebUI",
        "pip install open-webui",
        """\
export OPENAI_API_BASE_URL={url}
export OPENAI_API_KEY={key}
export ENABLE_FORWARD_USER_INFO_HEADERS=true
open-webui serve
""",
        "The third line makes it name its chats. Titles, tags and follow-ups that it asks for are no conversation.",
    ),
}
