"""Messages and token ids that many turns share, stored once.

An agent sends its whole history with every request. Stored as it comes, a conversation of n turns would take room
for n² messages; stored by sha256 it takes room for n, and 32 bytes a repetition.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import Connection, bindparam, select
from sqlalchemy.dialects import postgresql, sqlite

from instar.errors import StoreError
from instar.records import Message
from instar.store.columns import dumps, pack_ids, unpack_ids
from instar.store.schema import pieces

IDS_PER_BLOCK = 256
HASH_BYTES = 32
_HASHES_PER_QUERY = 1000  # below every database's limit on the number of parameters

Pieces = dict[bytes, bytes]
"""Bodies by hash."""


def cut_messages(messages: Sequence[Message]) -> tuple[bytes, Pieces]:
    """The list of hashes of these messages, and their bodies."""
    return _cut([dumps(message).encode("utf-8") for message in messages])


def cut_ids(ids: Sequence[int]) -> tuple[bytes, Pieces]:
    """The list of hashes of the blocks of these ids, and the blocks. Equal beginnings share their blocks."""
    packed = pack_ids(ids)
    size = 4 * IDS_PER_BLOCK
    return _cut([packed[start : start + size] for start in range(0, len(packed), size)])


def _cut(bodies: Sequence[bytes]) -> tuple[bytes, Pieces]:
    hashes = [hashlib.sha256(body).digest() for body in bodies]
    return b"".join(hashes), dict(zip(hashes, bodies, strict=True))


def keep(conn: Connection, new: Pieces) -> None:
    """Write those pieces that are not there yet."""
    there = _present(conn, new)
    rows = [{"hash": key, "body": body} for key, body in new.items() if key not in there]
    if rows:
        dialect = postgresql if conn.dialect.name == "postgresql" else sqlite
        conn.execute(dialect.insert(pieces).on_conflict_do_nothing(), rows)


_BY_HASH = select(pieces).where(pieces.c.hash.in_(bindparam("hashes", expanding=True)))
_KNOWN = select(pieces.c.hash).where(pieces.c.hash.in_(bindparam("hashes", expanding=True)))


def _present(conn: Connection, wanted: Iterable[bytes]) -> set[bytes]:
    return {row.hash for some in _chunks(wanted) for row in conn.execute(_KNOWN, {"hashes": some})}


def fetch(conn: Connection, lists: Iterable[bytes]) -> Pieces:
    """Bodies of all hashes in these lists."""
    wanted = {key for hashes in lists for key in split(hashes)}
    return {
        row.hash: row.body for some in _chunks(wanted) for row in conn.execute(_BY_HASH, {"hashes": some})
    }


def _chunks(keys: Iterable[bytes]) -> list[list[bytes]]:
    ordered = list(keys)
    return [ordered[i : i + _HASHES_PER_QUERY] for i in range(0, len(ordered), _HASHES_PER_QUERY)]


def split(hashes: bytes) -> list[bytes]:
    return [hashes[i : i + HASH_BYTES] for i in range(0, len(hashes), HASH_BYTES)]


class Assembler:
    """Puts messages and prompts together again, decoding each piece once for all turns that share it.

    Messages of several turns may be the same objects: they are to be read, not changed.
    """

    def __init__(self, bodies: Pieces) -> None:
        self._bodies = bodies
        self._messages: dict[bytes, Message] = {}
        self._blocks: dict[bytes, list[int]] = {}

    def messages(self, hashes: bytes) -> list[Message]:
        return [self._message(key) for key in split(hashes)]

    def ids(self, hashes: bytes) -> list[int]:
        found: list[int] = []
        for key in split(hashes):
            found.extend(self._block(key))
        return found

    def _message(self, key: bytes) -> Message:
        if key not in self._messages:
            decoded: Any = json.loads(self._body(key))
            self._messages[key] = decoded
        return self._messages[key]

    def _block(self, key: bytes) -> list[int]:
        if key not in self._blocks:
            self._blocks[key] = unpack_ids(self._body(key))
        return self._blocks[key]

    def _body(self, key: bytes) -> bytes:
        try:
            return self._bodies[key]
        except KeyError:
            raise StoreError(
                f"The database is damaged: piece {key.hex()} is missing. Restore a backup."
            ) from None
