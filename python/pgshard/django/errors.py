"""What Django code gets from shards. Those that a request may meet in passing are Django's `OperationalError`s."""

from __future__ import annotations

from django.core.exceptions import ImproperlyConfigured
from django.db import OperationalError

from ..map import Placement
from ..stale import Met


class NoShard(ImproperlyConfigured):
    """A query or a write of a sharded model that names no shard."""


class WrongShard(ImproperlyConfigured):
    """A row would be put, or looked for, where its key or its ID does not belong. Nothing was sent."""


class ShardMoved(OperationalError):
    """The shard moved, or its server became a standby, while a transaction was open, or with a statement that cannot be repeated.
    Of the transaction nothing stays: run it again, whole; `run_in_shard` does that by itself."""

    shard = -1
    """The shard."""
    whole = False
    """Whether it was a transaction, of which nothing stays."""
    how: Met | None
    """None: the server is a standby since a fail-over."""
    place: Placement
    began: float

    def met_move(self, shard: int, how: Met | None, place: Placement, began: float, whole: bool) -> None:
        """Notes what was met, and where."""
        self.shard, self.how, self.place, self.began, self.whole = shard, how, place, began, whole


class ConnectionLost(OperationalError):
    """The connection was lost within a transaction, before its COMMIT. Nothing of it has taken effect: it may be made again."""


class InDoubt(OperationalError):
    """The connection was lost, or the time for many shards was over, while a statement outside of transactions, or a COMMIT, was
    on its way: it has taken effect, or it has not. Look before it is made again; or let a unique constraint say so."""


class ShardUnavailable(OperationalError):
    """The shard could not be used in time. Nothing of the statement has taken effect: answer 503, try again later."""
