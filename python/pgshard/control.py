"""Connections for questions to one host. A few are kept at most, apart from the application's own,
so that a question never waits for those."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import psycopg

from .connect import connect
from .connection import HostConnection
from .errors import HostDiffers
from .hosts import Host
from .keys import KeyKind
from .layout import differing_layout, key_of_record

T = TypeVar("T")

ANSWER_MAX = 5.0
"""How many seconds one question may take. Connecting has a limit of its own, 5 s for each
address."""
_KEPT = 2
"""How many connections are kept."""

Meet = Callable[[psycopg.Connection[Any], Host], None]
"""What is done with the first connection to a host: `Directory.meet`."""


def verify(
    connection: psycopg.Connection[Any],
    host: Host,
    shards: int,
    key: KeyKind,
    legacy_below: int = 0,
) -> None:
    """Compares what the host recorded at bootstrap with the config.

    Raises `HostDiffers` if they disagree, because then keys would go to other shards. A host that
    has recorded nothing passes, because it cannot hold any shard. An unsharded host must have
    recorded that it is one, since a statement may find its tables wherever they are.
    """
    try:
        row = connection.execute(
            "SELECT shards, key_kind, legacy_below FROM pgshard.cluster", prepare=False
        ).fetchone()
    except psycopg.errors.UndefinedTable:
        row = None
    if row is None and host.whole is None:
        return
    problem = _difference(row, host, shards, key, legacy_below)
    if problem is None and host.whole is not None:
        problem = _other_schema(connection, host.whole)
    if problem is not None:
        raise HostDiffers(f"host {host.name}: {problem}. Nothing was sent")


def _difference(
    row: Sequence[Any] | None, host: Host, shards: int, key: KeyKind, legacy_below: int
) -> str | None:
    """How what a host recorded differs from the config; None if it does not."""
    if row is None:
        return "it recorded nothing, the config says unsharded: `pgshard bootstrap`"
    if row[0] != shards:
        return f"it recorded {row[0]} shards, the config says {shards}: one is another cluster's"
    problem = differing_layout(row[1], host.whole)
    if problem is None and key_of_record(row[1]) != key.value:
        problem = f"it recorded that keys are {key_of_record(row[1])}, the config says {key.value}"
    if problem is None and row[2] != legacy_below:
        problem = (
            f"it recorded that IDs below {row[2]} name no shard, the config says {legacy_below}"
        )
    return problem


def _other_schema(connection: psycopg.Connection[Any], whole: str) -> str | None:
    """How the schema from which an unsharded host serves all shards differs from the config's; None
    if it does not."""
    row = connection.execute("SELECT schema_name FROM pgshard.whole", prepare=False).fetchone()
    if row is None:
        return f'it serves no shards yet, the config says "{whole}"'
    if row[0] != whole:
        return f'it serves all shards from the schema "{row[0]}", the config says "{whole}"'
    return None


class Control:
    """The connections to one host."""

    def __init__(
        self, host: Host, meet: Meet, kept: int = _KEPT, application_name: str = "pgshard look"
    ) -> None:
        self.host = host
        self._meet = meet
        self._kept, self._application_name = kept, application_name
        self._idle: list[HostConnection] = []
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._met = False

    def run(
        self, work: Callable[[psycopg.Connection[Any]], T], answer_max: float | None = None
    ) -> T:
        """Runs `work` with a connection in autocommit; runs it again if an idle connection turns
        out to be dead. Each answer may take `answer_max` seconds, without it `ANSWER_MAX`.

        Raises what `work` or connecting raises, `HostDiffers` among them.
        """
        for _ in range(self._kept + 1):
            connection, fresh = self._take()
            connection.answer_max = ANSWER_MAX if answer_max is None else answer_max
            try:
                result = work(connection)
            except psycopg.Error:
                dead = connection.closed
                connection.close()
                if dead and not fresh:
                    continue
                raise
            except BaseException:
                connection.close()
                raise
            self._give_back(connection)
            return result
        raise psycopg.OperationalError("the connections were lost one after the other")

    def close(self) -> None:
        """Closes the idle connections."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _take(self) -> tuple[HostConnection, bool]:
        if self._pid != os.getpid():
            # The sockets belong to the parent, so they are not closed here; psycopg does not touch
            # them either.
            self._lock, self._idle, self._pid = threading.Lock(), [], os.getpid()
        with self._lock:
            while self._idle:
                connection = self._idle.pop()
                if connection.is_retired:
                    connection.close()
                elif not connection.closed:
                    return connection, False
        connection = connect(
            self.host, application_name=self._application_name, prepare_threshold=None
        )
        connection.answer_max = ANSWER_MAX
        if not self._met:
            try:
                self._meet(connection, self.host)
            except BaseException:
                connection.close()
                raise
            self._met = True
        return connection, True

    def _give_back(self, connection: HostConnection) -> None:
        with self._lock:
            if not connection.closed and len(self._idle) < self._kept:
                self._idle.append(connection)
                return
        connection.close()
