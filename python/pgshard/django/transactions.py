"""Transactions that name no database: within `run_in_shard` and `shard_of` they are the shard's, as
`atomic()`, `on_commit(hook)`, `set_rollback(True)` and the rest of `django.db.transaction`."""

from __future__ import annotations

import threading
from typing import Any

from django.db import transaction
from django.db.transaction import Atomic

from .routing import chosen, within

_GET_CONNECTION = transaction.get_connection
_ENTER, _EXIT = Atomic.__enter__, Atomic.__exit__


class _Open(threading.local):
    """The `atomic` blocks without `using` that this thread is in, each with the shard that was
    chosen at its beginning. The same object may be entered again, and by other threads."""

    def __init__(self) -> None:
        self.blocks: list[tuple[Any, str | None]] = []


_open = _Open()


def _get_connection(using: str | None = None) -> Any:
    """The same as Django's. Without `using`, the connection of the chosen shard, if any."""
    return _GET_CONNECTION(chosen() if using is None else using)


def _enter(self: Any) -> None:
    """The same as Django's. The block ends on the connection where it began, even if another shard
    is chosen by then, as in a generator."""
    where = chosen()
    _ENTER(self)
    if self.using is None:
        _open.blocks.append((self, where))


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
