"""The errors of the core. Each names the thing, the place and, if there is one, the remedy; none
shows a password."""

from __future__ import annotations

from collections.abc import Sequence

import psycopg


class PgshardError(Exception):
    """The base of all errors of this package."""


class ConfigError(PgshardError):
    """A config or a map that cannot be used. `problems` has everything that is wrong, one text
    each."""

    def __init__(self, place: str, problems: Sequence[str]) -> None:
        self.place = place
        self.problems = tuple(problems)
        super().__init__("\n".join(f"{place}: {problem}" for problem in self.problems))


class WrongKey(PgshardError, TypeError):
    """A value that is not a sharding key of this cluster."""


class WrongId(PgshardError, LookupError):
    """A number that is not an ID of this cluster: its shard does not exist here, or it has more
    than 64 bits."""


class LegacyId(WrongId):
    """An ID from before the shards, which names none. The key does."""

    def __init__(self, id: int, legacy_below: int) -> None:
        self.id = id
        """The ID."""
        self.legacy_below = legacy_below
        """All such IDs are below it."""
        super().__init__(
            f"the ID {id} was made before there were shards (they are all below {legacy_below}) and"
            " names none: name the key, and the ID in the statement"
        )

    def __reduce__(self) -> tuple[type[LegacyId], tuple[int, int]]:
        """For copies, and for what sends errors to other processes, as Celery does."""
        return type(self), (self.id, self.legacy_below)


class UnknownHost(PgshardError):
    """The map, or another host, places a shard on a host that the config does not name."""


class HostDiffers(PgshardError):
    """A host recorded a number of shards, a kind of keys, a layout or a limit of the IDs from
    before the shards that differs from the config. Nothing was sent there."""


class LayoutChanged(PgshardError):
    """The shard left the unsharded host, or came to it, after a statement was written with the
    schema that the shard had before. Nothing of the statement has run: make the call again."""


class WrongServer(PgshardError, psycopg.OperationalError):
    """The server that answers under a host's name is not the host, or no longer. Nothing was sent
    there."""


class HostUnreachable(PgshardError, psycopg.OperationalError):
    """A host could not be reached, just now or a moment ago. Nothing was sent there. The shards of
    other hosts can be used."""


class LookUpFailed(PgshardError):
    """A host did not report where a shard is."""


class ShardUnavailable(PgshardError):
    """A shard could not be used within the time for retries. Nothing of the call has taken effect:
    try again later."""


class NotHere(PgshardError):
    """A host does not know a shard that the map places there: `pgshard check` reports what is
    wrong."""


class TooManyWaiting(PgshardError):
    """Too many calls already wait for one shard's move to end, so this one did not wait. Try again
    later."""


class ValueUnusable(PgshardError, TypeError):
    """A value of a type that no look-up has."""


class LookupUnusable(PgshardError):
    """A look-up that cannot be used. Nothing of the call has run."""

    def __init__(self, lookup: str, problem: str) -> None:
        self.lookup = lookup
        """The look-up."""
        self.problem = problem
        super().__init__(f"the look-up {lookup} cannot be used: {problem}")


class LookupNotComplete(LookupUnusable):
    """A value without an entry may belong to a key."""


class ClaimedTwice(LookupUnusable):
    """One call claims the same value twice."""


class Taken(PgshardError):
    """Another key has a row with the value. Nothing of the call has run."""

    def __init__(self, lookup: str, key: str) -> None:
        self.lookup = lookup
        """The look-up."""
        self.key = key
        """The key that has the value, as text."""
        super().__init__(f"the value belongs to key {key} already, by the look-up {lookup}")


class Busy(PgshardError):
    """Another call holds the value of a look-up for now: its transaction is open, or was a moment
    ago. Nothing of the call has run, and it may be made again."""

    def __init__(self, lookup: str, key: str | None, shard: int) -> None:
        self.lookup = lookup
        """The look-up."""
        self.key = key
        """The key that the value is being claimed for, as text. None if that was not seen."""
        self.shard = shard
        """The shard of that key; without one, that of the value's entry."""
        whose = "" if key is None else f" for key {key}"
        super().__init__(
            f"the look-up {lookup}: another call is claiming the value{whose} (shard {shard}): try"
            " again, or end the transaction that is open there"
        )


class ClaimSpent(PgshardError):
    """A claim was used before, was made unusable, or is older than 15 minutes. The transaction must
    be rolled back; then claim again."""
