"""Django's joins, subqueries and unions in databases that are no shard, so that they refuse the
tables of shards. The server would only report that such a table does not exist, or have one from
before the shards."""

from __future__ import annotations

from typing import Any, NoReturn

from django.db.models import Model
from django.db.models.expressions import Exists, RawSQL
from django.db.models.lookups import In
from django.db.models.sql import Query
from django.db.models.sql.compiler import SQLCompiler
from django.db.models.sql.datastructures import Join
from django.db.models.sql.where import ExtraWhere

from .backend.sql import check_tables
from .cluster import Unrouted, shard_of_alias
from .errors import NoShard
from .managers import note_objects
from .parts import check_part, check_part_of_all, parts_of
from .routing import chosen, where_of
from .sharded import is_sharded, pk_says_shard

_JOIN_AS_SQL = Join.as_sql
_QUERY_AS_SQL = Query.as_sql
_SPLIT_EXCLUDE = Query.split_exclude
_CHECK_TYPE = Query.check_query_object_type
_COMBINATOR_SQL = SQLCompiler.get_combinator_sql
_IN_PROCESS_RHS = In.process_rhs
_RAW_AS_SQL, _EXTRA_AS_SQL = RawSQL.as_sql, ExtraWhere.as_sql


def _join_as_sql(self: Any, compiler: Any, connection: Any) -> Any:
    """Refuses to join a table of the shards in another database."""
    ends = self.join_field.model, self.join_field.related_model
    if is_sharded(ends[0]) != is_sharded(ends[1]) and shard_of_alias(connection.alias) is None:
        here, there = sorted(ends, key=is_sharded)
        _refuse_to_join(here, self.join_field.name, there)
    return _JOIN_AS_SQL(self, compiler, connection)


def _check_query_object_type(self: Any, value: Any, opts: Any, field: Any) -> None:
    """Notes the shard of an object that a condition is about, if its primary key does not identify
    it. Django itself keeps the primary key only."""
    _CHECK_TYPE(self, value, opts, field)
    if not isinstance(value, Model):
        return
    if is_sharded(value.__class__) and not pk_says_shard(value.__class__):
        where = where_of(value)
        if where is not None:
            note_objects(self, [where])


def _split_exclude(self: Any, filter_expr: Any, can_reuse: Any, names_with_path: Any) -> Any:
    """The same, for an `exclude` by related rows: it becomes a subquery, which begins with their
    table."""
    for name, path in names_with_path:
        for one in path:
            if is_sharded(one.to_opts.model) and not is_sharded(one.from_opts.model):
                _refuse_to_join(one.from_opts.model, name, one.to_opts.model)
    condition, needed = _SPLIT_EXCLUDE(self, filter_expr, can_reuse, names_with_path)
    for part in parts_of(condition):
        if isinstance(part, Exists):
            # It has what a join would have.
            part.query.pgshard_joined = True
    return condition, needed


def _query_as_sql(self: Any, compiler: Any, connection: Any) -> Any:
    """Refuses a query of rows of shards as a part of one of another database, and on a shard one
    that is for all."""
    _refuse_part(self, connection)
    if shard_of_alias(connection.alias) is not None:
        if not connection.is_unsharded:
            check_part(self, compiler.query, connection.alias, chosen())
        elif type(connection.all_rows) is not Unrouted:
            check_part_of_all(self, compiler.query, connection.alias, chosen())
    return _QUERY_AS_SQL(self, compiler, connection)


def _combinator_sql(self: Any, combinator: str, all: bool) -> Any:
    """The same, for `union` and the like."""
    for part in self.query.combined_queries:
        if not part.is_empty():
            _refuse_part(part, self.connection)
    return _COMBINATOR_SQL(self, combinator, all)


def _in_process_rhs(self: Any, compiler: Any, connection: Any) -> Any:
    """The same as Django's, which refuses a subquery of another alias. All rows of an unsharded
    host have those of each."""
    query = self.rhs
    elsewhere = isinstance(query, Query) and getattr(query, "_db", None) is not None
    if not elsewhere or type(getattr(connection, "all_rows", None)) is not Unrouted:
        return _IN_PROCESS_RHS(self, compiler, connection)
    where, query._db = query._db, None
    try:
        return _IN_PROCESS_RHS(self, compiler, connection)
    finally:
        query._db = where


def _raw_as_sql(self: Any, compiler: Any, connection: Any) -> Any:
    """Refuses on a shard SQL by hand that names a table without a schema, as cursors do. `RawSQL`
    and `extra(select=…)` come here."""
    if shard_of_alias(connection.alias) is not None:
        check_tables(self.sql)
    return _RAW_AS_SQL(self, compiler, connection)


def _extra_as_sql(self: Any, compiler: Any = None, connection: Any = None) -> Any:
    """The same, for `extra(where=…)`."""
    if connection is not None and shard_of_alias(connection.alias) is not None:
        for sql in self.sqls:
            check_tables(sql)
    return _EXTRA_AS_SQL(self, compiler, connection)


def _refuse_part(query: Any, connection: Any) -> None:
    if is_sharded(query.model) and shard_of_alias(connection.alias) is None:
        name = query.model.__name__
        raise NoShard(
            f"{name} is in shards, and no part of a query of {connection.alias!r}: {_remedy(name)}"
        )


def _refuse_to_join(here: Any, relation: str, there: Any) -> NoReturn:
    name = there.__name__
    raise NoShard(
        f"{here.__name__}.{relation} leads to {name}, which is in shards, so they are not joined:"
        f" {_remedy(name)}"
    )


def _remedy(name: str) -> str:
    """How to find rows by the values of this model's rows."""
    return (
        f"first ask {name} with .for_key(key) or .across_shards(), then filter by the list of"
        " values that it gives"
    )


def change_django() -> None:
    """Makes Django use all this."""
    Join.as_sql, Query.as_sql, Query.split_exclude = _join_as_sql, _query_as_sql, _split_exclude
    SQLCompiler.get_combinator_sql = _combinator_sql
    In.process_rhs = _in_process_rhs
    Query.check_query_object_type = _check_query_object_type
    RawSQL.as_sql, ExtraWhere.as_sql = _raw_as_sql, _extra_as_sql
