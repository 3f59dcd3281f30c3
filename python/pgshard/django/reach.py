"""Which rows a statement is for, on an unsharded host: it has the rows of all shards in one schema,
so a statement for one shard must name its rows. Raw SQL is trusted to do so.

Invariant: a statement that would mean the rows of all keys, and on shards those of one shard, is
not sent.
"""

from __future__ import annotations

import contextvars
import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.core.exceptions import ValidationError
from django.db.models import ForeignKey, Value
from django.db.models.expressions import Col
from django.db.models.lookups import Exact, In
from django.db.models.sql import Query
from django.db.models.sql.where import AND, OR, NothingNode, WhereNode

from ..errors import LegacyId, WrongId, WrongKey
from . import finding, unrouted
from .cluster import AllRows, Unrouted, cluster, unsharded_host
from .errors import LayoutChanged, Unsharded
from .lookups import lookups_of
from .routing import alias_of_named, alias_of_value, is_legacy, is_of_one_shard
from .sharded import KEYS, OBJECT, has_shard_id, is_sharded

_free: contextvars.ContextVar[bool] = contextvars.ContextVar("pgshard_free", default=False)
_trusted: contextvars.ContextVar[bool] = contextvars.ContextVar("pgshard_trusted", default=False)


@contextmanager
def all_rows_meant() -> Iterator[None]:
    """Within it, statements need not name their rows: Django looks whether a row with other values
    is in the way of a constraint, which an unsharded host has for the rows of all keys."""
    token = _free.set(True)
    try:
        yield
    finally:
        _free.reset(token)


@contextmanager
def objects_meant() -> Iterator[None]:
    """Within it, an ID from before the shards names its row also without a key: Django's own
    queries are about rows that it has read, or about an object's related rows."""
    token = _trusted.set(True)
    try:
        yield
    finally:
        _trusted.reset(token)


def mean_objects(query: Any, where: str | None) -> None:
    """Notes that the conditions of a query name its rows: they are those related to an object of
    this shard."""
    query.pgshard_means_objects = where


def forget_objects(query: Any) -> None:
    """Forgets that, in a query that may have other rows too."""
    if getattr(query, "pgshard_means_objects", None) is not None:
        query.pgshard_means_objects = None


def check(query: Any, using: Any, connection: Any) -> Any:
    """Refuses a statement on an unsharded host that names none of its rows, unless it is for all of
    them. Counts it if it names no key. Called before a statement is compiled, on connections that
    may lead to such a host. Returns the query, without the values that are of other shards.

    Raises `Unsharded`, and `LegacyId` where only an ID from before the shards names a row. Raises
    `LayoutChanged` for a statement for all rows of a host that has them no longer, and for one of
    each shard on a host that has all of them by now.
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
        return of_shard(query, connection.alias)
    return query


def of_shard(query: Any, where: str) -> Any:
    """A query on the connection of this shard, without the values that are of others. Raises
    `Unsharded` and `LegacyId`."""
    if _free.get():
        return query
    reading = _Reading(where)
    reading.check(query)
    return reading.narrowed(query)


def names_rows(query: Any) -> bool:
    """Whether a part of a query is about the rows with a key, an ID or a reference to a row of
    shards, whichever they are."""
    with objects_meant():
        return _Reading("").names_rows(query)


def refuse(query: Any, where: str) -> None:
    """Raises `Unsharded`."""
    name = query.model.__name__
    raise Unsharded(
        f"{name}: a query on {where} names none of its rows, and {where} is on an unsharded host,"
        " which would take it for the rows of all keys: filter by the key, or use .across_shards()"
    )


class _Reading:
    """Reads which rows the conditions of a query name, on the connection of a shard."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._trusts = _trusted.get()
        self._legacy: int | None = None
        """An ID from before the shards, which names no shard."""
        self._has_others = False
        """Whether a value is one of another shard, whose rows a shard would not have."""

    def check(self, query: Any) -> None:
        """Raises `Unsharded` and `LegacyId`."""
        if self.names_rows(query):
            return
        if self._legacy is not None:
            raise LegacyId(self._legacy, cluster().legacy_below)
        refuse(query, self._where)

    def names_rows(self, query: Any) -> bool:
        """Whether a query is about the rows with a key, an ID or a reference to a row of shards."""
        if not isinstance(query, Query) or query.model is None or not is_sharded(query.model):
            return True  # It is not about rows of shards.
        if query.is_empty() or finding.is_noted(query):
            return True
        if query.combinator:
            return all([self.names_rows(one) for one in query.combined_queries])
        of_objects = getattr(query, "pgshard_means_objects", None) == self._where
        return self._names(query.where) or of_objects

    def _names(self, node: Any) -> bool:
        """Whether a condition holds only for rows that it names."""
        if isinstance(node, WhereNode):
            if node.negated or node.connector not in (AND, OR):
                return False
            # Each is read: one may have a value of another shard.
            held = [self._names(child) for child in node.children]
            if node.connector == AND:
                return (
                    any(held) or _names_value(node.children) or self._names_generic(node.children)
                )
            return bool(held) and all(held)
        if isinstance(node, NothingNode):
            return True
        if not isinstance(node, (Exact, In)) or not self._is_known(node.rhs):
            return False
        if self._others(node) is not None:
            self._has_others = True
            return True
        return any([self._is_named(field, values) for field, values in _values(node)])

    def _is_named(self, field: Any, values: list[Any] | None) -> bool:
        """Whether rows with these values of a field are named; None for values that a query or the
        server gives."""
        if not _is_name(field):
            return False
        if self._trusts or values is None:
            return True
        key = _key(field)
        if key is OBJECT:
            return False  # Each shard has rows with these values.
        if key is None:
            self._legacy = next(filter(is_legacy, values), self._legacy)
            return not any(map(is_legacy, values))
        return True

    def _names_generic(self, conditions: Any) -> bool:
        """Whether conditions that all hold name an object by its content type and its ID, and only
        rows of its shard refer to it."""
        given = {
            one.lhs.target: one
            for one in conditions
            if isinstance(one, (Exact, In)) and isinstance(one.lhs, Col)
        }
        for field, id in given.items():
            for generic in field.model._meta.private_fields if is_sharded(field.model) else ():
                if getattr(generic, "fk_field", None) not in (field.name, field.attname):
                    continue
                kind = given.get(field.model._meta.get_field(generic.ct_field))
                if not isinstance(kind, Exact) or not isinstance(kind.rhs, int):
                    continue
                model = generic.get_content_type(id=kind.rhs).model_class()
                if model is None or not is_sharded(model) or not self._is_known(id.rhs):
                    continue
                if self._trusts:
                    return True
                if not is_of_one_shard(model, field.model) or not has_shard_id(model):
                    continue
                for _, values in _values(id):
                    places = {_place_of_text(value) for value in values or [None]}
                    if places == {self._where}:
                        return True
        return False

    def _is_known(self, value: Any) -> bool:
        """Whether a value is known before the statement runs, or comes from rows that are
        named."""
        if isinstance(value, (list, tuple, set, frozenset)):
            return all([self._is_known(one) for one in value])
        inner = getattr(value, "query", value)
        if isinstance(inner, Query):
            return self.names_rows(inner)
        # What the server computes may be of any shard.
        return isinstance(value, Value) or not hasattr(value, "get_source_expressions")

    def _others(self, node: Any) -> set[int] | None:
        """The places in the list of a condition of the values that are of other shards; None if
        there are none."""
        if self._trusts:
            return None
        found: set[int] = set()
        for field, values in _values(node):
            key = _key(field) if _is_name(field) else OBJECT
            for at, value in enumerate(values or ()) if key is not OBJECT else ():
                if _place(key, value) not in (None, self._where):
                    found.add(at)
        return found or None

    def narrowed(self, query: Any) -> Any:
        """The query without the values of other shards: a shard has none of their rows."""
        if not self._has_others or not isinstance(query, Query):
            return query
        made = query.clone()
        if made.combinator:
            made.combined_queries = tuple(map(self.narrowed, made.combined_queries))
        else:
            made.where = self._narrowed(made.where)
        return made

    def _narrowed(self, node: Any) -> Any:
        if isinstance(node, WhereNode):
            if node.negated or node.connector not in (AND, OR):
                return node
            made = copy.copy(node)
            made.children = [self._narrowed(child) for child in node.children]
            return made
        if not isinstance(node, (Exact, In)):
            return node
        made = copy.copy(node)
        if isinstance(node.rhs, Query):
            made.rhs = self.narrowed(node.rhs)
            return made
        others = self._others(node)
        if others is None:
            return node
        rhs = list(node.rhs) if isinstance(node, In) else []
        made.rhs = [value for at, value in enumerate(rhs) if at not in others]
        return made if made.rhs else NothingNode()


def _values(node: Any) -> Iterator[tuple[Any, list[Any] | None]]:
    """The columns that a condition compares, each with the values; None for those that a query or
    the server gives."""
    columns = node.lhs.get_cols() if hasattr(node.lhs, "get_cols") else [node.lhs]
    given = node.rhs if isinstance(node, In) else [node.rhs]
    known = isinstance(given, (list, tuple, set, frozenset))
    for at, column in enumerate(columns):
        if not isinstance(column, Col):
            continue
        values = None
        if known:
            values = [
                one[at] if len(columns) > 1 and isinstance(one, (tuple, list)) else one
                for one in given
            ]
            values = [one.value if isinstance(one, Value) else one for one in values]
            if any(hasattr(one, "resolve_expression") for one in values):
                values = None
        yield column.target, values


def _key(field: Any) -> Any:
    """The key's field whose values a field has; None if it has IDs, and `OBJECT` if its values name
    no shard."""
    if isinstance(field, KEYS):
        return field
    if isinstance(field, ForeignKey) and not field.primary_key:
        target = field.target_field
        if isinstance(target, KEYS):
            return target
        return None if target.primary_key and has_shard_id(target.model) else OBJECT
    return None if has_shard_id(field.model) else OBJECT


def _place(key: Any, value: Any) -> str | None:
    """The shard of a value; None if it names none."""
    try:
        if key is not None:
            return alias_of_value(key, value)
        return alias_of_named(int(value))
    except (TypeError, ValueError, ValidationError, WrongId, WrongKey):
        return None


def _place_of_text(value: Any) -> str | None:
    return None if value is None or is_legacy(value) else _place(None, value)


def _names_value(conditions: Any) -> bool:
    """Whether conditions that all hold name the values of a look-up, which are of one key each."""
    named = {
        one.lhs.target
        for one in conditions
        if isinstance(one, (Exact, In)) and isinstance(one.lhs, Col) and _is_fixed(one.rhs)
    }
    known = {look_up for field in named for look_up in lookups_of(field.model)}
    return any(named.issuperset(look_up.fields) for look_up in known)


def _is_fixed(value: Any) -> bool:
    """Whether a value is known before the statement runs."""
    if isinstance(value, (list, tuple, set, frozenset)):
        return all(map(_is_fixed, value))
    return not hasattr(value, "resolve_expression") or isinstance(value, Value)


def _is_name(field: Any) -> bool:
    """Whether a value of this field names rows: it is a key, a primary key, or a reference to a row
    of shards."""
    if not is_sharded(field.model):
        return False
    if isinstance(field, KEYS) or field.primary_key:
        return True
    return isinstance(field, ForeignKey) and is_sharded(field.remote_field.model)
