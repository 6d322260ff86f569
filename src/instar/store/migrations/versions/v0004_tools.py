"""The tools that a turn's model was told of, and which of its tokens a grammar decided."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("turns", sa.Column("forced", sa.LargeBinary))
    op.add_column("turns", sa.Column("tool_hashes", sa.LargeBinary))
