"""Aggregates over all shards: what each shard computes of its rows, and how that is put together.

Invariant: the result is that of one database with all rows, or the aggregate is refused.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterable, Mapping
from decimal import Decimal, localcontext
from typing import Any, NamedTuple, Protocol

from django.core.exceptions import FieldDoesNotExist
from django.db.models import Avg, Count, F, Max, Min, Sum

from .merge import COMPARED, says_it_in_each_row

_DIGITS = 1000
"""How many digits a sum of numerics may have: PostgreSQL's own have no fewer."""


class Server(Protocol):
    """What only a server can do."""

    def ranks(self, field: Any, texts: list[str]) -> Mapping[str, int]:
        """The rank of each text in the order of the field's column."""

    def divide(self, total: Decimal, count: int) -> Decimal:
        """A quotient with as many digits as PostgreSQL's average has."""


class Part(NamedTuple):
    """One of the aggregates that were wanted."""

    name: str
    kind: type
    asked: dict[str, Any]
    """What each shard is queried for, by the names of the results."""
    default: Any
    field: Any
    """The field that the aggregate is of; None for an expression."""


def parts(queryset: Any, given: Iterable[Any], named: Mapping[str, Any]) -> list[Part]:
    """What to query each shard for. Raises `ValueError` for an aggregate that cannot be computed
    from those of the shards."""
    wanted = {one.default_alias: one for one in given} | dict(named)
    return [_part(queryset, name, one, at) for at, (name, one) in enumerate(wanted.items())]


def _part(queryset: Any, name: str, wanted: Any, at: int) -> Part:
    kind = type(wanted)
    if kind not in (Count, Sum, Min, Max, Avg):
        raise ValueError(
            f"{name}: across shards there are Count, Sum, Min, Max and Avg, and no expressions of"
            " them: take .run() and put together what each shard gives"
        )
    source = wanted.get_source_expressions()[0]
    field = _field(queryset, source)
    alike = kind is not Count or field is None or not says_it_in_each_row(field)
    if getattr(wanted, "distinct", False) and kind not in (Min, Max) and alike:
        raise ValueError(
            f"{name}: two shards may have the same value, so only Count of the key or of the ID"
            " can be distinct across shards"
        )
    one = wanted.copy()
    default, one.default = wanted.default, None
    asked = {f"pgshard_{at}": one}
    if kind is Avg:
        # From Django 6.0 on an aggregate wraps its filter.
        condition = getattr(wanted.filter, "condition", wanted.filter)
        asked = {
            f"pgshard_{at}": Sum(source, filter=condition),
            f"pgshard_{at}_count": Count(source, filter=condition),
        }
    return Part(name, kind, asked, default, field)


def _field(queryset: Any, source: Any) -> Any:
    """The model's field that an expression names; None for any other."""
    if not isinstance(source, F) or source.name in queryset.query.annotations:
        return None
    meta = queryset.model._meta
    try:
        return meta.pk if source.name == "pk" else meta.get_field(source.name)
    except FieldDoesNotExist:
        return None


def together(part: Part, rows: list[Mapping[str, Any]], server: Server) -> Any:
    """The aggregate of all shards, from what each of them gave. Raises `ValueError`."""
    values = [[row[name] for row in rows if row[name] is not None] for name in part.asked]
    found = values[0]
    if part.kind is Count:
        return sum(found)
    if not found:
        return part.default
    if part.kind in (Min, Max):
        return _extreme(part, found, server)
    total = _sum(found)
    return _quotient(total, sum(values[1]), server) if part.kind is Avg else total


def _extreme(part: Part, values: list[Any], server: Server) -> Any:
    find = min if part.kind is Min else max
    if all(isinstance(value, str) for value in values) and part.field is not None:
        order = server.ranks(part.field, sorted(set(values)))
        return find(values, key=lambda value: order[value])
    if not all(isinstance(value, COMPARED) for value in values):
        raise ValueError(
            f"{part.name}: only numbers, times, UUIDs and texts of a field are compared across"
            " shards"
        )
    # PostgreSQL takes what is not a number for the largest one.
    return find(values, key=lambda value: (value != value, 0 if value != value else value))


def _sum(values: list[Any]) -> Any:
    if isinstance(values[0], float):
        return math.fsum(values) if all(map(math.isfinite, values)) else sum(values)
    if isinstance(values[0], datetime.timedelta):
        return sum(values, datetime.timedelta())
    if isinstance(values[0], Decimal):
        with localcontext() as context:
            context.prec = _DIGITS
            return sum(values, Decimal(0))
    return sum(values)


def _quotient(total: Any, count: int, server: Server) -> Any:
    if isinstance(total, int):
        # PostgreSQL's average of integers is a numeric, and Django's a float.
        return float(server.divide(Decimal(total), count))
    return server.divide(total, count) if isinstance(total, Decimal) else total / count
