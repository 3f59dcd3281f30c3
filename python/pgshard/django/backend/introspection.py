"""What a shard's schema contains."""

from __future__ import annotations

import re
from typing import Any

from django.db.backends.postgresql.introspection import (
    DatabaseIntrospection as PostgresqlIntrospection,
)
from django.db.backends.postgresql.introspection import TableInfo

_VISIBLE = re.compile(r"pg_catalog\.pg_table_is_visible\((\w+)\.oid\)")
_FIRST_ROW = re.compile(r"^SELECT \* FROM (?=\")")


class _InSchema:
    """A cursor for Django's own statements, which look for a bare name along the search path: this
    one looks in the shard's schema."""

    def __init__(self, cursor: Any, schema: str, quoted_schema: str) -> None:
        self._cursor = cursor
        literal = schema.replace("'", "''")
        self._there = (
            r"\1.relnamespace = (SELECT s.oid FROM pg_catalog.pg_namespace s WHERE s.nspname ="
            rf" '{literal}')"
        )
        self._first_row = f"SELECT * FROM {quoted_schema}."

    def execute(self, sql: str, params: Any = None) -> Any:
        """Runs a statement."""
        sql = _FIRST_ROW.sub(lambda _: self._first_row, _VISIBLE.sub(self._there, sql))
        return self._cursor.execute(sql, params)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cursor, name)


class DatabaseIntrospection(PostgresqlIntrospection):
    """Describes the tables of the shard's schema, whatever the search path is."""

    def get_table_list(self, cursor: Any) -> list[Any]:
        """The schema's tables and views."""
        cursor.execute(
            "SELECT c.relname, CASE WHEN c.relkind IN ('m', 'v') THEN 'v' WHEN c.relispartition"
            " THEN 'p' ELSE 't' END, pg_catalog.obj_description(c.oid, 'pg_class') FROM"
            " pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE"
            " n.nspname = %s AND c.relkind IN ('f', 'm', 'p', 'r', 'v')",
            [self.connection.schema],
        )
        return [TableInfo(*row) for row in cursor.fetchall()]

    def get_table_description(self, cursor: Any, table_name: str) -> Any:
        """The columns of a table."""
        return super().get_table_description(self._in_schema(cursor), table_name)

    def get_sequences(self, cursor: Any, table_name: str, table_fields: Any = ()) -> Any:
        """The sequences of a table's columns."""
        return super().get_sequences(self._in_schema(cursor), table_name, table_fields)

    def get_relations(self, cursor: Any, table_name: str) -> Any:
        """The foreign keys of a table."""
        return super().get_relations(self._in_schema(cursor), table_name)

    def get_constraints(self, cursor: Any, table_name: str) -> Any:
        """The keys, constraints and indexes of a table."""
        return super().get_constraints(self._in_schema(cursor), table_name)

    def get_field_type(self, data_type: Any, description: Any) -> Any:
        """The same as Django's, and also recognizes the ID that the shard makes."""
        if str(getattr(description, "default", None)).endswith("next_id()"):
            return "pgshard.django.ShardedBigAutoField"
        return super().get_field_type(data_type, description)

    def _in_schema(self, cursor: Any) -> _InSchema:
        return _InSchema(cursor, self.connection.schema, self.connection.quoted_schema)
