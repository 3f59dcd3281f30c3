"""Subqueries of sharded models that name no shard. They see the rows of the shard that their query
is on, which are all that they could give only if they are tied to the row of the query, or give
keys or IDs that are compared with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.db.models.expressions import Col
from django.db.models.lookups import Exact, In
from django.db.models.sql.where import AND, OR, WhereNode

from . import finding, reach
from .errors import NoShard
from .routing import unrouted
from .sharded import KEYS, is_sharded, key_names, placed_names, says_the_shard
from .unrouted import count


def parts_of(expression: Any) -> Iterator[Any]:
    """An expression and what it is made of, except for queries."""
    yield expression
    for part in (
        expression.get_source_expressions() if hasattr(expression, "get_source_expressions") else ()
    ):
        yield from parts_of(part)


def check_part_of_all(query: Any, outer: Any, where: str, chosen: str | None) -> None:
    """Refuses a subquery on an unsharded host that has the rows of all keys, where on shards it
    would be refused, or have those of one shard. Raises `NoShard` and `Unsharded`. With
    `unrouted = "log"` the former is counted instead."""
    if not is_sharded(query.model) or query.is_empty() or getattr(query, "pgshard_joined", False):
        return
    parts = query.combined_queries or (query,)
    if reach.names_rows(query) or _is_compared(query, parts, outer):
        return
    if all(_is_tied(part.where, part) for part in parts):
        return
    if chosen == where or getattr(query, "pgshard_alias", None) is not None:
        reach.refuse(query, where)
    unrouted(query.model, "part of a query")
    count()


def check_part(query: Any, outer: Any, where: str, chosen: str | None) -> None:
    """Refuses a subquery on the shard `where` that would give more if it saw the rows of all
    shards, unless it names that shard, or `shard_of` does. Raises `NoShard`. `outer`: the query
    that it is a part of."""
    if not is_sharded(query.model) or query.is_empty():
        return
    if chosen == where and not finding.is_noted(query):
        return
    if getattr(query, "pgshard_alias", None) is not None or getattr(query, "pgshard_joined", False):
        return
    if (
        getattr(query, "pgshard_several", False)
        or getattr(query, "pgshard_alternative", where) != where
    ):
        return  # The compiler refuses it, and reports which shards it names.
    parts = query.combined_queries or (query,)
    if _is_compared(query, parts, outer) or all(_is_tied(part.where, part) for part in parts):
        return
    if chosen == where:
        finding.check_part(query, where)
        return
    name = next(iter({**key_names(query.model), **placed_names(query.model)}))
    raise NoShard(
        f"{query.model.__name__} is sharded and this part of a query names no shard, so it would"
        f" have the rows of {where} only: name a key in it, tie it to the row of the query, as by"
        f' .filter({name}=OuterRef("{name}")), or use shard_of(key)'
    )


def _is_compared(query: Any, parts: Any, outer: Any) -> bool:
    """Whether it gives its rows' keys or IDs, or what they refer to, and these are compared with
    the same of the query's row."""
    if any(
        one.is_sliced or one.distinct_fields or one.where.contains_over_clause
        for one in (query, *parts)
    ):
        return False  # Which rows those are depends on others.
    roots = (
        outer.where,
        *outer.annotations.values(),
        *outer.order_by,
        *(given[2] for given in getattr(outer, "values", ())),
    )
    for lookup in (one for root in roots for one in parts_of(root) if isinstance(one, (Exact, In))):
        given = lookup.rhs if isinstance(lookup.rhs, (list, tuple, set)) else [lookup.rhs]
        if any(getattr(one, "query", one) is query for one in given):
            field = lookup.lhs.target if isinstance(lookup.lhs, Col) else None
            return says_the_shard(field) and all(
                gives_its_own(isinstance(field, KEYS), part) for part in parts
            )
    return False


def gives_its_own(keys: bool, query: Any) -> bool:
    """Whether a query gives the keys of its rows, or of rows that they belong to; without `keys`,
    the IDs."""
    if query.default_cols:
        field = query.model._meta.pk
    else:
        selected = (*query.select, *query.annotation_select.values())
        field = selected[0].target if len(selected) == 1 and isinstance(selected[0], Col) else None
    return says_the_shard(field) and isinstance(field, KEYS) == keys


def _is_tied(node: Any, query: Any) -> bool:
    """Whether a condition holds only for rows of the same shard as a row of a query that this one
    is a part of."""
    if isinstance(node, WhereNode):
        held = [_is_tied(child, query) for child in node.children]
        if node.negated or node.connector not in (AND, OR):
            return False
        return any(held) if node.connector == AND else bool(held) and all(held)
    ends = (node.lhs, node.rhs) if isinstance(node, Exact) else ()
    if not ends or not all(isinstance(end, Col) and says_the_shard(end.target) for end in ends):
        return False
    own, other = (end.alias in query.alias_map for end in ends)
    return own != other and len({isinstance(end.target, KEYS) for end in ends}) == 1
