"""The tables, in the order of the flow.

    turns ─► next_states ─► judgements ─► update_turns ─► uses ─► activations, decisions
      └─ pieces               leases        reservations

Facts are append-only (`next_states`, `judgements`, `uses`, `activations`, `decisions`). What changes is a turn's own
row, and in it three derived columns (`verdict_seq`, `to_judge`, `to_train`) that `facts.refresh` computes anew from
the facts; they exist so that looking for work costs nothing when there is none.

Sequence numbers are never given twice (`sqlite_autoincrement`), since a judgement remembers the newest next state
that it was based on.

A change here needs a migration in `migrations/versions` and its id in `REVISION`.
"""

from __future__ import annotations

from sqlalchemy import (
    Boolean,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    or_,
    true,
)

from instar.store.columns import AnyText, JsonText

REVISION = "0004"
"""The newest migration. A database that stands here is opened without loading Alembic."""

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "pk": "pk_%(table_name)s",
    }
)


def _turn_id(*, primary_key: bool = False) -> Column[str]:
    return Column("turn_id", AnyText, ForeignKey("turns.id"), nullable=False, primary_key=primary_key)


def _update_id(*, primary_key: bool = False) -> Column[str]:
    return Column("update_id", AnyText, ForeignKey("updates.id"), nullable=False, primary_key=primary_key)


pieces = Table(
    # Every request repeats its whole history. Its messages and blocks of its token ids are kept once, under
    # their sha256; a turn holds the list of hashes.
    "pieces",
    metadata,
    Column("hash", LargeBinary(32), primary_key=True),
    Column("body", LargeBinary, nullable=False),
)

turns = Table(
    "turns",
    metadata,
    Column("seq", Integer, primary_key=True, autoincrement=True),  # the order in which answering began
    Column("id", AnyText, nullable=False, unique=True),
    Column("session_id", AnyText, nullable=False),
    Column("episode_id", AnyText, nullable=False),
    Column("parent_id", AnyText),
    Column("key_id", AnyText, nullable=False),
    Column("learner", AnyText, nullable=False),
    Column("kind", String(16), nullable=False),
    Column("version", AnyText, nullable=False),
    Column("pinned", Boolean, nullable=False),
    Column("learn", Boolean, nullable=False),
    Column("reason", AnyText),
    Column("choice", Integer, nullable=False),
    Column("params", JsonText, nullable=False),
    Column("request_hash", AnyText, nullable=False),
    Column("context_hash", AnyText),
    Column("status", String(16), nullable=False),
    Column("finish_reason", AnyText),
    Column("created_at", Float, nullable=False),
    Column("closed_at", Float),
    Column("message_hashes", LargeBinary, nullable=False),  # 32 bytes a message
    Column("question_at", Integer),  # index of the last user message
    Column("prompt_hashes", LargeBinary, nullable=False),  # 32 bytes a block of ids
    Column("prompt_len", Integer, nullable=False),
    Column("response_ids", LargeBinary, nullable=False),  # int32, little-endian
    Column("response_len", Integer, nullable=False),
    Column("logprobs", LargeBinary, nullable=False),  # float32, little-endian
    Column(
        "forced", LargeBinary
    ),  # a byte a token, 1 where a grammar decided it; NULL where the answer was free
    Column("tool_hashes", LargeBinary),  # 32 bytes a tool that the model was told of; NULL for none
    Column("answer", JsonText),
    Column("verdict_seq", Integer),  # the judgement that counts
    Column("to_judge", Boolean, nullable=False),
    Column("to_train", Boolean, nullable=False),
    Index(None, "session_id", "request_hash"),
    Index(None, "key_id", "context_hash"),
    Index(None, "episode_id"),
    Index(None, "parent_id"),
    Index(None, "status"),
    Index(None, "reason"),
    Index(None, "version"),
    sqlite_autoincrement=True,
)
# Indexes of the work that waits: as small as the work, however long the history.
Index("ix_turns_to_judge", turns.c.seq, sqlite_where=turns.c.to_judge == true(),
      postgresql_where=turns.c.to_judge == true())  # fmt: skip
Index("ix_turns_to_train", turns.c.seq, sqlite_where=turns.c.to_train == true(),
      postgresql_where=turns.c.to_train == true())  # fmt: skip

next_states = Table(
    "next_states",
    metadata,
    Column("seq", Integer, primary_key=True, autoincrement=True),
    _turn_id(),
    Column("kind", String(16), nullable=False),
    Column("text", AnyText, nullable=False),
    Column("text_hash", String(64), nullable=False),
    Column("created_at", Float, nullable=False),
    Column("by_turn_id", AnyText),
    Column("score", Integer),
    Column("correction", AnyText),
    UniqueConstraint("turn_id", "kind", "text_hash"),
    sqlite_autoincrement=True,
)
RATED = or_(next_states.c.score.is_not(None), next_states.c.correction.is_not(None))
"""What of a turn's next states is its user's own rating. Few are, so that they have an index of their own."""
Index("ix_next_states_rated", next_states.c.seq, sqlite_where=RATED, postgresql_where=RATED)

judgements = Table(
    "judgements",
    metadata,
    Column("seq", Integer, primary_key=True, autoincrement=True),
    _turn_id(),
    Column("basis", Integer, nullable=False),  # the newest next state that the judge saw
    Column("score", Integer),
    Column("source", String(16), nullable=False),
    Column("link", AnyText, nullable=False),
    Column("created_at", Float, nullable=False),
    Column("votes", JsonText, nullable=False),
    Column("hint", AnyText),
    Column("correction", AnyText),
    Column("why", AnyText, nullable=False),
    Index(None, "turn_id"),
    sqlite_autoincrement=True,
)

leases = Table(
    "leases",
    metadata,
    _turn_id(primary_key=True),
    Column("token", String(64), nullable=False),
    Column("worker", AnyText, nullable=False),
    Column("basis", Integer, nullable=False),
    Column("boot", String(64), nullable=False),
    Column("taken_s", Float, nullable=False),  # seconds since that boot
    Column("expires_s", Float, nullable=False),
    Column("tries", Integer, nullable=False),
)

updates = Table(
    "updates",
    metadata,
    Column("id", AnyText, primary_key=True),
    Column("number", Integer, nullable=False, unique=True),
    Column("parent", AnyText, nullable=False),
    Column("status", String(16), nullable=False),
    Column("running", Integer, unique=True),  # 1 or NULL: the database itself allows one at a time
    Column("created_at", Float, nullable=False),
    Column("finished_at", Float),
    Column("version", AnyText),
    Column("scale", Float, nullable=False),
    Column("passes", Integer, nullable=False),
    Column("note", AnyText),
    Column("job", Text),  # kept while it runs
)

update_turns = Table(
    "update_turns",
    metadata,
    _update_id(primary_key=True),
    Column("position", Integer, primary_key=True),
    _turn_id(),
    UniqueConstraint("update_id", "turn_id"),
    Index(None, "turn_id"),
)

reservations = Table(
    "reservations",
    metadata,
    _turn_id(primary_key=True),
    _update_id(),
)

uses = Table(
    "uses",
    metadata,
    _turn_id(primary_key=True),
    _update_id(primary_key=True),
    Column("pass", Integer, primary_key=True),
)

activations = Table(
    "activations",
    metadata,
    Column("seq", Integer, primary_key=True, autoincrement=True),
    Column("version", AnyText, nullable=False),
    Column("reason", AnyText, nullable=False),
    Column("created_at", Float, nullable=False),
    sqlite_autoincrement=True,
)

decisions = Table(
    "decisions",
    metadata,
    Column("seq", Integer, primary_key=True, autoincrement=True),
    Column("version", AnyText, nullable=False),
    Column("fate", String(16), nullable=False),
    Column("reason", AnyText, nullable=False),
    Column("created_at", Float, nullable=False),
    Index(None, "version"),
    sqlite_autoincrement=True,
)

heartbeats = Table(
    "heartbeats",
    metadata,
    Column("loop", AnyText, primary_key=True),
    Column("at", Float, nullable=False),
    Column("state", JsonText, nullable=False),
)

documents = Table(
    "documents",
    metadata,
    Column("name", AnyText, primary_key=True),
    Column("value", JsonText, nullable=False),
)
