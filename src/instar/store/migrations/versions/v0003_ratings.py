"""The ratings among what followed turns, found without a look at the rest."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    rated = sa.text("score IS NOT NULL OR correction IS NOT NULL")
    op.create_index(
        "ix_next_states_rated", "next_states", ["seq"], sqlite_where=rated, postgresql_where=rated
    )
