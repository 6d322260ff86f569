"""Chats to token ids and back, without torch: the model's own template and tokenizer.

The gateway, the trainer's parent and the benchmarks all speak to the model through this one module.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from instar.answers import (
    FALLBACK,
    FORMATS,
    AnswerReader,
    FormatName,
    ReasoningSplitter,
    Tool,
    history,
    spoken_by,
    tags_of,
)
from instar.answers.splice import Splicer
from instar.chat_template import REFUSALS, compile_template, speaks_of_tools, template_text
from instar.content import is_raw, text_of
from instar.errors import ModelError, RequestError
from instar.records import Message
from instar.token_bytes import TokenBytes

_TAIL = 16
"""Tokens at the end of a prompt that are looked at for an opening tag."""
_CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "max_sequence_length", "seq_length")
_USUAL_CONTEXT = 2048
_PROBE: list[Message] = [{"role": "system", "content": "\u27e6s\u27e7"}, {"role": "user", "content": "hello"}]


class StreamDecoder:
    """Turns ids into text as they come; holds back bytes of an unfinished character.

    Ids in `hidden` have no text.
    """

    def __init__(self, tokenizer: Tokenizer, hidden: Collection[int]) -> None:
        self._tokenizer, self._hidden = tokenizer, hidden
        self._stream = DecodeStream(skip_special_tokens=False)
        self._ids: list[int] = []
        self._text = ""

    def push(self, ids: Sequence[int]) -> str:
        """The text that these ids add."""
        added = ""
        for token_id in ids:
            if token_id in self._hidden:
                continue
            self._ids.append(token_id)
            added += self._stream.step(self._tokenizer, token_id) or ""
        self._text += added
        return added

    def finish(self) -> str:
        """What was held back: an answer may end in the middle of a character."""
        whole: str = self._tokenizer.decode(self._ids, skip_special_tokens=False)
        rest = whole[len(self._text) :] if whole.startswith(self._text) else ""
        self._text += rest
        return rest


class ChatFormat:
    """A model's chat template and tokenizer, read from its folder. Raises ModelError.

    `tool_format` says how the model writes calls; None: as its template does, or else as it is told to.
    `takes_tools` is whether the template speaks that format by itself; `tags` are those of its thinking.
    `context_length` counts tokens of prompt and answer together: what the model was made for, or `most_tokens`.
    """

    def __init__(
        self, model_dir: Path, tool_format: FormatName | None = None, most_tokens: int | None = None
    ) -> None:
        self.model_dir = model_dir
        try:
            self._tokenizer: Tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
        except Exception as error:
            raise ModelError(f"{model_dir / 'tokenizer.json'} cannot be read: {error}") from error
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self.token_bytes = TokenBytes(self._tokenizer).of
        config = _json(model_dir / "tokenizer_config.json")
        self._special = {
            name: _token_text(config.get(name))
            for name in ("bos_token", "eos_token", "unk_token", "pad_token")
        }
        source = template_text(model_dir, config)
        self._template = compile_template(source)
        spoken = spoken_by(source)
        self.tool_format = FORMATS[tool_format or spoken or FALLBACK]
        self.takes_tools = self.tool_format.name == spoken and speaks_of_tools(source)
        self.tags = tags_of(source)
        self._knows_developer = "developer" in source
        self._find_markers()
        made_for = stated_context(_json(model_dir / "config.json")) or _USUAL_CONTEXT
        self.context_length = min(made_for, most_tokens or made_for)
        # A token is at most so long, so a longer text cannot fit, whatever it says; known without encoding it.
        self._longest_text = max(map(len, self._tokenizer.get_vocab())) * self.context_length
        self.stop_ids = self._find_stop_ids()

    def _find_markers(self) -> None:
        """Special tokens: all of them, and those that are no text to anyone but the reader of calls and thinking."""
        added = self._tokenizer.get_added_tokens_decoder()
        special = {token_id: token.content for token_id, token in added.items() if token.special}
        thinking = {self.tags.open, self.tags.close}
        spoken = thinking | set(self.tool_format.markers)
        self._markers = tuple(special.values())
        self._added = {token.content: token_id for token_id, token in added.items()}
        self._hidden = {token_id for token_id, text in special.items() if text not in thinking}
        self._hidden_beside_calls = {token_id for token_id, text in special.items() if text not in spoken}

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
        return self._of_length(self._fill(messages, tools, add_generation_prompt=True))

    def _of_length(self, text: str) -> str:
        if len(text) > self._longest_text:
            raise RequestError(
                f"The prompt has {len(text)} characters, which no {self.context_length} tokens can hold; that is this "
                "model's context. Shorten the conversation.",
                code="context_length_exceeded",
                param="messages",
            )
        return text

    def _fill(
        self, messages: Sequence[Message], tools: list[Any] | None, *, add_generation_prompt: bool
    ) -> str:
        texts = [{**m, "content": text_of(m.get("content"))} for m in messages]
        plain = history.with_known_roles(texts, knows_developer=self._knows_developer)
        values = {"add_generation_prompt": add_generation_prompt, **self._special}
        try:
            if not self.takes_tools:
                offered = [Tool.of(tool) for tool in tools or ()]
                spoken = history.as_text(plain, self.tool_format, offered, takes_system=self._takes_system)
                return self._template.render(messages=spoken, tools=None, **values)
            try:
                native = history.for_template(plain)
                return self._template.render(messages=native, tools=tools or None, **values)
            except REFUSALS:  # such as Llama's, which takes one call a message at most
                written = history.with_calls_written(plain, self.tool_format)
                if written == plain:
                    raise
                return self._template.render(messages=written, tools=tools or None, **values)
        except REFUSALS as error:
            raise RequestError(
                f"The model's chat template cannot take these messages: {error}", param="messages"
            ) from error

    @cached_property
    def _takes_system(self) -> bool:
        """Whether the template passes on what a system message says."""
        try:
            shown = self._template.render(messages=_PROBE, add_generation_prompt=True, **self._special)
        except REFUSALS:
            return False
        return _PROBE[0]["content"] in shown

    @cached_property
    def opening(self) -> str:
        """What the template writes before an answer; "" where it takes not even a greeting."""
        try:
            asked, answered = (self._fill(_PROBE[1:], None, add_generation_prompt=on) for on in (False, True))
        except RequestError:
            return ""
        return answered.removeprefix(asked)

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
        if not served:
            return self.encode(self.render(messages, tools=tools))
        splicer = Splicer(self, messages, {i: self._without_stop(ids) for i, ids in served.items()}, tools)
        return [token_id for piece in splicer.pieces() for token_id in self._ids_of(piece)]

    def _ids_of(self, piece: str | list[int]) -> list[int]:
        return self.encode(piece) if isinstance(piece, str) else piece

    def is_marker(self, text: str) -> bool:
        """Whether text begins with a special token, so that what stands before it is cut cleanly."""
        return text.startswith(self._markers)

    def _without_stop(self, ids: Sequence[int]) -> list[int]:
        return list(ids[:-1] if ids and ids[-1] in self.stop_ids else ids)

    def covers(self, ids: Sequence[int], content: Any) -> bool:
        """Whether an answer is all of what was sampled: no stop string or limit cut its text short of its tokens."""
        return bool(ids) and (ids[-1] in self.stop_ids or self.decode(ids) == content)

    def encode(self, text: str) -> list[int]:
        """Ids of a piece of rendered text; no tokens are added."""
        return self._encode(text, around=False)

    def encode_raw(self, text: str) -> list[int]:
        """Ids of a text that stands alone: with the tokens that the model's tokenizer puts around one.

        Raises RequestError if it is too long for the model at first sight.
        """
        return self._encode(self._of_length(text), around=True)

    def _encode(self, text: str, *, around: bool) -> list[int]:
        clean = text.encode("utf-8", "replace").decode("utf-8")
        # `encode` would hold the interpreter's lock: every stream would stand still while a long prompt is encoded
        ids: list[int] = self._tokenizer.encode_batch_fast([clean], add_special_tokens=around)[0].ids
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

    def read_back(self, ids: Sequence[int]) -> str:
        """Text with the marks of calls and of thinking, where these are special tokens."""
        seen = [token_id for token_id in ids if token_id not in self._hidden_beside_calls]
        text: str = self._tokenizer.decode(seen, skip_special_tokens=False)
        return text

    def decoder(self, *, with_calls: bool = False) -> StreamDecoder:
        return StreamDecoder(self._tokenizer, self._hidden_beside_calls if with_calls else self._hidden)

    def is_thinking(self, prompt_ids: Sequence[int]) -> bool:
        """Whether a prompt ends with the opening tag, so that the answer begins with thinking."""
        tail: str = self._tokenizer.decode(list(prompt_ids[-_TAIL:]), skip_special_tokens=False)
        return tail.rstrip().endswith(self.tags.open)

    def answer_reader(
        self,
        prompt_ids: Sequence[int],
        tools: list[Any] | None,
        new_call_id: Callable[[], str],
        *,
        is_forced: bool = False,
        most_calls: int | None = None,
    ) -> AnswerReader:
        """For the text of one answer to this prompt. `is_forced`: a grammar sees to it that calls are whole."""
        offered = [Tool.of(tool) for tool in tools or ()]
        splitter = ReasoningSplitter(self.tags, is_open=self.is_thinking(prompt_ids))
        calls = self.tool_format.reader(offered, is_forced=is_forced) if offered else None
        return AnswerReader(splitter, calls, new_call_id, most_calls)

    def added_id(self, text: str) -> int | None:
        """The id of a token that was added to the vocabulary, special or not; None where this is just text."""
        return self._added.get(text)


def stated_context(config: Mapping[str, Any]) -> int | None:
    """How many tokens the model of this config.json was made for; None where it does not say."""
    text = config.get("text_config")
    for source in (config, text if isinstance(text, dict) else {}):
        for key in _CONTEXT_KEYS:
            value = source.get(key)
            if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                return value
    return None


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
