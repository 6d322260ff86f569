"""Alembic's entry point. The connection is already in a transaction, which holds the write lock."""

from alembic import context

context.configure(connection=context.config.attributes["connection"])
with context.begin_transaction():
    context.run_migrations()
