"""A host's connections: a fixed number at most, and the one that was used last is taken first.
There is no thread, so a fork loses nothing, and a caller that gets no connection gets the reason.

Invariant: there are never more connections than places, and no connection is handed out that was
seen to be dead.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus

from .connect import connect
from .connection import HostConnection
from .hosts import Host

WAIT_MAX = 5.0
"""How many seconds a caller waits for a place."""
IDLE_MAX = 60.0
"""After how many idle seconds a connection is closed. That happens when another one is given
back."""

Connection = HostConnection


def is_alive(connection: Connection) -> bool:
    """Whether neither the end of an idle connection nor silence of its host has been noticed."""
    return connection.seems_alive()


class Pool:
    """The connections of one process to one host."""

    def __init__(
        self,
        host: Host,
        options: Callable[[], Mapping[str, Any]],
        configure: Callable[[Connection], None],
        wait_max: float = WAIT_MAX,
    ) -> None:
        """`options` are arguments for connecting, in addition to the host's own; `configure`
        prepares a new connection."""
        self.host = host
        self._options, self._configure, self._wait_max = options, configure, wait_max
        self._places = threading.Semaphore(host.pool_size)
        self._lock = threading.Lock()
        self._idle: list[tuple[Connection, float]] = []
        self._out: dict[int, Connection] = {}

    @property
    def in_use(self) -> int:
        """How many connections are handed out."""
        return len(self._out)

    def take(self) -> Connection:
        """A connection in autocommit, opened if none is idle.

        Raises `psycopg.OperationalError` if all places stay taken for too long, or if no connection
        can be opened; and whatever `configure` raises.
        """
        if not self._places.acquire(timeout=self._wait_max):
            name, size = self.host.name, self.host.pool_size
            raise psycopg.OperationalError(
                f"host {name}: all {size} connections of this process were taken for"
                f" {self._wait_max:g} s: a transaction has one for each of its shards, and a thread"
                " of Django's keeps one between its statements, until its request ends or it calls"
                f" pgshard.django.release(); or raise pool_size in [hosts.{name}]"
            )
        try:
            connection = self._idle_one() or self._open()
        except BaseException:
            self._places.release()
            raise
        with self._lock:
            self._out[id(connection)] = connection
        return connection

    def give_back(self, connection: Connection) -> None:
        """Takes a connection back, and closes it if it is not idle, for instance after a
        transaction that was left open."""
        if not self._returned(connection):
            return
        if connection.closed or connection.info.transaction_status != TransactionStatus.IDLE:
            connection.close()
        now = time.monotonic()
        with self._lock:
            if not connection.closed:
                self._idle.append((connection, now))
            old = [one for one, since in self._idle if now - since > IDLE_MAX]
            self._idle = [pair for pair in self._idle if now - pair[1] <= IDLE_MAX]
        self._places.release()
        for one in old:
            one.close()

    def discard(self, connection: Connection) -> None:
        """Closes a connection that was handed out, because its session may remember a signpost, or
        is broken."""
        if self._returned(connection):
            connection.close()
            self._places.release()

    def close(self) -> None:
        """Closes the idle connections. Those that are handed out are closed when `discard` takes
        them back."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection, _ in idle:
            connection.close()

    def _returned(self, connection: Connection) -> bool:
        """False if the connection was given back already: its place may be taken by another."""
        with self._lock:
            return self._out.pop(id(connection), None) is not None

    def _idle_one(self) -> Connection | None:
        while True:
            with self._lock:
                if not self._idle:
                    return None
                connection, _ = self._idle.pop()
            if is_alive(connection):
                return connection
            connection.close()

    def _open(self) -> Connection:
        connection = connect(self.host, **self._options())
        try:
            self._configure(connection)
        except BaseException:
            connection.close()
            raise
        return connection
