"""Chats to token ids and back, without torch: the model's own template and tokenizer.

The gateway, the trainer's parent and the benchmarks all speak to the model through this one module.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from jinja2 import Template, TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from instar.errors import ModelError, RequestError
from instar.records import Message
from instar.words import read_content

RAW = "instar_raw"
"""Key of a message whose text is a prompt to be continued as it is, without the chat template."""


def is_raw(messages: Sequence[Message]) -> bool:
    return len(messages) == 1 and messages[0].get(RAW) is True


_TEMPLATE_ERRORS = (
    TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)
"""What a template, which is foreign code, may raise at messages that it was not written for."""


def text_of(content: Any) -> str:
    """The text of a message's content: a string, None, or a list of text parts.

    Raises RequestError for parts that are no text, since dropping them would answer another question.
    """
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    parts = []
    for part in content if isinstance(content, list) else [content]:
        if not isinstance(part, dict) or not isinstance(part.get("text", part.get("refusal")), str):
            kind = part.get("type", "unknown") if isinstance(part, dict) else type(part).__name__
            raise RequestError(
                f"Content parts of type {str(kind)[:40]!r} are not supported; send text.",
                param="messages",
                code="unsupported_content",
            )
        parts.append(part["text"] if "text" in part else part["refusal"])
    return "".join(parts)


def plain_text(content: Any) -> str:
    """The text of a stored message's content for readers: what is no text is passed over, parts stand on lines."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    return "\n".join(p["text"] for p in content if isinstance(p, dict) and isinstance(p.get("text"), str))


def last_user_index(messages: Sequence[Message]) -> int | None:
    """Index of the newest message in which the user spoke; where only their client did, of what that wrote."""
    client: int | None = None
    for i in reversed(range(len(messages))):
        message = messages[i]
        if not isinstance(message, dict) or message.get("role") != "user":
            continue
        text = read_content(message.get("content"))
        if text.words:
            return i
        client = i if client is None or not text.passes else client
    return client


def last_user_text(messages: Sequence[Message]) -> str:
    """The newest thing that the user said, for readers; "" where nobody spoke."""
    last = last_user_index(messages)
    return "" if last is None else said_text(messages[last].get("content"))


def said_text(content: Any) -> str:
    """The user's own words in a stored message's content; what their client wrote, where it wrote all of it."""
    text = read_content(content)
    framed = text.before or text.behind or text.mark
    return text.core if framed and text.core else plain_text(content)


class StreamDecoder:
    """Turns ids into text as they come; holds back bytes of an unfinished character."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._stream = DecodeStream(skip_special_tokens=True)
        self._ids: list[int] = []
        self._text = ""

    def push(self, ids: Sequence[int]) -> str:
        """The text that these ids add."""
        added = ""
        for token_id in ids:
            self._ids.append(token_id)
            added += self._stream.step(self._tokenizer, token_id) or ""
        self._text += added
        return added

    def finish(self) -> str:
        """What was held back: an answer may end in the middle of a character."""
        whole: str = self._tokenizer.decode(self._ids, skip_special_tokens=True)
        rest = whole[len(self._text) :] if whole.startswith(self._text) else ""
        self._text += rest
        return rest


class ChatFormat:
    """A model's chat template and tokenizer, read from its folder. Raises ModelError."""

    def __init__(self, model_dir: Path) -> None:
        self.model_dir = model_dir
        try:
            self._tokenizer: Tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
        except Exception as error:
            raise ModelError(f"{model_dir / 'tokenizer.json'} cannot be read: {error}") from error
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        config = _json(model_dir / "tokenizer_config.json")
        self._special = {
            name: _token_text(config.get(name))
            for name in ("bos_token", "eos_token", "unk_token", "pad_token")
        }
        self._template = _compile(_template_text(model_dir, config))
        model_config = _json(model_dir / "config.json")
        text_config = model_config.get("text_config", model_config)
        self.context_length = int(text_config.get("max_position_embeddings") or 2048)
        # A token is at most so long, so a longer text cannot fit, whatever it says; known without encoding it.
        self._longest_text = max(map(len, self._tokenizer.get_vocab())) * self.context_length
        added = self._tokenizer.get_added_tokens_decoder()
        self._markers = tuple(token.content for token in added.values() if token.special)
        self.stop_ids = self._find_stop_ids()

    def _find_stop_ids(self) -> tuple[int, ...]:
        """Ids that end an answer, as the model's own files name them; the first one is the usual one."""
        found: list[int] = []
        eos = self._special.get("eos_token")
        for value in (
            self._tokenizer.token_to_id(eos) if eos else None,
            _json(self.model_dir / "generation_config.json").get("eos_token_id"),
            _json(self.model_dir / "config.json").get("eos_token_id"),
        ):
            found += value if isinstance(value, list) else [value] if value is not None else []
        if not found:
            raise ModelError(f"{self.model_dir} names no end-of-sequence token; is it a chat model?")
        return tuple(dict.fromkeys(found))

    def render(self, messages: Sequence[Message], *, tools: list[Any] | None = None) -> str:
        """The prompt as text, ending where the answer begins.

        Raises RequestError if the template refuses, or if the text is too long for the model at first sight.
        """
        plain = [{**m, "content": text_of(m.get("content"))} for m in messages]
        try:
            text = self._template.render(
                messages=plain, tools=tools or None, add_generation_prompt=True, **self._special
            )
        except _TEMPLATE_ERRORS as error:
            raise RequestError(
                f"The model's chat template cannot take these messages: {error}", param="messages"
            ) from error
        if len(text) > self._longest_text:
            raise RequestError(
                f"The messages have {len(text)} characters, which no {self.context_length} tokens can hold; that is "
                "this model's context. Shorten the conversation.",
                code="context_length_exceeded",
                param="messages",
            )
        return text

    def encode_prompt(
        self,
        messages: Sequence[Message],
        *,
        served: Mapping[int, Sequence[int]] | None = None,
        tools: list[Any] | None = None,
    ) -> list[int]:
        """Ids of the prompt. `served` gives, by message index, the ids of answers that we sampled ourselves:

        they are spliced in as they were, because encoding text again may give other ids than were sampled.
        An answer whose place in the rendered text is not clean (no special token right behind it) is encoded.
        """
        if is_raw(messages):
            return self.encode_raw(text_of(messages[0].get("content")))
        marks = {i: f"\u27e6{secrets.token_hex(12)}\u27e7" for i in (served or {})}
        marked = [{**m, "content": marks[i]} if i in marks else m for i, m in enumerate(messages)]
        text = self.render(marked, tools=tools)
        for i, mark in marks.items():
            before, found, after = text.partition(mark)
            if not found or mark in after or not after.startswith(self._markers):
                text = before + text_of(messages[i].get("content")) + after if found else text
        ids: list[int] = []
        for i, mark in marks.items():
            before, found, after = text.partition(mark)
            if found and served is not None:
                ids += self.encode(before) + self._without_stop(served[i])
                text = after
        return ids + self.encode(text)

    def _without_stop(self, ids: Sequence[int]) -> list[int]:
        return list(ids[:-1] if ids and ids[-1] in self.stop_ids else ids)

    def encode(self, text: str) -> list[int]:
        """Ids of a piece of rendered text; no tokens are added."""
        clean = text.encode("utf-8", "replace").decode("utf-8")
        # `encode` would hold the interpreter's lock: every stream would stand still while a long prompt is encoded
        ids: list[int] = self._tokenizer.encode_batch_fast([clean], add_special_tokens=False)[0].ids
        return ids

    def encode_raw(self, text: str) -> list[int]:
        """Ids of a text that stands alone: with the tokens that the model's tokenizer puts around one."""
        clean = text.encode("utf-8", "replace").decode("utf-8")
        ids: list[int] = self._tokenizer.encode(clean, add_special_tokens=True).ids
        return ids

    def encode_answer(self, text: str) -> list[int]:
        """Ids of an answer as the model would have sampled it, stop token included."""
        return [*self.encode(text), self.stop_ids[0]]

    def decode(self, ids: Sequence[int]) -> str:
        """Text without special tokens."""
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=True)
        return text

    def token_text(self, token_id: int) -> str:
        """One token as text, special tokens included; bytes of a broken character show as U+FFFD."""
        text: str = self._tokenizer.decode([token_id], skip_special_tokens=False)
        return text

    def written_out(self, ids: Sequence[int]) -> str:
        """Text with special tokens, so that encoding it gives the like of these ids again."""
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=False)
        return text

    @property
    def vocab_size(self) -> int:
        """Ids are below this."""
        size: int = self._tokenizer.get_vocab_size(with_added_tokens=True)
        return size

    def decoder(self) -> StreamDecoder:
        return StreamDecoder(self._tokenizer)


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read: {error}") from error
    return value if isinstance(value, dict) else {}


def _token_text(value: Any) -> str | None:
    return value.get("content") if isinstance(value, dict) else value


def _template_text(model_dir: Path, config: dict[str, Any]) -> str:
    file = model_dir / "chat_template.jinja"
    if file.is_file():
        return file.read_text("utf-8")
    template = config.get("chat_template")
    if isinstance(template, list):  # several named templates: the default one
        template = next((t.get("template") for t in template if t.get("name") == "default"), None)
    if not isinstance(template, str):
        raise ModelError(
            f"{model_dir} has no chat template, so it is probably a base model. "
            "Choose an instruct/chat variant, or put a chat_template.jinja beside the weights."
        )
    return template


def _compile(text: str) -> Template:
    """Compile in a sandbox: a template comes with the model, and is code."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
    )
    environment.filters["tojson"] = lambda value, **kw: json.dumps(value, ensure_ascii=False, **kw)
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().astimezone().strftime(form)
    try:
        return environment.from_string(text)
    except TemplateError as error:
        raise ModelError(f"The model's chat template is not valid: {error}") from error


def _refuse(message: str) -> None:
    raise TemplateError(message)
