"""What shards can do."""

from __future__ import annotations

from django.db.backends.postgresql.features import DatabaseFeatures as PostgresqlFeatures
from django.utils.functional import cached_property

from ..cluster import state


class DatabaseFeatures(PostgresqlFeatures):
    """The same as PostgreSQL's."""

    @cached_property
    def supports_transactions(self) -> bool:
        """Whether Django's test cases may put each test into a transaction on each shard. On an
        unsharded host they would not see each other's rows, and wait for each other's locks: there
        the tables are emptied after each test."""
        if self.connection.is_unsharded and state.visible:
            return False
        return bool(super().supports_transactions)
