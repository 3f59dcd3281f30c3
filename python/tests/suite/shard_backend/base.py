"""pgshard's backend, changed for Django's own tests: their models are not sharded, and create their
tables themselves."""

from typing import Any

from django.core.management import call_command
from django.db.backends.postgresql.schema import DatabaseSchemaEditor

from pgshard.django.backend import base, compiler, creation, cursor, pools
from pgshard.django.cluster import alias as alias_of

SHARDS = {"default": 0, "other": 1}

# Nothing is refused for not being sharded.
compiler.unsharded_tables = dict
# The tests make their tables in the search path.
cursor.check_tables = lambda sql: None


class SchemaEditor(DatabaseSchemaEditor):
    """Makes tables in the shard's schema."""

    def __enter__(self) -> Any:
        super().__enter__()
        self.execute(
            f"SET {'LOCAL' if self.atomic_migration else ''} search_path ="
            f" {self.connection.schema}, public"
        )
        return self

    def __exit__(self, *error: Any) -> None:
        try:
            super().__exit__(*error)
        finally:
            if not self.atomic_migration:
                self.execute("RESET search_path")


class Creation(creation.DatabaseCreation):
    """Makes the tables of the apps under test."""

    def create_test_db(self, *args: Any, **kwargs: Any) -> str:
        call_command(
            "migrate",
            database=self.connection.alias,
            run_syncdb=True,
            verbosity=0,
            interactive=False,
        )
        return super().create_test_db(*args, **kwargs)


class DatabaseWrapper(base.DatabaseWrapper):
    """A shard with another alias, which may be migrated."""

    creation_class = Creation
    SchemaEditorClass = SchemaEditor

    def __init__(self, settings_dict: dict[str, Any], alias: str) -> None:
        super().__init__(settings_dict, alias_of(SHARDS[alias]))
        self.alias = alias
        pools.touch(alias)

    def prepare_database(self) -> None:
        """Does nothing."""

    def schema_editor(self, *args: Any, **kwargs: Any) -> Any:
        return SchemaEditor(self, *args, **kwargs)
