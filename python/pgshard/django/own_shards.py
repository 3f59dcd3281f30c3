"""Which shard a key has in tests. Test databases have a few shards, on which two keys would often
meet by chance; then a query for both would run in a test and be refused in production.

Invariant: a key keeps its shard for as long as the test database exists, in all processes.
"""

from __future__ import annotations

import operator
import threading
from typing import Any, Protocol

from ..recovery import RecoveryContext

MAKE = """CREATE SCHEMA IF NOT EXISTS pgshard_test;
CREATE TABLE IF NOT EXISTS pgshard_test.key_shard (
    key text PRIMARY KEY, shard integer NOT NULL
)"""
"""Makes the table that has the keys and their shards."""
_PUT = (
    "INSERT INTO pgshard_test.key_shard AS k (key, shard) VALUES (%s, %s)"
    " ON CONFLICT (key) DO UPDATE SET shard = k.shard RETURNING shard"
)


class _Cluster(Protocol):
    @property
    def recovery_context(self) -> RecoveryContext: ...

    @property
    def shards(self) -> int: ...


class OwnShards:
    """The shards of the keys that were met. A new key gets the shard that it would have anyway, or
    if another key has that, the one with the keys that were not used for the longest time. So two
    keys share a shard only if more keys are in use at a time than there are shards."""

    def __init__(self, cluster: _Cluster) -> None:
        self._cluster = cluster
        self._known: dict[Any, int] = {}
        self._used = [0] * cluster.shards
        self._time = 0
        self._lock = threading.Lock()

    def shard_of(self, key: Any, remainder: int) -> int:
        """The shard of a valid key. `remainder`: the shard that it would have in a cluster with as
        many shards."""
        if not isinstance(key, str) and hasattr(key, "__index__"):
            key = operator.index(key)
        with self._lock:
            found = self._known.get(key)
            if found is None:
                found = self._known[key] = self._put(key, remainder)
            self._time += 1
            self._used[found] = self._time
            return found

    def _put(self, key: Any, remainder: int) -> int:
        used = self._used
        wanted = remainder if not used[remainder] else used.index(min(used))
        host = next(iter(self._cluster.recovery_context.directory.hosts))
        control = self._cluster.recovery_context.questions(host.name).control
        row = control.run(lambda c: c.execute(_PUT, [str(key), wanted]).fetchone())
        assert row is not None, "RETURNING gives a row"
        return int(row[0])

    def after_fork(self) -> None:
        """In the child, the lock may be held by a thread that does not exist there."""
        self._lock = threading.Lock()
