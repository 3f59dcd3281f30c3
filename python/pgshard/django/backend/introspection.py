"""What is in a shard's schema."""

from __future__ import annotations

from typing import Any

from django.db.backends.postgresql.introspection import DatabaseIntrospection as PostgresqlIntrospection
from django.db.backends.postgresql.introspection import TableInfo


class DatabaseIntrospection(PostgresqlIntrospection):
    """Tables of the schema, whatever the search path says."""

    def get_table_list(self, cursor: Any) -> list[Any]:
        """Its tables and views."""
        cursor.execute(
            "SELECT c.relname, CASE WHEN c.relkind IN ('m', 'v') THEN 'v' WHEN c.relispartition THEN 'p' ELSE 't' END, "
            "pg_catalog.obj_description(c.oid, 'pg_class') FROM pg_catalog.pg_class c "
            "JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace "
            "WHERE n.nspname = %s AND c.relkind IN ('f', 'm', 'p', 'r', 'v')",
            [self.connection.schema],
        )
        return [TableInfo(*row) for row in cursor.fetchall()]
