"""Test databases: shards have one together, which `pgshard.django.test` makes."""

from __future__ import annotations

from typing import Any

from django.db.backends.postgresql.creation import DatabaseCreation as PostgresqlCreation


class DatabaseCreation(PostgresqlCreation):
    """Makes nothing by itself."""

    def create_test_db(self, *args: Any, **kwargs: Any) -> str:
        """The alias."""
        return str(self.connection.alias)

    def destroy_test_db(self, *args: Any, **kwargs: Any) -> None:
        """Nothing."""
