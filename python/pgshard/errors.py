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


class UnknownHost(PgshardError):
    """The map, or another host, says that a shard is on a host that the config does not name."""


class HostDiffers(PgshardError):
    """A host recorded a number of shards or a kind of keys that differs from the config. Nothing
    was sent there."""


class WrongServer(PgshardError, psycopg.OperationalError):
    """The server that answers under a host's name is not the host, or no longer. Nothing was sent
    there."""


class HostUnreachable(PgshardError, psycopg.OperationalError):
    """A host could not be reached, just now or a moment ago. Nothing was sent there. The shards of
    other hosts can be used."""


class LookUpFailed(PgshardError):
    """A host did not say where a shard is."""


class ShardUnavailable(PgshardError):
    """A shard could not be used within the time for retries. Nothing of the call has taken effect:
    try again later."""


class NotHere(PgshardError):
    """A host has never heard of a shard that the map places there: `pgshard check` says what is
    wrong."""


class TooManyWaiting(PgshardError):
    """Too many calls already wait for one shard's move to end, so this one did not wait. Try again
    later."""
