"""How values lie in the database: text that survives anything, JSON, and token ids and log-probs as packed bytes."""

from __future__ import annotations

import json
import sys
from array import array
from collections.abc import Sequence
from typing import Any, TypeAlias

from sqlalchemy import Dialect, Row, Select, Text
from sqlalchemy.types import TypeDecorator

AnyRow: TypeAlias = "Row[*tuple[Any, ...]]"
AnySelect: TypeAlias = "Select[*tuple[Any, ...]]"

_ESCAPED = "\x01json:"


def dumps(value: Any) -> str:
    """JSON that any database can keep: NUL is always escaped, lone surrogates only where they occur."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text if _encodable(text) else json.dumps(value, separators=(",", ":"))


def _encodable(text: str) -> bool:
    """Python strings may hold half a surrogate pair (JSON clients send them); UTF-8 may not."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


class AnyText(TypeDecorator[str]):
    """Any Python string, read back exactly.

    Ordinary text is stored as it is, so that it can be read with any database tool. What a database refuses (NUL,
    lone surrogates) is stored as JSON behind a marker; equal strings are stored equal, so comparisons hold.
    """

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        if value is None:
            return None
        text = str(value)
        if "\x00" in text or text.startswith(_ESCAPED) or not _encodable(text):
            return _ESCAPED + json.dumps(text)
        return text

    def process_result_value(self, value: str | None, dialect: Dialect) -> str | None:
        if value is not None and value.startswith(_ESCAPED):
            return str(json.loads(value.removeprefix(_ESCAPED)))
        return value


class JsonText(TypeDecorator[Any]):
    """A JSON value as text. None is NULL."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> str | None:
        return None if value is None else dumps(value)

    def process_result_value(self, value: str | None, dialect: Dialect) -> Any:
        return None if value is None else json.loads(value)


def pack_ids(ids: Sequence[int]) -> bytes:
    """Token ids as little-endian int32. Raises OverflowError beyond 31 bits."""
    return _little_endian(array("i", ids)).tobytes()


def unpack_ids(blob: bytes | None) -> list[int]:
    found = array("i")
    found.frombytes(blob or b"")
    return _little_endian(found).tolist()


def pack_floats(values: Sequence[float]) -> bytes:
    """Log-probs as little-endian float32, the precision in which engines report them."""
    return _little_endian(array("f", values)).tobytes()


def unpack_floats(blob: bytes | None) -> list[float]:
    found = array("f")
    found.frombytes(blob or b"")
    return _little_endian(found).tolist()


def _little_endian(values: array[Any]) -> array[Any]:
    if sys.byteorder == "big":
        values.byteswap()
    return values
