"""Test databases: all shards share one, which `pgshard.django.test` makes."""

from __future__ import annotations

from typing import Any

from django.db.backends.postgresql.creation import DatabaseCreation as PostgresqlCreation


class DatabaseCreation(PostgresqlCreation):
    """Makes no test database: `pgshard.django.test` does."""

    def create_test_db(self, *args: Any, **kwargs: Any) -> str:
        """Returns the alias."""
        return str(self.connection.alias)

    def destroy_test_db(self, *args: Any, **kwargs: Any) -> None:
        """Does nothing: `pgshard.django.test` drops the database."""

    def setup_worker_connection(self, _worker_id: int) -> None:
        """In a process of `manage.py test --parallel`, switches to the shards of the process's own
        copy."""
        from ..test import use_copy

        use_copy(_worker_id)
        self.connection.connection = None

    def get_test_db_clone_settings(self, suffix: str) -> Any:
        """The settings of a shard stay the same: the config changes instead."""
        return self.connection.settings_dict
