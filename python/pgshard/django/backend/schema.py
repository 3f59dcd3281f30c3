"""Django's DDL as text for all shards, and the refusal to run it on one."""

from __future__ import annotations

from typing import Any, NoReturn

from django.db import NotSupportedError
from django.db.backends.postgresql.schema import DatabaseSchemaEditor
from django.db.backends.utils import split_identifier


def refuse(alias: str) -> NoReturn:
    """Raises: a shard alone is not migrated."""
    raise NotSupportedError(
        f"{alias} is not migrated by Django: `manage.py shards makesql` writes files for all shards, "
        f"and `pgshard migrate up` runs them"
    )


class TemplateSchemaEditor(DatabaseSchemaEditor):
    """Collects SQL with {shard} where a shard's schema goes. Tables come with it; what is here are names that do not."""

    sql_delete_index = "DROP INDEX IF EXISTS {shard}.%(name)s"
    sql_delete_index_concurrently = "DROP INDEX CONCURRENTLY IF EXISTS {shard}.%(name)s"
    sql_rename_index = "ALTER INDEX {shard}.%(old_name)s RENAME TO %(new_name)s"

    def alter_db_table(self, model: Any, old_db_table: str, new_db_table: str) -> None:
        """A new name in RENAME TO has no schema."""
        if old_db_table != new_db_table:
            new = self.quote_name(split_identifier(new_db_table)[1])
            self.execute(f"ALTER TABLE {self.quote_name(old_db_table)} RENAME TO {new}")
