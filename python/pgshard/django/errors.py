"""The errors that Django code gets from shards. Those that a request may meet for a short time are
Django's `OperationalError`s.

A query or a write that is refused is of no class of Django's: applications catch
`ImproperlyConfigured`, `ValueError` or `DatabaseError`, and would go on without what they asked
for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import OperationalError

from .. import errors as core
from ..map import Placement
from ..stale import MoveSignal


class NoShard(core.PgshardError):
    """A query or a write of a sharded model that names no shard."""


class WrongShard(core.PgshardError):
    """A row would be written, or looked for, on a shard where its key or its ID does not belong.
    Nothing was sent."""


class ShardMoved(OperationalError):
    """The shard moved, or its server became a standby, during a transaction or a statement that
    cannot be repeated. Nothing of the transaction stays: run all of it again, or use
    `run_in_shard`, which does that by itself."""

    shard = -1
    """The shard."""
    whole = False
    """Whether it happened in a transaction. Nothing of the transaction stays."""
    how: MoveSignal | None
    """What the statement met; None if the server is a standby since a fail-over."""
    place: Placement
    began: float

    def met_move(
        self, shard: int, how: MoveSignal | None, place: Placement, began: float, whole: bool
    ) -> None:
        """Records what was met, and where."""
        self.shard, self.how, self.place, self.began, self.whole = shard, how, place, began, whole


class ConnectionLost(OperationalError):
    """The connection was lost within a transaction, before its COMMIT. Nothing of it has taken
    effect, so it may be run again."""


class InDoubt(OperationalError):
    """The connection was lost, or the time for many shards was over, while a COMMIT, or a statement
    outside of transactions, was on its way: it may have taken effect, or may not. Look before you
    run it again, or let a unique constraint decide."""


class ShardUnavailable(OperationalError):
    """The shard could not be used in time. Nothing of the statement has taken effect: answer 503,
    or try again later."""


_TRANSIENT = (
    core.ShardUnavailable,
    core.TooManyWaiting,
    core.LookUpFailed,
    core.HostUnreachable,
    core.WrongServer,
)


@contextmanager
def translate_errors() -> Iterator[None]:
    """Raises the core's errors as Django's."""
    try:
        yield
    except _TRANSIENT as error:
        raise ShardUnavailable(str(error)) from error
    except core.PgshardError as error:
        raise OperationalError(str(error)) from error
