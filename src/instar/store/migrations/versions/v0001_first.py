"""The first schema."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "activations",
        sa.Column("seq", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("version", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("seq", name="pk_activations"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "documents",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_documents"),
    )
    op.create_table(
        "heartbeats",
        sa.Column("loop", sa.Text(), nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("loop", name="pk_heartbeats"),
    )
    op.create_table(
        "pieces",
        sa.Column("hash", sa.LargeBinary(length=32), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("hash", name="pk_pieces"),
    )
    op.create_table(
        "turns",
        sa.Column("seq", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("session_id", sa.Text(), nullable=False),
        sa.Column("episode_id", sa.Text(), nullable=False),
        sa.Column("parent_id", sa.Text()),
        sa.Column("key_id", sa.Text(), nullable=False),
        sa.Column("learner", sa.Text(), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("version", sa.Text(), nullable=False),
        sa.Column("pinned", sa.Boolean(), nullable=False),
        sa.Column("learn", sa.Boolean(), nullable=False),
        sa.Column("reason", sa.Text()),
        sa.Column("choice", sa.Integer(), nullable=False),
        sa.Column("params", sa.Text(), nullable=False),
        sa.Column("request_hash", sa.Text(), nullable=False),
        sa.Column("context_hash", sa.Text()),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("finish_reason", sa.Text()),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("closed_at", sa.Float()),
        sa.Column("message_hashes", sa.LargeBinary(), nullable=False),
        sa.Column("question_at", sa.Integer()),
        sa.Column("prompt_hashes", sa.LargeBinary(), nullable=False),
        sa.Column("prompt_len", sa.Integer(), nullable=False),
        sa.Column("response_ids", sa.LargeBinary(), nullable=False),
        sa.Column("response_len", sa.Integer(), nullable=False),
        sa.Column("logprobs", sa.LargeBinary(), nullable=False),
        sa.Column("answer", sa.Text()),
        sa.Column("verdict_seq", sa.Integer()),
        sa.Column("to_judge", sa.Boolean(), nullable=False),
        sa.Column("to_train", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("seq", name="pk_turns"),
        sa.UniqueConstraint("id", name="uq_turns_id"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_turns_episode_id", "turns", ["episode_id"])
    op.create_index("ix_turns_key_id_context_hash", "turns", ["key_id", "context_hash"])
    op.create_index("ix_turns_parent_id", "turns", ["parent_id"])
    op.create_index("ix_turns_reason", "turns", ["reason"])
    op.create_index("ix_turns_session_id_request_hash", "turns", ["session_id", "request_hash"])
    op.create_index("ix_turns_status", "turns", ["status"])
    op.create_index(
        "ix_turns_to_judge",
        "turns",
        ["seq"],
        sqlite_where=sa.text("to_judge = 1"),
        postgresql_where=sa.text("to_judge"),
    )
    op.create_index(
        "ix_turns_to_train",
        "turns",
        ["seq"],
        sqlite_where=sa.text("to_train = 1"),
        postgresql_where=sa.text("to_train"),
    )
    op.create_table(
        "updates",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("parent", sa.Text(), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("running", sa.Integer()),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("finished_at", sa.Float()),
        sa.Column("version", sa.Text()),
        sa.Column("scale", sa.Float(), nullable=False),
        sa.Column("passes", sa.Integer(), nullable=False),
        sa.Column("note", sa.Text()),
        sa.Column("job", sa.Text()),
        sa.PrimaryKeyConstraint("id", name="pk_updates"),
        sa.UniqueConstraint("number", name="uq_updates_number"),
        sa.UniqueConstraint("running", name="uq_updates_running"),
    )
    op.create_table(
        "judgements",
        sa.Column("seq", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("turn_id", sa.Text(), nullable=False),
        sa.Column("basis", sa.Integer(), nullable=False),
        sa.Column("score", sa.Integer()),
        sa.Column("source", sa.String(length=16), nullable=False),
        sa.Column("link", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("votes", sa.Text(), nullable=False),
        sa.Column("hint", sa.Text()),
        sa.Column("correction", sa.Text()),
        sa.Column("why", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["turn_id"], ["turns.id"], name="fk_judgements_turn_id"),
        sa.PrimaryKeyConstraint("seq", name="pk_judgements"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_judgements_turn_id", "judgements", ["turn_id"])
    op.create_table(
        "leases",
        sa.Column("turn_id", sa.Text(), nullable=False),
        sa.Column("token", sa.String(length=64), nullable=False),
        sa.Column("worker", sa.Text(), nullable=False),
        sa.Column("basis", sa.Integer(), nullable=False),
        sa.Column("boot", sa.String(length=64), nullable=False),
        sa.Column("taken_s", sa.Float(), nullable=False),
        sa.Column("expires_s", sa.Float(), nullable=False),
        sa.Column("tries", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["turn_id"], ["turns.id"], name="fk_leases_turn_id"),
        sa.PrimaryKeyConstraint("turn_id", name="pk_leases"),
    )
    op.create_table(
        "next_states",
        sa.Column("seq", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("turn_id", sa.Text(), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("text_hash", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("by_turn_id", sa.Text()),
        sa.Column("score", sa.Integer()),
        sa.Column("correction", sa.Text()),
        sa.ForeignKeyConstraint(["turn_id"], ["turns.id"], name="fk_next_states_turn_id"),
        sa.PrimaryKeyConstraint("seq", name="pk_next_states"),
        sa.UniqueConstraint("turn_id", "kind", "text_hash", name="uq_next_states_turn_id_kind_text_hash"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "reservations",
        sa.Column("turn_id", sa.Text(), nullable=False),
        sa.Column("update_id", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["turn_id"], ["turns.id"], name="fk_reservations_turn_id"),
        sa.ForeignKeyConstraint(["update_id"], ["updates.id"], name="fk_reservations_update_id"),
        sa.PrimaryKeyConstraint("turn_id", name="pk_reservations"),
    )
    op.create_table(
        "update_turns",
        sa.Column("update_id", sa.Text(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("turn_id", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["turn_id"], ["turns.id"], name="fk_update_turns_turn_id"),
        sa.ForeignKeyConstraint(["update_id"], ["updates.id"], name="fk_update_turns_update_id"),
        sa.PrimaryKeyConstraint("update_id", "position", name="pk_update_turns"),
        sa.UniqueConstraint("update_id", "turn_id", name="uq_update_turns_update_id_turn_id"),
    )
    op.create_index("ix_update_turns_turn_id", "update_turns", ["turn_id"])
    op.create_table(
        "uses",
        sa.Column("turn_id", sa.Text(), nullable=False),
        sa.Column("update_id", sa.Text(), nullable=False),
        sa.Column("pass", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["turn_id"], ["turns.id"], name="fk_uses_turn_id"),
        sa.ForeignKeyConstraint(["update_id"], ["updates.id"], name="fk_uses_update_id"),
        sa.PrimaryKeyConstraint("turn_id", "update_id", "pass", name="pk_uses"),
    )
