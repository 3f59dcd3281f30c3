"""Rows of many shards by one statement for each host:
`SELECT … FROM "shard_0001"… UNION ALL SELECT … FROM "shard_0002"…`.

This is only a shortcut. What it cannot do, and every shard on which it meets a move or an error, is
left to the code for single shards, which knows what to do and whether the error is the
application's own.

Invariant: only SELECT is sent, in autocommit; and a shard on which this thread has a transaction is
left out.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor, wait
from contextvars import copy_context
from typing import Any

from django.core.exceptions import EmptyResultSet
from django.db import DatabaseError, connections, models
from django.db.models.query import ModelIterable
from django.db.utils import InterfaceError

from ..errors import PgshardError
from ..template import quote_name, render
from .cluster import alias, cluster, state
from .fields import ShardedBigAutoField
from .gather import Errand

SHARDS_MAX = 64
"""How many shards are in one statement. A server plans it in a few milliseconds, and takes a few
hundred locks on the tables."""
_SCHEMA = '"pgshard schema of this arm"'
_IDS = "{pgshard IDs of this arm}"


@ShardedBigAutoField.register_lookup
class AnyOf(models.Lookup):
    """The IDs of one arm. They are written in the text: they are integers, and parameters would
    have to be formatted and parsed again."""

    lookup_name = "pgshard_any"
    prepare_rhs = False

    def as_sql(self, compiler: Any, connection: Any) -> Any:
        """Django calls this."""
        lhs, params = self.process_lhs(compiler, connection)
        return f"{lhs} = ANY('{_IDS}')", params


def fetch(
    queryset: Any, groups: dict[int, list[int]], width: int, end: float | None
) -> dict[int, list[Any]]:
    """The objects with these IDs, by shard. Shards that are not in the result must be queried one
    by one. `end`: of `time.monotonic`."""
    batches = _batches(groups) if _is_plain(queryset) else []
    asked = [batch for batch in batches if len(batch) > 1]
    found: dict[int, list[Any]] = {}
    if not asked:
        return found
    pool = ThreadPoolExecutor(min(width, len(asked)), thread_name_prefix="pgshard batch")
    late = False
    try:
        errands = {}
        for batch in asked:
            errand = Errand(alias(batch[0]))
            # The caller's context variables hold in the thread too.
            running = pool.submit(
                copy_context().run,
                errand.run,
                lambda _, batch=batch: _in_thread(queryset, groups, batch, end),
            )
            errands[running] = errand
        done, left = wait(errands, None if end is None else max(end - time.monotonic(), 0))
        for future in done:
            found.update(future.result())
        late = bool(left)
        Errand.give_up(errands[future] for future in left)
    finally:
        pool.shutdown(wait=not late, cancel_futures=late)
    return found


def _is_plain(queryset: Any) -> bool:
    """Whether it returns plain objects of a table, and nothing records its statements: tests count
    them."""
    query = queryset.query
    return (
        queryset._iterable_class is ModelIterable
        and not (queryset._prefetch_related_lookups or queryset._known_related_objects)
        and not (query.combinator or query.is_sliced or query.is_empty() or query.select_for_update)
        and not state.visible
        and isinstance(queryset.model._meta.pk, ShardedBigAutoField)
    )


def _batches(groups: dict[int, list[int]]) -> list[list[int]]:
    """The shards by host, in groups of at most `SHARDS_MAX`."""
    directory = cluster().directory
    hosts: dict[str, list[int]] = {}
    for shard in groups:
        wrapper = getattr(connections._connections, alias(shard), None)
        if wrapper is None or not (
            wrapper.in_atomic_block or wrapper.execute_wrappers or wrapper.queries_logged
        ):
            hosts.setdefault(directory.place(shard).host, []).append(shard)
    return [
        shards[at : at + SHARDS_MAX]
        for shards in hosts.values()
        for at in range(0, len(shards), SHARDS_MAX)
    ]


def _in_thread(
    queryset: Any, groups: dict[int, list[int]], batch: list[int], end: float | None
) -> dict[int, list[Any]]:
    if end is not None and time.monotonic() >= end:
        return {}
    try:
        return _ask(queryset, groups, batch)
    except (DatabaseError, InterfaceError, PgshardError):
        return {}


def _ask(queryset: Any, groups: dict[int, list[int]], batch: list[int]) -> dict[int, list[Any]]:
    wrapper = connections[alias(batch[0])]
    try:
        # Each arm gets a schema of its own, and so would a part of the query that is for one shard.
        # It can be for only one of two, so the other refuses it.
        _compiled(queryset, batch[1], wrapper)
        query, compiler, sql, params = _compiled(queryset, batch[0], wrapper)
    except EmptyResultSet:
        return {shard: [] for shard in batch}
    arms: list[str] = []
    values: list[Any] = []
    for shard in batch:
        schema = cluster().directory.schema(shard)
        ids = "{" + ",".join(map(str, groups[shard])) + "}"
        arm = sql.replace(_SCHEMA, quote_name(schema)).replace(_IDS, ids)
        arms.append(f"({render(arm, schema, shard)})")
        values += params
    wrapper.ensure_connection()
    with wrapper.wrap_database_errors, wrapper.create_cursor() as cursor:
        text = " UNION ALL ".join(arms)
        # Without parameters the driver does not search the text for placeholders.
        cursor.execute(text, values if values or "%" in text else None, prepare=False)
        rows = cursor.fetchall()
    compiler.execute_sql = lambda *args, **more: [rows]
    query.query.get_compiler = lambda *args, **more: compiler
    found: dict[int, list[Any]] = {shard: [] for shard in batch}
    for one in ModelIterable(query):
        shard = cluster().directory.shard_of_id(one.pk)
        _put(one, alias(shard))
        found[shard].append(one)
    return found


def _compiled(queryset: Any, shard: int, wrapper: Any) -> tuple[Any, Any, str, Any]:
    """The query on a shard, its compiler, its SQL, which has `_SCHEMA` and `_IDS` in it, and the
    parameters. `wrapper`: the connection object of any shard."""
    where = alias(shard)
    query = queryset._on(where).filter(pk__pgshard_any=_IDS)
    compiler = query.query.get_compiler(connection=wrapper)
    real = wrapper.alias, wrapper.quoted_schema
    wrapper.alias, wrapper.quoted_schema = where, _SCHEMA
    try:
        return (query, compiler, *compiler.as_sql())
    finally:
        wrapper.alias, wrapper.quoted_schema = real


def _put(one: models.Model, where: str) -> None:
    """Notes which shard an object, and what was selected with it, comes from."""
    one._state.db = where
    for related in one._state.fields_cache.values():
        if isinstance(related, models.Model):
            _put(related, where)
