"""The order of rows that come from several shards: the one that PostgreSQL would give them if they
were on one.

Numbers and times are compared here. How texts compare is known to the server only, by their
column's type and collation, so one shard sorts them.
"""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from decimal import Decimal
from typing import Any, NamedTuple, NoReturn

from django.core.exceptions import FieldDoesNotExist
from django.db import connections
from django.db.models import Q, Window
from django.db.models.constants import LOOKUP_SEP
from django.db.models.expressions import Col, Ref
from django.db.models.lookups import IsNull
from django.db.models.query import FlatValuesListIterable, ModelIterable, ValuesIterable
from django.db.models.sql.constants import LOUTER
from django.db.models.sql.where import AND, WhereNode

from ..template import escape, quote_name
from .parts import parts_of
from .sharded import KEYS, has_shard_id, says_the_shard

COMPARED = (int, float, Decimal, datetime.date, datetime.time, datetime.timedelta, uuid.UUID)
"""The types with values that compare in Python as in PostgreSQL."""


class By(NamedTuple):
    """One of the things that rows are ordered by."""

    name: str
    field: Any
    """The field; None for an annotation."""
    descending: bool
    get: Callable[[Any], Any]
    """Gets the value from a row."""


def check_rows(queryset: Any) -> None:
    """Refuses a query that would return other rows if all shards were one. Raises `ValueError`."""
    _check(queryset.query, False)


def check_any(queryset: Any) -> None:
    """Refuses an `exists()` query if the answer would be another. How many groups or duplicates
    there are does not matter. Raises `ValueError`."""
    if _leaves_out(queryset.query):
        check_rows(queryset)


def _leaves_out(query: Any) -> bool:
    """Whether it depends on other rows which are left out."""
    where = query.where
    return bool(
        where.contains_aggregate
        or where.contains_over_clause
        or query.combinator in ("intersection", "difference")
        or query.low_mark
        or any(map(_leaves_out, query.combined_queries))
    )


def _check(query: Any, distinct: bool) -> None:
    """`distinct`: whether duplicates are left out where this is a part of another query."""
    distinct = bool(
        distinct or query.distinct or (query.combinator is not None and not query.combinator_all)
    )
    if not query.combinator:
        _check_rows(query, distinct)
    for part in _parts_of_union(query):
        if part.is_sliced:
            raise ValueError("each shard has a slice of its own: slice the whole, or take .run()")
        _check(part, distinct)
    if query.combinator and distinct and _columns_of_shard(query) == set():
        raise ValueError(
            "each shard compares its own rows only: select what says the shard in the same column"
            " of each part, or take .run()"
        )


def _parts_of_union(query: Any) -> Iterator[Any]:
    """The parts of a `union` and the like, with what Django selects of each."""
    for part in query.combined_queries:
        if query.selected is not None and part.selected is None:
            # Django does this before it compiles the part.
            part = part.clone()
            part.set_values(query.selected)
        yield part


def _columns_of_shard(query: Any) -> set[tuple[int, bool]] | None:
    """The columns that identify the shard in each row, counted from 0, each with whether it is a
    key; None for whole rows, which have their ID where others of their kind have it."""
    if query.combinator:
        known = [
            columns
            for columns in map(_columns_of_shard, _parts_of_union(query))
            if columns is not None
        ]
        return set.intersection(*known) if known else None
    if query.selected is None:
        return None
    found = set()
    for at, one in enumerate(query.selected.values()):
        if isinstance(one, (int, str)):
            one = query.select[one] if isinstance(one, int) else query.annotations[one]
        if _say_the_shard(query, [one]):
            found.add((at, isinstance((one.source if isinstance(one, Ref) else one).target, KEYS)))
    return found


def _check_rows(query: Any, distinct: bool) -> None:
    columns = query.annotation_select.values()
    selected = (*query.select, *columns)
    names = " or ".join(
        field.name for field in query.model._meta.concrete_fields if says_it_in_each_row(field)
    )
    # Django also groups by what is selected.
    if isinstance(query.group_by, tuple) and not _say_the_shard(
        query, (*query.group_by, *selected)
    ):
        raise ValueError(
            f"each shard has groups of its own: group by {names} too, or take .run() and add"
            " them up"
        )
    if query.distinct_fields:
        meta = query.model._meta
        own = {
            name: field for field in meta.concrete_fields for name in (field.name, field.attname)
        } | {"pk": meta.pk}
        alike = not any(says_it_in_each_row(own.get(name)) for name in query.distinct_fields)
    else:
        alike = distinct and not query.default_cols and not _say_the_shard(query, selected)
    if alike:
        raise ValueError(
            f"each shard compares its own rows only: select {names} too, or take .run()"
        )
    for window in (
        part
        for one in (*columns, query.where)
        for part in parts_of(one)
        if isinstance(part, Window)
    ):
        if window.partition_by is None or not _say_the_shard(
            query, window.partition_by.get_source_expressions()
        ):
            raise ValueError(
                f"a window has the rows of one shard only: partition it by {names}, or take .run()"
            )


def _say_the_shard(query: Any, expressions: Iterable[Any]) -> bool:
    """Whether one of these is a column that identifies the shard in each row: an expression over
    such a column does not count."""
    found = (one.source if isinstance(one, Ref) else one for one in expressions)
    return any(
        isinstance(one, Col)
        and says_the_shard(one.target)
        and getattr(query.alias_map.get(one.alias), "join_type", None) != LOUTER
        and (not one.target.null or _is_asked_for(one, query.where))
        for one in found
    )


def _is_asked_for(column: Any, node: Any, negated: bool = False) -> bool:
    """Whether a condition holds only where this column is not null: `album__isnull=False`."""
    if isinstance(node, WhereNode):
        if (node.negated and len(node.children) > 1) or node.connector != AND:
            return False
        return any(_is_asked_for(column, child, negated != node.negated) for child in node.children)
    if not isinstance(node, IsNull) or not isinstance(node.lhs, Col) or bool(node.rhs) != negated:
        return False
    return node.lhs.alias == column.alias and node.lhs.target == column.target


def says_it_in_each_row(field: Any) -> bool:
    """Whether a field identifies the shard, and in each row: those without a reference are on all
    shards."""
    return says_the_shard(field) and not field.null


def by_pk(queryset: Any) -> Callable[[Any], Any]:
    """Gets the ID from a row of a query. Raises `ValueError` if it has none, or one that identifies
    no shard."""
    pk = queryset.model._meta.pk
    if not has_shard_id(queryset.model):
        raise ValueError(
            f"{queryset.model.__name__}: its primary key is no ID of a shard, take .for_key(key)"
        )
    get = _getter(queryset, "pk", {"pk", pk.name, pk.attname})
    if get is None:
        raise ValueError(f"by_ids needs the IDs: add {pk.name} to values()")
    return get


def row_pk(queryset: Any) -> Callable[[Any], Any]:
    """Gets the primary key from a row of a query. Raises `ValueError` if it was not selected."""
    pk = queryset.model._meta.pk
    get = _getter(queryset, "pk", {"pk", pk.name, pk.attname})
    if get is None:
        raise ValueError(f"the rows are read after their primary keys: add {pk.name} to values()")
    return get


def order(queryset: Any) -> list[By]:
    """What a query is ordered by. Raises `ValueError` if its rows cannot be merged by that."""
    query, meta = queryset.query, queryset.model._meta
    if query.extra_order_by:
        _refuse(query.extra_order_by[0])
    # Where rows are grouped Django leaves Meta.ordering out.
    by_default = meta.ordering if query.default_ordering and query.group_by is None else ()
    return [_by(queryset, name) for name in query.order_by or by_default]


def merge(
    rows: list[Any], by: list[By], ranks: Callable[[Any, list[str]], Mapping[str, int]]
) -> list[Any]:
    """The rows in their order. `ranks`: has the texts of a field sorted. Raises `ValueError`."""
    for one in reversed(by):
        values = [value for value in map(one.get, rows) if value is not None]
        order: Mapping[Any, Any] | None = None
        if one.field is not None and values and all(isinstance(value, str) for value in values):
            order = ranks(one.field, sorted(set(values)))
        elif not all(isinstance(value, COMPARED) for value in values):
            _refuse(one.name)

        def key(row: Any, one: By = one, order: Mapping[Any, Any] | None = order) -> Any:
            value = one.get(row)
            # PostgreSQL puts nulls last in ascending order, and before them what is not a number.
            if value is None or value != value:
                return (2 if value is None else 1,)
            return 0, value if order is None else order[value]

        rows = sorted(rows, key=key, reverse=one.descending)
    return rows


def quotient_on(where: str, total: Decimal, count: int) -> Decimal:
    """A quotient with as many digits as this server gives an average."""
    with connections[where].cursor() as cursor:
        cursor.execute("SELECT CAST(%s AS numeric) / CAST(%s AS numeric)", [total, count])
        found: Decimal = cursor.fetchone()[0]
    return found


def later(queryset: Any, by: list[By], row: Any, pk: Any) -> Any:
    """The rows of a query that come after this one, in its order and then in that of the primary
    key."""
    rest = Q(pk__gt=pk)
    for one in reversed(by):
        name, value = one.name, one.get(row)
        # Nulls are last in ascending order, and first in descending order.
        if value is None:
            more = Q(**{f"{name}__isnull": False}) if one.descending else None
            same = Q(**{f"{name}__isnull": True})
        else:
            same = Q(**{name: value})
            if one.descending:
                more = Q(**{f"{name}__lt": value})
            else:
                more = Q(**{f"{name}__gt": value}) | Q(**{f"{name}__isnull": True})
        rest = same & rest if more is None else more | (same & rest)
    return queryset.filter(rest)


def ranks_on(where: str, field: Any, texts: list[str]) -> dict[str, int]:
    """The rank of each text in the order of a field's column, as this shard sorts it."""
    shard = connections[where]
    # The cursor writes the schema.
    table = escape(quote_name(field.model._meta.db_table))
    column, table = escape(quote_name(field.column)), f"{{shard}}.{table}"
    # The arm without rows gives the texts the column's collation.
    given = (
        f"SELECT CAST(t.v AS {field.cast_db_type(shard)}), t.n FROM unnest(%s::text[]) WITH"
        " ORDINALITY AS t (v, n)"
    )
    both = f"SELECT {column} AS v, 0 AS n FROM {table} WHERE false UNION ALL {given}"
    sql = f"SELECT n, dense_rank() OVER (ORDER BY v) FROM ({both}) AS both_arms"
    with shard.cursor() as cursor:
        cursor.execute(sql, [texts])
        return {texts[number - 1]: rank for number, rank in cursor.fetchall()}


def _refuse(name: Any) -> NoReturn:
    raise ValueError(
        f"order_by({name!r}) cannot be merged across shards: order by fields of the model itself"
        " that are numbers, times or texts, and select them"
    )


def _by(queryset: Any, given: Any) -> By:
    if not isinstance(given, str) or LOOKUP_SEP in given or given == "?":
        _refuse(given)
    query, name, field = queryset.query, given.lstrip("-"), None
    if name not in query.annotations:
        try:
            field = (
                queryset.model._meta.pk if name == "pk" else queryset.model._meta.get_field(name)
            )
        except FieldDoesNotExist:
            _refuse(given)
        if not field.concrete or (
            field.is_relation and name != field.attname and field.remote_field.model._meta.ordering
        ):
            # Django would order by what the related model is ordered by.
            _refuse(given)
    kind = field or query.annotations[name].output_field
    if hasattr(kind, "from_db_value"):
        # The server sorts what it has, and Python has something else: null and true of JSON are no
        # numbers there.
        _refuse(given)
    descending = given.startswith("-") == query.standard_ordering
    get = _getter(queryset, given, {name, *((field.name, field.attname) if field else ())})
    if get is None:
        _refuse(given)
    return By(name, field, descending, get)


def _getter(queryset: Any, given: str, names: set[str]) -> Callable[[Any], Any] | None:
    """Gets one of these columns from a row; None if it was not selected."""
    query, kind = queryset.query, queryset._iterable_class
    if issubclass(kind, ModelIterable):
        name = given.lstrip("-")
        if name in query.annotations and name not in query.annotation_select:
            return None
        if name not in query.annotations and name != "pk":
            name = queryset.model._meta.get_field(name).attname
        return lambda row: getattr(row, name)
    selected = queryset._fields or (*query.extra_select, *query.values_select)
    # What is annotated after `values` is there too.
    selected = (*selected, *(name for name in query.annotation_select if name not in selected))
    at = next((at for at, one in enumerate(selected) if one in names), None)
    if at is None:
        return None
    if issubclass(kind, ValuesIterable):
        return lambda row: row[selected[at]]
    return (lambda row: row) if issubclass(kind, FlatValuesListIterable) else (lambda row: row[at])
