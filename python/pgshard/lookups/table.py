"""What the table of an unsharded host must be for a look-up: the columns, and a unique index that
makes their values unique. The rules are those of src/lookups/table.rs.

Invariant: an index is taken only if two rows with one value cannot both be in it. It may be
stricter than the look-up: over fewer columns, or folding more than A to Z.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from ..template import escape, quote_name
from ..values import Definition, Fold

_INTEGERS = ", ".join(f"'pg_catalog.{one}'::regtype" for one in ("int2", "int4", "int8"))
_TEXTS = "'pg_catalog.text'::regtype, 'pg_catalog.varchar'::regtype"

TABLE = (
    "SELECT c.relkind = 'r' AND NOT c.relispartition AND NOT c.relhassubclass"
    " AND NOT c.relrowsecurity,"
    " EXISTS (SELECT FROM pg_catalog.pg_attribute a WHERE a.attrelid = c.oid"
    " AND a.attname = %(key)s::text AND a.attnotnull AND NOT a.attisdropped"
    f" AND a.atttypid IN ({_INTEGERS}, {_TEXTS}, 'pg_catalog.uuid'::regtype)),"
    " ARRAY(SELECT CASE WHEN NOT coalesce(l.collisdeterministic, true) THEN 'other'"
    f" WHEN a.atttypid IN ({_INTEGERS}) THEN 'integer' WHEN a.atttypid IN ({_TEXTS}) THEN 'text'"
    " WHEN a.atttypid = 'pg_catalog.uuid'::regtype THEN 'uuid'"
    " WHEN a.atttypid = 'pg_catalog.date'::regtype THEN 'date'"
    " WHEN t.typname = 'citext' AND t.typtype = 'b' THEN 'citext' ELSE 'other' END"
    " || ' ' || coalesce(pg_catalog.quote_ident(s.nspname), '')"
    " FROM pg_catalog.unnest(%(columns)s::text[]) WITH ORDINALITY AS x(name, place)"
    " LEFT JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attname = x.name"
    " AND a.attnum > 0 AND NOT a.attisdropped"
    " LEFT JOIN pg_catalog.pg_type t ON t.oid = a.atttypid"
    " LEFT JOIN pg_catalog.pg_namespace s ON s.oid = t.typnamespace"
    " LEFT JOIN pg_catalog.pg_collation l ON l.oid = a.attcollation ORDER BY x.place),"
    " ARRAY(SELECT coalesce(pg_catalog.quote_ident(s.nspname) || '.' ||"
    " pg_catalog.quote_ident(l.collname), '')"
    " FROM pg_catalog.unnest(%(columns)s::text[]) WITH ORDINALITY AS x(name, place)"
    " LEFT JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attname = x.name"
    " LEFT JOIN pg_catalog.pg_collation l ON l.oid = a.attcollation"
    " LEFT JOIN pg_catalog.pg_namespace s ON s.oid = l.collnamespace ORDER BY x.place)"
    " FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace"
    " WHERE n.nspname = %(schema)s::text AND c.relname = %(table)s::text"
)
"""Whether a table can have a look-up, whether it has the key column, and of each column the kind
with the schema of its type, and the collation."""

INDEXES = (
    "SELECT pg_catalog.array_agg(coalesce(a.attname::text, '') ORDER BY p.place),"
    " pg_catalog.array_agg(pg_catalog.pg_get_indexdef(i.indexrelid, p.place::int, false)"
    " ORDER BY p.place),"
    " pg_catalog.array_agg(coalesce(pg_catalog.quote_ident(s.nspname) || '.' ||"
    " pg_catalog.quote_ident(l.collname), '') ORDER BY p.place)"
    " FROM pg_catalog.pg_index i JOIN pg_catalog.pg_class c ON c.oid = i.indrelid"
    " JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace"
    " JOIN LATERAL pg_catalog.unnest(i.indkey) WITH ORDINALITY AS p(attnum, place)"
    " ON p.place <= i.indnkeyatts"
    " LEFT JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = p.attnum"
    " AND p.attnum > 0"
    " LEFT JOIN pg_catalog.pg_collation l ON l.oid = i.indcollation[p.place - 1]"
    " LEFT JOIN pg_catalog.pg_namespace s ON s.oid = l.collnamespace"
    " WHERE n.nspname = %(schema)s::text AND c.relname = %(table)s::text"
    " AND i.indisunique AND i.indisvalid AND i.indpred IS NULL"
    " AND NOT EXISTS (SELECT FROM pg_catalog.pg_depend d"
    " WHERE d.classid = 'pg_catalog.pg_class'::regclass AND d.objid = i.indexrelid"
    " AND d.refclassid = 'pg_catalog.pg_proc'::regclass)"
    " GROUP BY i.indexrelid ORDER BY i.indexrelid"
)
"""The unique indexes of a table that hold for every row: of each part the column or an empty text,
the expression, and the collation that compares it. A deferrable one counts: two committed rows
never have one value. One that calls a function which PostgreSQL does not bring does not."""

TRIAL = "ABCDEFGHIJKLMNOPQRSTUVWXYZ I\u0300 I\u0301 I\u0303 J\u0300"
"""Texts that some languages fold otherwise than A to Z: Turkish an I, Lithuanian an I or J with an
accent."""

_TYPES = {"integer": "bigint", "citext": "text"}
_ORDINARY = (
    "it must be an ordinary table: not partitioned, no parent of others, no row-level security"
)
_COLUMNS = {
    Fold.NONE: "each column must be an integer, text, varchar, uuid or date, without a collation"
    " that is not deterministic",
    Fold.ASCII: 'with fold = "ascii" each column must be text, varchar or citext, without a'
    " collation that is not deterministic",
}
_KEY = "its key column must be an integer, text, varchar or uuid, and NOT NULL"
_COLLATE = re.compile(r'(.*) COLLATE ((?:[\w$.]|"[^"]*")+)', re.DOTALL)


class _Column(NamedTuple):
    name: str
    kind: str
    type_schema: str
    collation: str


class UniqueIndex(NamedTuple):
    """An index that makes the values unique, if the collations fold ASCII."""

    collations: list[str]
    """The collations in which it folds."""
    conditions: list[str]
    """What rows with the values have in the index, so that a statement uses it."""


def folds_ascii(collations: Sequence[str]) -> str:
    """Whether each of these collations folds what A to Z folds, in `TRIAL`."""
    tried = (
        f'pg_catalog.lower(%(trial)s::text COLLATE {one}) COLLATE "C" = pg_catalog.lower('
        f'pg_catalog.lower(%(trial)s::text COLLATE "C") COLLATE {one}) COLLATE "C"'
        for one in map(_in_template, collations)
    )
    return f"SELECT {' AND '.join(tried)}"


class Columns:
    """The columns of a look-up in a table."""

    def __init__(self, definition: Definition, row: Sequence[Any] | None) -> None:
        """`row`: of `TABLE`."""
        self._definition = definition
        self.problem = _problem(definition, row)
        """Why the table cannot have the look-up; None if it can."""
        kinds = [] if row is None else [one.split(" ", 1) for one in row[2]]
        collations = [] if row is None else row[3]
        self._columns = [
            _Column(name, kind, type_schema, collation)
            for name, (kind, type_schema), collation in zip(definition.columns, kinds, collations)
        ]

    @property
    def kinds(self) -> list[str]:
        """Their types, as shards call them."""
        return ["text" if one.kind == "citext" else one.kind for one in self._columns]

    def unique(self, row: Sequence[Any]) -> UniqueIndex | None:
        """The index of a row of `INDEXES`, if two rows with one value cannot both be in it."""
        index = UniqueIndex([], [])
        for name, expression, compares in zip(*row):
            if self._definition.fold is Fold.NONE:
                if name not in self._definition.columns:
                    return None
            elif not self._add_folded(index, name, expression, compares):
                return None
        return index

    def _add_folded(self, index: UniqueIndex, name: str, expression: str, compares: str) -> bool:
        """Adds a part of an index that folds a column: an expression, or a column of `citext`."""
        for at, column in enumerate(self._columns):
            wanted, compared = f"w.pgshard_{at}", _in_template(compares)
            if name and (column.name, column.kind) == (name, "citext"):
                # Its comparison folds in the collation of the database.
                index.collations.append('pg_catalog."default"')
                schema = _in_template(column.type_schema)
                index.conditions.append(
                    f"t.{_in_template(quote_name(name))} COLLATE {compared} OPERATOR({schema}.=)"
                    f" {wanted}::{schema}.citext"
                )
                return True
            folded = None if name else lower_of(expression, column.name)
            if folded is not None:
                collation = folded or column.collation
                index.collations.append(collation)
                index.conditions.append(
                    f"({_in_template(expression)}) COLLATE {compared} = pg_catalog.lower({wanted}"
                    f" COLLATE {_in_template(collation)}) COLLATE {compared}"
                )
                return True
        return False

    def find(self, index: UniqueIndex) -> str:
        """Reads the keys of rows with values, by an index. The parameters `value_0` and so on are
        arrays; a row has the place of its value, from 1 on, and its key."""
        arrays, names, conditions = [], [], []
        for at, column in enumerate(self._columns):
            kind = _TYPES.get(column.kind, column.kind)
            arrays.append(f"pg_catalog.unnest(%(value_{at})s::{kind}[])")
            names.append(f"pgshard_{at}")
            name = f"t.{_in_template(quote_name(column.name))}"
            if self._definition.fold is Fold.ASCII:
                name = f'pg_catalog.lower({name} COLLATE "C")'
            conditions.append(f"{name} = w.pgshard_{at}")
        table = _in_template(quote_name(self._definition.table))
        key = _in_template(quote_name(self._definition.key))
        return (
            f"SELECT w.pgshard_place, t.{key}::text FROM ROWS FROM ({', '.join(arrays)})"
            f" WITH ORDINALITY AS w({', '.join(names)}, pgshard_place) JOIN {{shard}}.{table} t"
            f" ON {' AND '.join([*conditions, *index.conditions])}"
        )

    def remedy(self, table: str) -> str:
        """The statement that creates an index which makes the values unique."""
        parts = [quote_name(one.name) for one in self._columns]
        if self._definition.fold is Fold.ASCII:
            parts = [f'pg_catalog.lower({one} COLLATE "C")' for one in parts]
        return f"CREATE UNIQUE INDEX CONCURRENTLY ON {table} ({', '.join(parts)})"


def _problem(definition: Definition, row: Sequence[Any] | None) -> str | None:
    if row is None:
        return "the schema has no such table"
    is_ordinary, has_key, kinds, _ = row
    folds = definition.fold is Fold.ASCII
    allowed = {"text", "citext"} if folds else {"integer", "text", "uuid", "date"}
    if not is_ordinary:
        return _ORDINARY
    if not {one.split(" ", 1)[0] for one in kinds} <= allowed:
        return _COLUMNS[definition.fold]
    return None if has_key else _KEY


def lower_of(expression: str, column: str) -> str | None:
    """Whether an expression of an index, as PostgreSQL writes it, is `lower` of this column: the
    collation that it names, an empty text if it names none, or None if it is something else."""
    called = expression.removeprefix("pg_catalog.")
    if not (called.startswith("lower(") and called.endswith(")")):
        return None
    inner, collation = called[len("lower(") : -1], ""
    while True:
        named = _COLLATE.fullmatch(inner)
        if named is not None and not collation:
            inner, collation = named.groups()
        elif inner.endswith("::text"):
            inner = inner.removesuffix("::text")
        elif inner.startswith("(") and inner.endswith(")"):
            inner = inner[1:-1]
        else:
            return collation if inner in (column, quote_name(column)) else None


def _in_template(sql: str) -> str:
    """SQL in a template with parameters."""
    return escape(sql).replace("%", "%%")
