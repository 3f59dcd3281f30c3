"""A host's connections: so many at most, the one that was used last first. No thread of its own, so that nothing is lost by a
fork, and whoever needs a connection is told why there is none.

Invariant: there are never more connections than places, and a connection that is given out was not seen to be dead.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus

from .connect import connect
from .hosts import Host
from .reach import Linked

WAIT_MAX = 5.0
"""Seconds that a caller waits for a place."""
IDLE_MAX = 60.0
"""Seconds after which a connection that nobody uses is closed, when another is given back."""

Connection = Linked


def is_alive(connection: Connection) -> bool:
    """Whether an idle connection has not been seen to end, nor its host to be silent. Asks the socket, not the server: nothing
    is sent.

    What a server sends to an idle connection is its farewell, as a rule: it is shut down, or has terminated the session. (That
    a setting was changed by a reload is taken for one, too, and costs a new connection.)
    """
    if connection.closed or connection.is_retired:
        return False
    try:
        return not connection.has_news()
    except (psycopg.Error, OSError):
        return False


class Pool:
    """The connections of one process to one host."""

    def __init__(
        self,
        host: Host,
        options: Callable[[], Mapping[str, Any]],
        configure: Callable[[Connection], None],
        wait_max: float = WAIT_MAX,
    ) -> None:
        """`options` are arguments for connecting beside the host's own; `configure` prepares a new connection."""
        self.host = host
        self._options, self._configure, self._wait_max = options, configure, wait_max
        self._places = threading.Semaphore(host.pool_size)
        self._lock = threading.Lock()
        self._idle: list[tuple[Connection, float]] = []
        self._out: dict[int, Connection] = {}

    @property
    def in_use(self) -> int:
        """How many connections are given out."""
        return len(self._out)

    def take(self) -> Connection:
        """A connection in autocommit, opened if none is idle.

        Raises `psycopg.OperationalError` when all places are taken for too long, or there is no connection to be had; and
        what `configure` raises.
        """
        if not self._places.acquire(timeout=self._wait_max):
            name, size = self.host.name, self.host.pool_size
            raise psycopg.OperationalError(
                f"host {name}: all {size} connections of this process were in use for {self._wait_max:g} s; "
                f"transactions over several shards need one each: raise pool_size in [hosts.{name}]"
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
        """Takes a connection back; closes it where it is not idle, as after a transaction that was left open."""
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
        """Closes a connection that is given out: its session may remember a signpost, or is broken."""
        if self._returned(connection):
            connection.close()
            self._places.release()

    def close(self) -> None:
        """Closes what is idle. What is given out is closed as it comes back by `discard`."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection, _ in idle:
            connection.close()

    def _returned(self, connection: Connection) -> bool:
        """False for a connection that was given back already: its place may be another's by now."""
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
