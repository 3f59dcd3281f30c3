"""All rows of an unsharded host at once: on which connection object they are queried.

Invariant: a query sees what the thread's own transaction on that host has done. With transactions
on several of its shards, no session sees the rows of all, and the query is refused.
"""

from __future__ import annotations

from .backend import pools
from .cluster import ALL_ROWS, UNROUTED, AllRows, Unrouted
from .errors import Unsharded


def several_writers() -> bool:
    """Whether this thread has written in transactions on several shards of the host."""
    return len(_writers()) > 1


def _writers() -> list[str]:
    """The aliases of the shards on which it has begun a transaction; if there are several, those
    that may have rows that no other sees. A test case begins one on each, and those that have sent
    nothing do not count."""
    found = [
        where
        for where, connection in pools.slots().transactions.items()
        if connection.is_unsharded and connection.connection is not None
    ]
    if len(found) < 2:
        return found
    transactions = pools.slots().transactions
    return [where for where in found if transactions[where].has_written] or found[:1]


def all_rows() -> AllRows:
    """All rows, as the thread sees them. Raises `Unsharded`."""
    found = _writers()
    return ALL_ROWS if not found else AllRows(_only(found))


def rows_with(where: str | None) -> AllRows:
    """The same, for a query that only needs to see the rows of this shard. Raises `Unsharded`."""
    return AllRows(where) if where is not None and several_writers() else all_rows()


def unrouted_rows() -> Unrouted:
    """The same, for a query that names no key. Raises `Unsharded`."""
    found = _writers()
    return UNROUTED if not found else Unrouted(_only(found))


def _only(found: list[str]) -> str:
    if len(found) > 1:
        raise Unsharded(
            f"the query is for the rows of all shards, and this thread has written in transactions"
            f" on {' and '.join(sorted(found))}, which do not see each other's rows: query each key"
            " by itself, or query before the transactions or after them"
        )
    return found[0]
