"""What was decided about versions: which one waits, was approved, rejected, or taken back, and why."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "decisions",
        sa.Column("seq", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("version", sa.Text(), nullable=False),
        sa.Column("fate", sa.String(length=16), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("seq", name="pk_decisions"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_decisions_version", "decisions", ["version"])
    op.create_index("ix_turns_version", "turns", ["version"])
