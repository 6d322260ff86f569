"""The formats of calls that are known, and which one a chat template speaks."""

from __future__ import annotations

from typing import Literal, get_args

from instar.answers.hermes import Hermes
from instar.answers.llama3 import Llama3
from instar.answers.mistral import Mistral
from instar.answers.parts import ToolFormat
from instar.answers.plain_json import PlainJson
from instar.answers.qwen3_coder import Qwen3Coder

FormatName = Literal["hermes", "qwen3_coder", "llama3", "mistral", "json"]

FORMATS: dict[str, ToolFormat] = {
    f.name: f for f in (Hermes(), Qwen3Coder(), Llama3(), Mistral(), PlainJson())
}
FALLBACK: FormatName = "hermes"

assert set(FORMATS) == set(get_args(FormatName))

_SIGNS: tuple[tuple[FormatName, tuple[str, ...]], ...] = (
    # all of them must stand in the template; the more particular come first
    ("mistral", ("[TOOL_CALLS]",)),
    ("qwen3_coder", ("<tool_call>", "<function=", "<parameter=")),
    ("hermes", ("<tool_call>",)),
    ("llama3", ("<|python_tag|>",)),
    ("llama3", ('"parameters"', "ipython")),
)

_ALIEN = ("<arg_key>", "[ARGS]")
"""Marks of formats that look like one of ours and are none: GLM's, and Mistral's since version 11 of its tokenizer."""


def spoken_by(template: str) -> FormatName | None:
    """The format whose marks stand in the template; None where none of ours does."""
    for name, signs in _SIGNS:
        if all(sign in template for sign in signs) and not any(sign in template for sign in _ALIEN):
            return name
    return None
