"""The bytes of tokens, joined, are the text; whichever way a tokenizer writes them."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer, decoders, models

from instar.token_bytes import TokenBytes
from tests.kit.tiny_model import byte_tokenizer

TEXT = "안녕, naïve 👍\n\t~"


def test_bytes_of_byte_level_tokens_are_those_of_the_text() -> None:
    tokenizer = byte_tokenizer()
    known = TokenBytes(tokenizer)
    pieces = [known.of(token_id) for token_id in tokenizer.encode(TEXT).ids]
    assert len(pieces) > len(TEXT), "characters take several tokens"
    assert b"".join(piece or b"" for piece in pieces).decode() == TEXT


def test_every_byte_is_there_once() -> None:
    known = TokenBytes(byte_tokenizer())
    assert {known.of(token_id) for token_id in range(3, 259)} == {bytes([byte]) for byte in range(256)}


def test_what_is_no_text_has_no_bytes() -> None:
    known = TokenBytes(byte_tokenizer(["<end>", "<think>!"]))
    assert known.of(2) is None
    assert known.of(259) is None
    assert known.of(260) == b"<think>", "added, but shown as text"
    assert known.of(999_999) is None


def sentence_piece(decoder: decoders.Decoder) -> Tokenizer:
    names = ["<unk>", "\u2581hello", "\u2581", "wor", "ld", "<0xEC>", "<0x95>", "<0x88>"]
    vocabulary = {name: number for number, name in enumerate(names)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>", byte_fallback=True))
    tokenizer.decoder = decoder
    return tokenizer


@pytest.mark.parametrize(
    "decoder",
    [
        decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]),
        decoders.Metaspace(),
    ],
    ids=["byte fallback", "metaspace"],
)
def test_bytes_of_sentence_piece(decoder: decoders.Decoder) -> None:
    known = TokenBytes(sentence_piece(decoder))
    assert (
        b"".join(known.of(token_id) or b"" for token_id in (1, 2, 3, 4, 5, 6, 7)) == " hello world안".encode()
    )


@pytest.mark.parametrize("decoder", [None, decoders.WordPiece()], ids=["none", "word pieces"])
def test_bytes_that_cannot_be_known_are_not_made_up(decoder: decoders.Decoder | None) -> None:
    tokenizer = sentence_piece(decoders.Fuse())
    tokenizer.decoder = decoder
    assert TokenBytes(tokenizer).of(3) is None
