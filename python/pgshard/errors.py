"""The errors of the core. Each names the thing, the place and, where there is one, the remedy; none shows a password."""

from __future__ import annotations

from collections.abc import Sequence

import psycopg


class PgshardError(Exception):
    """What every error of this package is."""


class ConfigError(PgshardError):
    """A config or a map that cannot be used. `problems` holds everything that is wrong, one text each."""

    def __init__(self, place: str, problems: Sequence[str]) -> None:
        self.place = place
        self.problems = tuple(problems)
        super().__init__("\n".join(f"{place}: {problem}" for problem in self.problems))


class WrongKey(PgshardError, TypeError):
    """A value that is no sharding key of this cluster."""


class WrongId(PgshardError, LookupError):
    """A number that is no ID of this cluster: its shard does not exist here, or it has more than 64 bits."""


class UnknownHost(PgshardError):
    """The map, or another host, says that a shard is on a host that the config does not name."""


class HostDiffers(PgshardError):
    """A host recorded another number of shards or another kind of keys than the config says. Nothing was sent there."""


class WrongServer(PgshardError, psycopg.OperationalError):
    """What answers under a host's name is not, or not any more, the host. Nothing was sent there."""


class HostUnreachable(PgshardError, psycopg.OperationalError):
    """A host could not be connected to, just now or a moment ago. Nothing was sent there. Other hosts' shards can be used."""


class LookUpFailed(PgshardError):
    """A host did not say where a shard is."""


class ShardUnavailable(PgshardError):
    """A shard could not be used within the time for retries. Nothing of the call has taken effect: try again later."""


class NotHere(PgshardError):
    """A host has never heard of a shard that the map places there: `pgshard check` says what is wrong."""


class TooManyWaiting(PgshardError):
    """So many calls wait for the end of one shard's move already that this one was not let in. Try again later."""
