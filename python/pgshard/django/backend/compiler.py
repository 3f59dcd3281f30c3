"""The SQL of the ORM, with the shard's schema before each table of a FROM, a JOIN, an INSERT, an
UPDATE and a DELETE.

Everywhere else the bare table name stays, which PostgreSQL takes as the implicit alias. So
`FOR UPDATE OF "t"` and `RETURNING "t"."id"` work, and so does a column with the same name as a
table.
"""

from __future__ import annotations

from typing import Any

from django.db.backends.postgresql import compiler as postgresql
from django.db.models.sql import compiler as standard
from django.db.models.sql.datastructures import BaseTable, Join

from ..cluster import AllRows, Unrouted
from ..errors import WrongShard
from ..managers import check_alternative, check_objects_of, check_value
from ..reach import check as check_reach
from ..routing import check_instance, check_objects, unrouted
from ..sharded import is_sharded, placed_names, unsharded_tables
from .sql import Compiled


def _django(name: str) -> Any:
    """PostgreSQL's compiler, which differs from the standard one; which classes it has depends on
    the version of Django."""
    return getattr(postgresql, name, getattr(standard, name))


# mypy sees them as Any, like all of Django.
_Select: Any = _django("SQLCompiler")
_Aggregate: Any = _django("SQLAggregateCompiler")
_Insert: Any = _django("SQLInsertCompiler")
_Update: Any = _django("SQLUpdateCompiler")
_Delete: Any = _django("SQLDeleteCompiler")


def _put(sql: str, before: str, schema: str) -> str:
    if not sql.startswith(before):
        raise AssertionError(f"{sql!r} does not begin with {before!r}")
    return f"{before}{schema}.{sql[len(before) :]}"


class _Qualified:
    connection: Any
    query: Any
    using: Any
    compile: Any

    def execute_sql(self, *args: Any, **kwargs: Any) -> Any:
        """The same as Django's. On an unsharded host, refuses a statement for one shard that names
        none of its rows. Only whole statements come here, and no part of one."""
        connection = self.connection
        if not connection.follows_layout:
            return super().execute_sql(*args, **kwargs)  # type: ignore[misc]
        # An aggregate over a subquery: that has the rows.
        inner = getattr(self.query, "inner_query", None)
        if inner is None:
            self.query = check_reach(self.query, self.using, connection)
        else:
            self.query.inner_query = check_reach(inner, self.using, connection)
        before = connection.all_rows
        connection.all_rows = self.using if isinstance(self.using, AllRows) else None
        try:
            return super().execute_sql(*args, **kwargs)  # type: ignore[misc]
        finally:
            connection.all_rows = before

    def get_from_clause(self) -> Any:
        query = self.query
        if len(query.alias_map) == 1 and not query.extra_tables:
            # Most queries: the clause is one table, and what Django does comes to this.
            for alias, table in query.alias_map.items():
                if type(table) is BaseTable and query.alias_refcount[alias]:
                    sql, params = table.as_sql(self, self.connection)
                    return [self._qualified(table, sql)], params
        # Tables are only compiled here. Django's own `compile`, which is called for each column,
        # compiles the rest.
        self.compile = self._compile_from
        try:
            parts, params = super().get_from_clause()  # type: ignore[misc]
        finally:
            del self.compile
        if self.query.extra_tables:
            parts = [self._extra(part) for part in parts]
        return parts, params

    def _extra(self, part: str) -> str:
        """A part of FROM. It gets the schema if it comes from `extra(tables=…)`, because Django
        adds those tables as they are."""
        if not part.startswith(", "):
            return part
        self._known(part[2:].strip('"'))
        # A table with a schema in its name is in another schema, such as `public`.
        return part if '"."' in part else _put(part, ", ", self.connection.quoted_schema)

    def _compile_from(self, node: Any) -> Any:
        sql, params = super().compile(node)  # type: ignore[misc]
        return self._qualified(node, sql) if isinstance(node, (BaseTable, Join)) else sql, params

    def _qualified(self, node: Any, sql: str) -> str:
        """The SQL of a table or a join, with the schema."""
        self._known(node.table_name)
        there = getattr(self.query, "pgshard_alias", None)
        connection = self.connection
        if connection.all_rows is None:
            check_objects_of(self.query, connection.alias)
        if type(connection.all_rows) is Unrouted:
            pass  # It may be about rows of any shards.
        elif there is None:
            if getattr(self.query, "pgshard_several", False):
                unrouted(
                    self.query.model,
                    "keys or IDs in a part of the query may be of several shards, so it",
                )
            check_alternative(self.query, connection.alias)
        elif there != connection.alias:
            here = connection.alias
            raise WrongShard(
                f"a part of a query on {here} is for {there}: run it by itself, and use its result"
            )
        schema = connection.quoted_schema
        return (
            f"{schema}.{sql}" if node.join_type is None else _put(sql, f"{node.join_type} ", schema)
        )

    def _known(self, table: str) -> None:
        """Refuses the table of a model that is not in the shards. The server would only report that
        it does not exist."""
        model = unsharded_tables().get(table)
        if model is not None:
            raise WrongShard(
                f"{model._meta.label} is not sharded, its rows are not on {self.connection.alias}:"
                " query it by itself, without using(), and join by its primary key in Python"
            )


class SQLCompiler(_Qualified, _Select):
    """SELECT."""

    def as_sql(self, *args: Any, **kwargs: Any) -> Any:
        schema = self.connection.schema
        sql, params = super().as_sql(*args, **kwargs)
        return Compiled(sql, schema), params


class SQLAggregateCompiler(_Qualified, _Aggregate):
    """SELECT of aggregates over a subquery."""

    def as_sql(self, *args: Any, **kwargs: Any) -> Any:
        schema = self.connection.schema
        sql, params = super().as_sql(*args, **kwargs)
        return Compiled(sql, schema), params


class SQLInsertCompiler(_Qualified, _Insert):
    """INSERT."""

    def execute_sql(self, *args: Any, **kwargs: Any) -> Any:
        """The same as Django's: each row has its key."""
        return _Insert.execute_sql(self, *args, **kwargs)

    def as_sql(self) -> Any:
        table, schema = self.query.model._meta.db_table, self.connection.quoted_schema
        there = self.connection.schema
        using = self.using if isinstance(self.using, AllRows) else self.connection.alias
        self._known(table)
        if is_sharded(self.query.model):
            # Each way to make a row comes here, also those that use no model and no manager of
            # shards.
            for one in self.query.objs:
                check_instance(one, using)
        found = super().as_sql()
        if len(found) == 1:
            ((sql, params),) = found
            return [(Compiled(_put(sql, "INSERT INTO ", schema), there), params)]
        return [
            (Compiled(_put(sql, "INSERT INTO ", schema), there), params) for sql, params in found
        ]


class SQLUpdateCompiler(_Qualified, _Update):
    """UPDATE."""

    def as_sql(self) -> Any:
        schema = self.connection.schema
        using = self.connection.all_rows or self.connection.alias
        if self.connection.all_rows is None:
            check_objects_of(self.query, using)
        if is_sharded(self.query.model):
            placed = placed_names(self.query.model)
            check_objects((value for _, _, value in self.query.values), using)
            for field, _, value in self.query.values:
                if value is not None and field.attname in placed:
                    check_value(self.query.model, field.attname, value, using)
        sql, params = super().as_sql()
        if sql:
            self._known(self.query.base_table)
            sql = Compiled(_put(sql, "UPDATE ", self.connection.quoted_schema), schema)
        return sql, params


class SQLDeleteCompiler(_Qualified, _Delete):
    """DELETE."""

    def _as_sql(self, query: Any) -> Any:
        schema = self.connection.schema
        if self.connection.all_rows is None:
            check_objects_of(query, self.connection.alias)
        self._known(self.query.base_table)
        sql, params = super()._as_sql(query)
        return Compiled(_put(sql, "DELETE FROM ", self.connection.quoted_schema), schema), params
