"""The SQL that does not come from the compiler: for `flush`, sequences and fixtures."""

from __future__ import annotations

from typing import Any

from django.db import models
from django.db.backends.postgresql.operations import DatabaseOperations as PostgresqlOperations

from ..cluster import state
from ..errors import Unsharded
from ..fields import ShardedBigAutoField
from . import compiler


class DatabaseOperations(PostgresqlOperations):
    """Django's operations, with the shard's schema."""

    compiler_module = "pgshard.django.backend.compiler"

    def compiler(self, compiler_name: str) -> Any:
        """The same as Django's, which would import the module again for each connection object."""
        self.connection.take_layout()
        return getattr(compiler, compiler_name)

    def sql_flush(
        self, style: Any, tables: Any, *, reset_sequences: bool = False, allow_cascade: bool = False
    ) -> list[str]:
        """One TRUNCATE of all tables. In tests, of those that have rows: a test uses few shards and
        few tables, and each TRUNCATE writes new files."""
        self.connection.take_layout()
        schema = self.connection.quoted_schema
        if self.connection.is_unsharded and not state.visible:
            raise Unsharded(
                f"{self.connection.alias} is on an unsharded host, where its tables have"
                " the rows of all keys: nothing was deleted"
            )
        if tables and self.connection.alias in state.visible and not reset_sequences:
            tables = self._with_rows(tables)
        if not tables:
            return []
        names = ", ".join(f"{schema}.{self.quote_name(table)}" for table in tables)
        tail = (" RESTART IDENTITY" if reset_sequences else "") + (
            " CASCADE" if allow_cascade else ""
        )
        return [f"TRUNCATE {names}{tail};"]

    def _with_rows(self, tables: Any) -> list[str]:
        """Those of these tables that have rows, and the tables that refer to them."""
        schema = self.connection.quoted_schema
        names = [f"{schema}.{self.quote_name(table)}" for table in tables]
        one = "SELECT %s::regclass WHERE EXISTS (SELECT FROM {})"
        rows = " UNION ALL ".join(one.format(name) for name in names)
        with self.connection.cursor() as cursor:
            cursor.execute(
                f"WITH RECURSIVE wanted(oid) AS ({rows} UNION SELECT c.conrelid::regclass FROM"
                " pg_catalog.pg_constraint c JOIN wanted w ON c.confrelid = w.oid WHERE c.contype ="
                " 'f') SELECT c.relname FROM wanted w JOIN pg_catalog.pg_class c ON c.oid = w.oid",
                names,
            )
            return [name for (name,) in cursor.fetchall()]

    def sequence_reset_sql(self, style: Any, model_list: Any) -> list[str]:
        """For ordinary sequences, such as those of automatic many-to-many tables. `next_id()` never
        gives an ID that is taken."""
        found = []
        for model in model_list:
            for field in model._meta.local_fields:
                if isinstance(field, models.AutoField) and not isinstance(
                    field, ShardedBigAutoField
                ):
                    table = (
                        f"{self.connection.quoted_schema}.{self.quote_name(model._meta.db_table)}"
                    )
                    literal = table.replace("'", "''")
                    column, quoted = field.column.replace("'", "''"), self.quote_name(field.column)
                    found.append(
                        f"SELECT setval(pg_get_serial_sequence('{literal}', '{column}'),"
                        f" coalesce(max({quoted}), 1), max({quoted}) IS NOT NULL) FROM {table};"
                    )
        return found

    def sequence_reset_by_name_sql(self, style: Any, sequences: Any) -> list[str]:
        """For the given sequences."""
        found = []
        for one in sequences:
            table = f"{self.connection.quoted_schema}.{self.quote_name(one['table'])}"
            found.append(
                f"SELECT setval(pg_get_serial_sequence('{table}', '{one['column'] or 'id'}'), 1,"
                " false);"
            )
        return found
