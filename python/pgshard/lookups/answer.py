"""What the shards answer about a look-up: whether they know it as the config does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg

from ..directory import Directory
from ..errors import LookupUnusable
from ..values import Definition


def check(
    directory: Directory, definition: Definition, shard: int, rows: Sequence[Sequence[Any]]
) -> None:
    """Checks what a shard knows of a look-up: rows that begin with its definition. Raises
    `LookupUnusable`."""
    if not rows:
        raise _missing(directory, definition, shard)
    recorded, config = rows[0][0], definition.text()
    if recorded != config:
        raise LookupUnusable(
            definition.name,
            f"{_place(directory, shard)} has it as {_quoted(recorded)}, and the config says"
            f" {_quoted(config)}",
        )


def check_kinds(definition: Definition, recorded: list[str], given: list[str]) -> None:
    """Checks that values are of the types of the columns, as the shard knows them. Raises
    `LookupUnusable`."""
    if recorded != given:
        raise LookupUnusable(
            definition.name,
            f"its columns are {', '.join(recorded)}, and the values given are {', '.join(given)}",
        )


@contextmanager
def installed(directory: Directory, definition: Definition, shard: int) -> Iterator[None]:
    """Where a shard has no tables of look-ups, the server does not know their names. Raises
    `LookupUnusable`."""
    try:
        yield
    except psycopg.errors.UndefinedTable as error:
        raise _missing(directory, definition, shard) from error


def _missing(directory: Directory, definition: Definition, shard: int) -> LookupUnusable:
    return LookupUnusable(
        definition.name,
        f"{_place(directory, shard)} does not have it: write its migration by `pgshard lookups"
        " migration NAME`, and run `pgshard migrate up`",
    )


def _place(directory: Directory, shard: int) -> str:
    return f"shard {shard} on host {directory.place(shard).host}"


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '\\"') + '"'
