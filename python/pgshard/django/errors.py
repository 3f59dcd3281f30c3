"""The errors that Django code gets from shards. Those that a request may meet for a short time are
Django's `OperationalError`s.

A query or a write that is refused is of no class of Django's: applications catch
`ImproperlyConfigured`, `ValueError` or `DatabaseError`, and would continue without what they
queried."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from django import db
from django.db import IntegrityError, OperationalError

from .. import errors as core
from ..map import Placement
from ..stale import MoveSignal


class NoShard(core.PgshardError):
    """A query or a write of a sharded model that names no shard."""


class NoClaim(core.PgshardError):
    """A value of a look-up that cannot be claimed: the server would compute it, several rows would
    get it, or the row has no key yet. Nothing was sent."""


class Taken(IntegrityError):
    """Another key has a row with the value of a look-up. Nothing was written."""

    def __init__(self, message: str, lookup: str, key: str) -> None:
        self.lookup = lookup
        """The look-up."""
        self.key = key
        """The key that has the value, as text."""
        super().__init__(message)


class Busy(OperationalError):
    """Another transaction claims the same value of a look-up, and did not end in time. Nothing was
    written: try again later."""


class WrongShard(core.PgshardError):
    """A row would be written, or looked for, on a shard where its key or its ID does not belong.
    Nothing was sent."""


class Unsharded(core.PgshardError):
    """A statement for one shard that names none of its rows. The unsharded host would take it for
    the rows of all keys. Nothing was sent."""


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


class LayoutChanged(ShardMoved, core.LayoutChanged):
    """The shard left the unsharded host, or came to it, after the statement was made with the
    schema that the shard had before. Nothing of it has run: make the call again."""

    whole = True

    def __init__(self, message: str, shard: int = -1) -> None:
        super().__init__(message)
        self.shard = shard


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


_KINDS = (
    "DataError",
    "OperationalError",
    "IntegrityError",
    "InternalError",
    "ProgrammingError",
    "NotSupportedError",
    "DatabaseError",
    "InterfaceError",
    "Error",
)


@contextmanager
def translate_claims() -> Iterator[None]:
    """Raises the core's errors of look-ups as Django's: `Taken` and `Busy`, `IntegrityError` if a
    value is claimed twice, and those of the server. A look-up that cannot be used stays
    `LookupUnusable`."""
    try:
        yield
    except core.Taken as error:
        raise Taken(str(error), error.lookup, error.key) from error
    except core.ClaimedTwice as error:
        raise IntegrityError(str(error)) from error
    except core.Busy as error:
        raise Busy(str(error)) from error
    except _TRANSIENT as error:
        raise ShardUnavailable(str(error)) from error
    except psycopg.Error as error:
        kind = next(name for name in _KINDS if isinstance(error, getattr(psycopg, name)))
        raise getattr(db, kind)(str(error)) from error
