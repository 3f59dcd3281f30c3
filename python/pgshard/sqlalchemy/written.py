"""What SQLAlchemy's statements write into the columns that identify a shard: keys, IDs, and
references to rows that have one.

Invariant: each value that a statement puts into such a column is found, or the statement is
refused. Statements in plain text are not examined.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from sqlalchemy import Column
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.elements import (
    BindParameter,
    Case,
    Cast,
    ClauseElement,
    ColumnClause,
    Grouping,
    Label,
    Null,
    TextClause,
    TypeCoerce,
)
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.sql.selectable import CompoundSelect, ScalarSelect, Select, SelectStatementGrouping

KEY, ID = "pgshard key", "pgshard id"
"""Marks in a column's `info`, and what `mark` returns."""
REFERS = "pgshard refers"
"""In a column's `info`: the column that it refers to by a relationship, without a constraint."""

_ONE_OF_ITS_ARGUMENTS = {"coalesce", "greatest", "least", "max", "min"}


class Unclear(Exception):
    """A column gets a value that does not reveal its shard."""


class Written(NamedTuple):
    """A value that a statement writes: a parameter's, or a constant."""

    column: Column[Any]
    mark: str
    name: str | None
    constant: Any = None

    def of(self, parameters: Mapping[str, Any]) -> Any:
        """The value, given the statement's parameters."""
        return self.constant if self.name is None else parameters.get(self.name)


def mark(column: Any, seen: tuple[Any, ...] = ()) -> str | None:
    """What a column's values are: `KEY`, `ID`, or None. A reference is what the column that it
    leads to is."""
    if not isinstance(column, Column):
        return None
    for one in (KEY, ID):
        if column.info.get(one):
            return one
    others = [key.column for key in column.foreign_keys]
    if REFERS in column.info:
        others.append(column.info[REFERS])
    for other in others:
        # Two tables may refer to each other.
        found = None if any(other is one for one in seen) else mark(other, (*seen, column))
        if found is not None:
            return found
    return None


def is_expression(value: object) -> bool:
    """Whether the server makes this value."""
    return isinstance(value, ClauseElement) or hasattr(value, "__clause_element__")


_known: weakref.WeakKeyDictionary[SQLCompiler, tuple[Written, ...]] = weakref.WeakKeyDictionary()


def written(compiled: object) -> tuple[Written, ...]:
    """What a compiled statement writes into columns that identify a shard. Raises `Unclear`."""
    if not isinstance(compiled, SQLCompiler) or not (
        compiled.isinsert or compiled.isupdate or compiled.ctes
    ):
        return ()
    found = _known.get(compiled)
    if found is None:
        found = _known[compiled] = tuple(_find(compiled))
    return found


def _find(compiled: SQLCompiler) -> Iterator[Written]:
    names = {bind.key: name for bind, name in compiled.bind_names.items()}
    if compiled.isinsert or compiled.isupdate:
        state: Any = compiled.compile_state
        yield from _assigned(state, names)
        yield from _filled_in(state, compiled)
    for cte in compiled.ctes or ():
        statement: Any = cte.element
        if statement.is_dml and not statement.is_delete:
            yield from _assigned(statement._compile_state_factory(statement, compiled), names)


def _marked(state: Any) -> dict[str, tuple[Column[Any], str]]:
    return {
        column.key: (column, one)
        for column in state.dml_table.c
        if (one := mark(column)) is not None
    }


def _rows(state: Any) -> list[Any]:
    return getattr(state, "_multi_parameters", None) or [state._dict_parameters or {}]


def _filled_in(state: Any, compiled: SQLCompiler) -> Iterator[Written]:
    """Values that come as the statement is executed, and defaults that Python makes. Their names
    are their columns'."""
    for key, (column, one) in _marked(state).items():
        for name in (key, *(f"{key}_m{number}" for number in range(len(_rows(state))))):
            if name in compiled.binds and compiled.binds[name]._is_crud:
                yield Written(column, one, name)


def _assigned(state: Any, names: Mapping[str, str]) -> Iterator[Written]:
    """Values that are part of the statement."""
    marked, statement = _marked(state), state.statement
    pairs = [pair for row in _rows(state) for pair in row.items()]
    pairs += getattr(
        getattr(statement, "_post_values_clause", None), "update_values_to_set", {}
    ).items()
    select = getattr(statement, "select", None)
    if select is not None:
        pairs += [
            (key, value)
            for one in _selects(select)
            for key, value in zip(statement._select_names, _selected(one))
        ]
    for target, value in pairs:
        key = target if isinstance(target, str) else getattr(target, "key", None)
        if key in marked:
            yield from _parts(*marked[key], value, names)


def _selects(select: Any) -> Iterator[Any]:
    """The single selects of one, or of a UNION."""
    if isinstance(select, SelectStatementGrouping):
        yield from _selects(select.element)
    elif isinstance(select, CompoundSelect):
        for one in select.selects:
            yield from _selects(one)
    else:
        yield select


def _selected(select: Any) -> list[Any]:
    # Not `selected_columns`, which leaves out what is selected twice.
    return list(select._all_selected_columns)


def _parts(
    column: Column[Any], one: str, value: Any, names: Mapping[str, str]
) -> Iterator[Written]:
    """What may become the column's value."""
    if hasattr(value, "__clause_element__"):
        value = value.__clause_element__()
    inner = _inner(value)
    if inner is not None:
        for part in inner:
            yield from _parts(column, one, part, names)
    elif not isinstance(value, ClauseElement):
        yield Written(column, one, None, value)
    elif isinstance(value, BindParameter) and value.key in names:
        yield Written(column, one, names[value.key])
    elif not isinstance(value, Null) and not _is_from_here(value, one):
        raise Unclear(f"{column.table.name}.{column.name}")


def _inner(value: Any) -> list[Any] | None:
    """The expressions that this one takes its value from; None if it is none of those that hand a
    value on."""
    if isinstance(value, (Grouping, Label)):
        return [value.element]
    if isinstance(value, (Cast, TypeCoerce)):
        return [value.clause]
    if isinstance(value, Case):
        return [*(then for _, then in value.whens), *([] if value.else_ is None else [value.else_])]
    if isinstance(value, FunctionElement):
        name = getattr(value, "name", "").lower()
        if name in _ONE_OF_ITS_ARGUMENTS:
            return list(value.clauses)
        if name == "nullif":
            return list(value.clauses)[:1]
    if isinstance(value, ScalarSelect):
        selects = list(_selects(value.element))
        if all(isinstance(select, Select) for select in selects):
            return [_selected(select)[0] for select in selects]
    return None


def _is_from_here(value: Any, one: str) -> bool:
    """Whether it is a value of the same kind from a row of this shard, or a new ID."""
    if isinstance(value, ColumnClause) or getattr(value, "is_selectable", False):
        return any(mark(base) == one for base in value.base_columns)
    if isinstance(value, TextClause):
        return one == ID and value.text.strip().endswith("next_id()")
    return (
        one == ID and isinstance(value, FunctionElement) and getattr(value, "name", "") == "next_id"
    )
