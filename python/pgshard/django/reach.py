"""Which rows a statement is for, on an unsharded host: it has the rows of all shards in one schema,
so a statement for one shard must name its rows. Raw SQL is trusted to do so.

Invariant: a statement that would mean the rows of all keys, and on shards those of one shard, is
not sent.
"""

from __future__ import annotations

import contextvars
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db.models import ForeignKey
from django.db.models.expressions import Col
from django.db.models.lookups import Exact, In
from django.db.models.sql import Query
from django.db.models.sql.where import AND, OR, WhereNode

from . import finding, unrouted
from .cluster import AllRows, Unrouted, unsharded_host
from .errors import LayoutChanged, Unsharded
from .lookups import lookups_of
from .sharded import KEYS, is_sharded

_free: contextvars.ContextVar[bool] = contextvars.ContextVar("pgshard_free", default=False)


@contextmanager
def all_rows_meant() -> Iterator[None]:
    """Within it, statements need not name their rows: Django looks whether a row with other values
    is in the way of a constraint, which an unsharded host has for the rows of all keys."""
    token = _free.set(True)
    try:
        yield
    finally:
        _free.reset(token)


def check(query: Any, using: Any, connection: Any) -> None:
    """Refuses a statement on an unsharded host that names none of its rows, unless it is for all of
    them. Counts it if it names no key. Called before a statement is compiled, on connections that
    may lead to such a host.

    Raises `Unsharded`, and `LayoutChanged` for a statement for all rows of a host that has them no
    longer, and for one of each shard on a host that has all of them by now.
    """
    if isinstance(using, AllRows):
        if unsharded_host() is None:
            raise LayoutChanged(
                "the shards left the unsharded host, and the call was for all of them at once:"
                " nothing of it has run, make it again"
            )
        if type(using) is Unrouted:
            unrouted.count()
    elif connection.is_unsharded:
        if getattr(query, "pgshard_is_of_each", False):
            raise LayoutChanged(
                "the shards came to an unsharded host, and the call was for each of them: nothing"
                " of this statement has run, make the call again"
            )
        if not _free.get() and not names_rows(query):
            refuse(query, connection.alias)


def refuse(query: Any, where: str) -> None:
    """Raises `Unsharded`."""
    name = query.model.__name__
    raise Unsharded(
        f"{name}: a query on {where} names none of its rows, and {where} is on an unsharded host,"
        " which would take it for the rows of all keys: filter by the key, or use .across_shards()"
    )


def names_rows(query: Any) -> bool:
    """Whether a query is about the rows with a key, an ID or a reference to a row of shards."""
    if not isinstance(query, Query) or query.model is None or not is_sharded(query.model):
        return True  # It is not about rows of shards.
    if query.is_empty() or finding.is_noted(query):
        return True
    if query.combinator:
        return all(map(names_rows, query.combined_queries))
    return _names(query.where, query)


def _names(node: Any, query: Any) -> bool:
    """Whether a condition holds only for rows that it names."""
    if isinstance(node, WhereNode):
        if node.negated or node.connector not in (AND, OR):
            return False
        held = (_names(child, query) for child in node.children)
        if node.connector == AND:
            return any(held) or _names_value(node.children)
        return bool(node.children) and all(held)
    if not isinstance(node, (Exact, In)) or not _is_known(node.rhs):
        return False
    columns = node.lhs.get_cols() if hasattr(node.lhs, "get_cols") else [node.lhs]
    return any(isinstance(one, Col) and _is_name(one.target) for one in columns)


def _names_value(conditions: Any) -> bool:
    """Whether conditions that all hold name the values of a look-up, which are of one key each."""
    named = {
        one.lhs.target
        for one in conditions
        if isinstance(one, (Exact, In)) and isinstance(one.lhs, Col) and _is_known(one.rhs)
    }
    known = {look_up for field in named for look_up in lookups_of(field.model)}
    return any(named.issuperset(look_up.fields) for look_up in known)


def _is_known(value: Any) -> bool:
    """Whether a value is known before the statement runs, or comes from rows that are named."""
    if isinstance(value, (list, tuple, set, frozenset)):
        return all(map(_is_known, value))
    inner = getattr(value, "query", value)
    if isinstance(inner, Query):
        return names_rows(inner)
    if hasattr(value, "get_source_expressions"):
        return not isinstance(value, Col) and all(map(_is_known, value.get_source_expressions()))
    return True


def _is_name(field: Any) -> bool:
    """Whether a value of this field names rows: it is a key, a primary key, or a reference to a row
    of shards."""
    if not is_sharded(field.model):
        return False
    if isinstance(field, KEYS) or field.primary_key:
        return True
    if isinstance(field, ForeignKey):
        return is_sharded(field.remote_field.model)
    return any(
        getattr(generic, "fk_field", None) in (field.name, field.attname)
        for generic in field.model._meta.private_fields
    )
