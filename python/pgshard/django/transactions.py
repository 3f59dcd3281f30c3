"""Transactions that name no database: within `run_in_shard` and `shard_of` they are the shard's, as
`atomic()`, `on_commit(hook)`, `set_rollback(True)` and the rest of `django.db.transaction`."""

from __future__ import annotations

import threading
from typing import Any

from django.db import connections, transaction
from django.db.transaction import Atomic

from .routing import chosen, within
from .uncovered import check_elsewhere
from .unnamed import Unnamed

_GET_CONNECTION = transaction.get_connection
_ENTER, _EXIT = Atomic.__enter__, Atomic.__exit__


class _Open(threading.local):
    """The `atomic` blocks without `using` that this thread is in, each with the shard that was
    chosen at its beginning. The same object may be entered again, and by other threads."""

    def __init__(self) -> None:
        self.blocks: list[tuple[Any, str | None]] = []

    def is_of_shards(self) -> bool:
        """Whether one of them is a transaction of a shard."""
        return any(where is not None for _, where in self.blocks)


_open = _Open()


def _get_connection(using: str | None = None) -> Any:
    """The same as Django's. Without `using`, the connection of the chosen shard, if any."""
    return _GET_CONNECTION(chosen() if using is None else using)


def _enter(self: Any) -> None:
    """The same as Django's. The block ends on the connection where it began, even if another shard
    is chosen by then, as in a generator."""
    if type(self.using) is Unnamed:
        self.using = None
    where = chosen()
    _ENTER(self)
    if self.using is None:
        if where is not None:
            _watch_others()
        _open.blocks.append((self, where))


def _watch_others() -> None:
    """Makes this thread's other databases report what this transaction does not cover."""
    for alias in dict.keys(connections.settings):
        wrappers = connections[alias].execute_wrappers
        if _watch not in wrappers:
            # Not at the end: Django's `execute_wrapper` takes the last one away when it is done.
            wrappers.insert(0, _watch)


def _watch(execute: Any, sql: Any, params: Any, many: Any, context: Any) -> Any:
    connection = context["connection"]
    if _open.is_of_shards():
        check_elsewhere(connection, str(sql))
    elif _watch in connection.execute_wrappers:
        connection.execute_wrappers.remove(_watch)
    return execute(sql, params, many, context)


def _exit(self: Any, *error: Any) -> None:
    if self.using is not None:
        return _EXIT(self, *error)
    blocks = _open.blocks
    at = next((at for at in reversed(range(len(blocks))) if blocks[at][0] is self), None)
    with within(chosen() if at is None else blocks.pop(at)[1]):
        return _EXIT(self, *error)


def change_django() -> None:
    """Makes Django use all this."""
    transaction.get_connection = _get_connection
    Atomic.__enter__, Atomic.__exit__ = _enter, _exit
