"""Look-ups on an unsharded host, which has the rows of all shards in one table: the table itself is
the look-up. The rules are those of src/lookups/unsharded.rs.

Invariant: a table is read only if a unique index of its own makes the values unique. So a value has
one key at most, whoever writes: nothing is claimed, and PostgreSQL refuses the second row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ..directory import Directory
from ..errors import LayoutChanged, LookupUnusable, Taken
from ..hosts import Host
from ..map import Placement
from ..template import quote_name
from ..values import Definition, Value, form, kind
from . import table
from .answer import check_kinds
from .claimer import Claim, ClaimRequest, in_order
from .connections import InShard, LookupConnections

Execute = Callable[[str, "dict[str, Any]"], "list[Any]"]
"""Runs a template of a statement with parameters, and returns its rows."""


class _Found(NamedTuple):
    """A table that can be used."""

    place: Placement
    """Where and at which epoch it was found. A host that was sharded in between is read again."""
    kinds: list[str]
    find: str


class Tables:
    """The tables of look-ups on the unsharded host of a cluster. All threads may use it."""

    def __init__(self, connections: LookupConnections, directory: Directory) -> None:
        self._connections, self._directory = connections, directory
        self._found: dict[str, _Found] = {}

    @property
    def host(self) -> Host | None:
        """The unsharded host, as long as it has all shards. Without one, values are claimed."""
        return self._directory.unsharded

    def check_layout(self, shard: int) -> None:
        """Checks that the unsharded host still has the shard. Raises `LayoutChanged`."""
        self._whole(shard)

    def _whole(self, shard: int) -> tuple[Placement, str]:
        """The place of a shard on the unsharded host, and the schema there."""
        place = self._directory.place(shard)
        whole = self._directory.host(place.host).whole
        if whole is None:
            raise LayoutChanged(
                f"shard {shard} is on host {place.host} by now, and a look-up was to be used on an"
                " unsharded host: make the call again"
            )
        return place, whole

    def committed(self, within: float) -> Execute:
        """Reads the committed rows, on a connection for look-ups. Each wait takes `within` seconds
        at most. It raises `LayoutChanged`, and the same as `LookupConnections.run`."""

        def execute(sql: str, params: dict[str, Any]) -> list[Any]:
            def work(at: InShard) -> list[Any]:
                self.check_layout(0)
                return at.execute(sql, params).fetchall()

            return self._connections.run(0, work, within)

        return execute

    def keys(
        self,
        views: Sequence[Execute],
        definition: Definition,
        values: Sequence[Sequence[Value]],
    ) -> list[str | None]:
        """The keys of the rows with values, as texts, by one statement for each view of the table:
        that of the first one that has a row with the value.

        Raises `LookupUnusable`, `LayoutChanged`, and what the views raise.
        """
        if not values:
            return []
        found = self._table(definition, views[0])
        for one in values:
            check_kinds(definition, found.kinds, [kind(value) for value in one])
        keys: list[str | None] = [None] * len(values)
        # A text with a zero byte is in no column.
        rest = [at for at, one in enumerate(values) if not any("\0" in str(it) for it in one)]
        for view in views:
            if not rest:
                break
            params = {
                f"value_{column}": [_parameter(values[at][column], definition) for at in rest]
                for column in range(len(definition.columns))
            }
            for place, key in view(found.find, params):
                keys[rest[place - 1]] = key
            rest = [at for at in rest if keys[at] is None]
        return keys

    def claim_all(self, requests: Sequence[ClaimRequest], views: Sequence[Execute]) -> list[Claim]:
        """Checks that none of these values is another key's in these views of the table, by one
        statement for each look-up and view. Nothing is claimed: the table's index keeps the values
        unique.

        Raises `Taken`, `ClaimedTwice`, and the same as `keys`.
        """
        groups: dict[str, list[ClaimRequest]] = {}
        for one in in_order(requests):
            groups.setdefault(one.definition.name, []).append(one)
        for group in groups.values():
            keys = self.keys(views, group[0].definition, [one.values for one in group])
            for one, key in zip(group, keys):
                if key is not None and (one.inserts or key != one.key):
                    raise Taken(one.definition.name, key)
        return [Claim(one, None, 0) for one in requests]

    def _table(self, definition: Definition, execute: Execute) -> _Found:
        place, schema = self._whole(0)
        found = self._found.get(definition.name)
        if found is not None and found.place == place:
            return found
        params = {
            "schema": schema,
            "table": definition.table,
            "columns": list(definition.columns),
            "key": definition.key,
        }
        name = f"{quote_name(schema)}.{quote_name(definition.table)}"
        row = next(iter(execute(table.TABLE, params)), None)
        columns = table.Columns(definition, row)
        if columns.problem is not None:
            raise LookupUnusable(
                definition.name,
                f"it cannot be over the table {name} of host {place.host}: {columns.problem}",
            )
        index = _unique_index(columns, execute, params)
        if index is None:
            raise LookupUnusable(
                definition.name,
                f"no unique index of its table on host {place.host} makes the values unique (a"
                f" partial or invalid one does not): run `{columns.remedy(name)}` there",
            )
        found = _Found(place, columns.kinds, columns.find(index))
        self._found[definition.name] = found
        return found


def _unique_index(
    columns: table.Columns, execute: Execute, params: dict[str, Any]
) -> table.UniqueIndex | None:
    """An index that makes the values unique."""
    for row in execute(table.INDEXES, params):
        index = columns.unique(row)
        if index is None:
            continue
        if not index.collations:
            return index
        folds = execute(table.folds_ascii(index.collations), {"trial": table.TRIAL})
        if folds[0][0]:
            return index
    return None


def _parameter(value: Value, definition: Definition) -> Value:
    """A value as it is compared with its column."""
    return form(value, definition.fold) if isinstance(value, str) else value
