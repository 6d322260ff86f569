"""The bytes that a token stands for. A character may take several tokens, and none of them is text by itself."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

from tokenizers import Tokenizer

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SPACE = "\u2581"
"""SentencePiece's mark for a space."""


def _printable_bytes() -> dict[str, int]:
    """Byte-level BPE writes each byte as one printable character: as itself, or from U+0100 on."""
    as_itself = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = (byte for byte in range(0x100) if byte not in as_itself)
    return {chr(b): b for b in as_itself} | {chr(0x100 + n): byte for n, byte in enumerate(others)}


_BYTES = _printable_bytes()


class TokenBytes:
    """Knows byte-level BPE and SentencePiece with byte tokens, by the tokenizer's own decoder."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def of(self, token_id: int) -> bytes | None:
        """None for what is no text, such as the end of an answer, and where it cannot be known."""
        if token_id in self._added:
            return self._added[token_id]
        name = self._tokenizer.id_to_token(token_id)
        return None if name is None else self._read(name)

    @cached_property
    def _added(self) -> dict[int, bytes | None]:
        added = self._tokenizer.get_added_tokens_decoder()
        return {number: None if t.special else t.content.encode() for number, t in added.items()}

    @cached_property
    def _read(self) -> Callable[[str], bytes | None]:
        kinds = set(_kinds(_decoder(self._tokenizer)))
        if "ByteLevel" in kinds:
            return _byte_level
        return _sentence_piece if kinds & {"ByteFallback", "Metaspace"} else _unknown


def _decoder(tokenizer: Tokenizer) -> Any:
    decoder = tokenizer.decoder
    return {} if decoder is None else json.loads(decoder.__getstate__())


def _kinds(decoder: dict[str, Any]) -> Iterator[str]:
    yield str(decoder.get("type"))
    for inner in decoder.get("decoders", ()):
        yield from _kinds(inner)


def _byte_level(name: str) -> bytes | None:
    try:
        return bytes(_BYTES[character] for character in name)
    except KeyError:
        return None


def _sentence_piece(name: str) -> bytes | None:
    if found := _BYTE_TOKEN.fullmatch(name):
        return bytes([int(found[1], 16)])
    return name.replace(_SPACE, " ").encode()


def _unknown(name: str) -> bytes | None:
    return None
