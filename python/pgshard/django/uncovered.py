"""Writes to a shard that only a transaction of another database surrounds. They are reported, since
a rollback does not take them back."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from typing import Any

from django.conf import settings
from django.db import connections
from django.db.transaction import TransactionManagementError

from .backend import pools
from .callers import level
from .cluster import shard_of_alias

SETTING = "PGSHARD_UNCOVERED_WRITES"
"""The setting: what happens on an uncovered write."""
WARN, ERROR, ALLOW = "warn", "error", "allow"

_WRITE = re.compile(
    r"\s*(?:INSERT|UPDATE|DELETE|MERGE|TRUNCATE|CALL|DO|COPY\s+[^\s(]+\s*(?:\([^)]*\)\s*)?FROM)\b",
    re.IGNORECASE,
)
_WITH = re.compile(
    r"\s*WITH\b.*\b(?:INSERT\s+INTO|UPDATE|DELETE\s+FROM|MERGE\s+INTO)\b", re.IGNORECASE | re.DOTALL
)


class UncoveredWriteWarning(RuntimeWarning):
    """A write to a shard within a transaction of another database, which does not cover it."""


def is_write(sql: str) -> bool:
    """Whether a statement writes rows."""
    return bool(_WRITE.match(sql) or _WITH.match(sql))


def _is_covered(connection: Any) -> bool:
    """Whether the application has begun a transaction here. That of a test case does not count."""
    if connection.in_atomic_block:
        return any(not block._from_testcase for block in connection.atomic_blocks)
    return bool(getattr(connection, "has_transaction", lambda: False)())


def _others(using: str) -> Iterator[str]:
    """The other databases on which this thread has begun a transaction."""
    for alias in dict.keys(connections.settings):
        connection = getattr(connections._connections, alias, None)
        if connection is not None and connection.in_atomic_block and _is_covered(connection):
            yield alias
    for alias, connection in pools.slots().transactions.items():
        if alias != using and connection.in_atomic_block and _is_covered(connection):
            yield alias


def check_covered(using: str) -> None:
    """Reports a write to a shard in autocommit within a transaction of another database. Raises
    `TransactionManagementError` if the setting requires it."""
    if shard_of_alias(using) is None:
        return
    if getattr(settings, SETTING, WARN) == ALLOW:
        return
    shard = getattr(connections._connections, using, None)
    if shard is not None and _is_covered(shard):
        return
    other = next(_others(using), None)
    if other is None:
        return
    name = other if shard_of_alias(other) is None else "another shard"
    _report(
        f"a write to a shard within transaction.atomic() of {name}, which does not cover it: it"
        " stays if that is rolled back. Use run_in_shard(key, function) for what belongs together,"
        f' or set {SETTING} = "{ALLOW}"'
    )


def _report(message: str) -> None:
    """Warns, or raises `TransactionManagementError`, depending on the setting."""
    how = getattr(settings, SETTING, WARN)
    if how == ERROR:
        raise TransactionManagementError(message)
    if how != ALLOW:
        warnings.warn(message, UncoveredWriteWarning, stacklevel=level())


def check_elsewhere(connection: Any, sql: str) -> None:
    """Reports a write to another database in autocommit, where `atomic()` is of a shard."""
    if is_write(sql) and not _is_covered(connection):
        alias = connection.alias
        _report(
            f"a write to {alias} within transaction.atomic() of a shard, which does not cover it:"
            f' it stays if that is rolled back. Name the database, atomic(using="{alias}"), or set'
            f' {SETTING} = "{ALLOW}"'
        )
