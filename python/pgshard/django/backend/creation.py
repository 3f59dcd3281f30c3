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

    def setup_worker_connection(self, _worker_id: int) -> None:
        """In a process of `manage.py test --parallel`: the shards of its own copy."""
        from ..test import use_copy

        use_copy(_worker_id)
        self.connection.connection = None

    def get_test_db_clone_settings(self, suffix: str) -> Any:
        """Nothing of a shard's settings changes: the config does."""
        return self.connection.settings_dict
