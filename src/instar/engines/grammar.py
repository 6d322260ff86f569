"""`structured_outputs` of the wire contract, read and compiled. Needs no torch.

{"json": schema}        the answer is JSON that obeys the schema
{"json_object": true}   the answer is a JSON object
{"regex": "…"}          the answer matches
{"grammar": "…"}        the answer obeys a grammar in the Lark dialect of llguidance
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from llguidance import LLMatcher, LLTokenizer
from numpy.typing import NDArray

from instar.errors import RequestError

MAX_CHARS = 1_000_000
_KEPT = 64
_FIELD = "structured_outputs"


def _bad(message: str) -> RequestError:
    return RequestError(message, param=_FIELD, code="invalid_grammar")


def parse_grammar(value: Any) -> str | None:
    """The grammar as llguidance serialises it; None where none is asked for. Raises RequestError (400)."""
    if value is None:
        return None
    given = (
        {name: v for name, v in value.items() if v not in (None, False)} if isinstance(value, dict) else {}
    )
    if len(given) != 1:
        raise _bad(f"'{_FIELD}' must be an object with one of json, json_object, regex, grammar.")
    (kind, what), *_ = given.items()
    try:
        if kind == "json":
            schema = json.loads(what) if isinstance(what, str) else what
            grammar = LLMatcher.grammar_from_json_schema(json.dumps(schema))
        elif kind == "json_object" and what is True:
            grammar = LLMatcher.grammar_from_json_schema('{"type": "object"}')
        elif kind in ("regex", "grammar") and isinstance(what, str):
            build = LLMatcher.grammar_from_regex if kind == "regex" else LLMatcher.grammar_from_lark
            grammar = build(what)
        else:
            raise _bad(f"'{_FIELD}.{kind}' is not supported by this engine.")
    except (ValueError, RecursionError) as error:
        raise _bad(f"'{_FIELD}.{kind}' cannot be read: {error}") from error
    if len(grammar) > MAX_CHARS:
        raise _bad(f"The grammar has {len(grammar)} characters; {MAX_CHARS} is the most.")
    return grammar


def check_grammar(grammar: str) -> None:
    """Compile a grammar for no vocabulary, to see whether it can be. Raises RequestError (400)."""
    if wrong := LLMatcher.validate_grammar(grammar):
        raise _uncompilable(wrong)


def _uncompilable(why: str) -> RequestError:
    return _bad(f"The grammar cannot be compiled: {' '.join(why.split())[:500]}")


class Matcher:
    """Where one answer stands in its grammar. Belongs to one thread at a time."""

    def __init__(self, matcher: LLMatcher, vocab_size: int) -> None:
        self._matcher, self._size = matcher, vocab_size
        self._words = np.zeros((vocab_size + 31) // 32, dtype=np.uint32)

    def allowed_V(self) -> NDArray[np.bool_]:
        """Which tokens may come next. Raises RequestError (400) where the grammar cannot go on: it is too complex."""
        self._matcher.unsafe_compute_mask_ptr(self._words.ctypes.data, self._words.nbytes)
        if self._matcher.is_error():
            raise _bad(f"The grammar could not be followed: {self._matcher.get_error()[:300]}")
        bits = np.unpackbits(self._words.view(np.uint8), bitorder="little")
        return bits[: self._size].astype(np.bool_)

    def take(self, token_id: int) -> None:
        """A token was sampled, one of those allowed."""
        self._matcher.consume_token(token_id)

    @property
    def is_complete(self) -> bool:
        """Nothing more can follow but the end."""
        return self._matcher.is_stopped()


class Grammars:
    """Compiles grammars for one model, and keeps the last ones. `matcher` may be called from several threads."""

    def __init__(self, tokenizer_file: Path, vocab_size: int) -> None:
        self._file, self._vocab_size = tokenizer_file, vocab_size
        self._lock = threading.Lock()
        self._tokenizers: dict[tuple[int, ...], LLTokenizer] = {}
        self._compiled: OrderedDict[tuple[tuple[int, ...], str], LLMatcher] = OrderedDict()

    def matcher(self, grammar: str, stop_ids: Sequence[int]) -> Matcher:
        """A fresh matcher, at the beginning. Blocks while the grammar is compiled. Raises RequestError (400)."""
        ends = tuple(sorted(stop_ids))
        key = (ends, grammar)
        with self._lock:
            found = self._compiled.pop(key, None) or self._compile(grammar, ends)
            self._compiled[key] = found
            while len(self._compiled) > _KEPT:
                self._compiled.popitem(last=False)
            return Matcher(found.deep_copy(), self._vocab_size)

    def _compile(self, grammar: str, ends: tuple[int, ...]) -> LLMatcher:
        matcher = LLMatcher(self._tokenizer(ends), grammar, log_level=0)
        if matcher.is_error():
            raise _uncompilable(matcher.get_error())
        return matcher

    def _tokenizer(self, ends: tuple[int, ...]) -> LLTokenizer:
        """The vocabulary as a trie; making it takes the better part of a second, once."""
        if ends not in self._tokenizers:
            text = self._file.read_text("utf-8")
            self._tokenizers[ends] = LLTokenizer(text, n_vocab=self._vocab_size, eos_token=list(ends) or None)
        return self._tokenizers[ends]
