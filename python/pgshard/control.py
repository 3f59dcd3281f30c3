"""Connections for look-ups: one host's, two kept at most, apart from the application's own so that they never wait for it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Generator
from typing import Any, TypeVar

import psycopg

from .errors import HostDiffers
from .hosts import Host
from .keys import KeyKind

T = TypeVar("T")

ANSWER_MAX = 5.0
"""Seconds that one question may take, the connection not included: that has its own limit, 5 s an address."""
_KEPT = 2


class _Bounded(psycopg.Connection[Any]):
    """A connection whose every wait ends after `ANSWER_MAX`, also when the server has stopped and its machine has not."""

    def wait(self, gen: Generator[Any, Any, T], *args: Any, **kwargs: Any) -> T:
        try:
            return super().wait(_until(gen, time.monotonic() + ANSWER_MAX), *args, **kwargs)
        except TimeoutError:
            self.pgconn.finish()
            raise psycopg.OperationalError(f"no answer within {ANSWER_MAX:g} s") from None


def _until(gen: Generator[Any, Any, T], end: float) -> Generator[Any, Any, T]:
    """The same waits. psycopg comes back at every interval, with nothing where nothing was ready."""
    try:
        state = next(gen)
        while True:
            ready = yield state
            if not ready and time.monotonic() > end:
                gen.close()
                raise TimeoutError
            state = gen.send(ready)
    except StopIteration as stop:
        result: T = stop.value
        return result


def verify(connection: psycopg.Connection[Any], host: Host, shards: int, key: KeyKind) -> None:
    """Compares what the host recorded at bootstrap with the config.

    Raises `HostDiffers`: by either of them keys would go to other shards. A host that has recorded nothing passes, since
    nothing of a shard can be there.
    """
    try:
        row = connection.execute("SELECT shards, key_kind FROM pgshard.cluster", prepare=False).fetchone()
    except psycopg.errors.UndefinedTable:
        return
    if row is None:
        return
    if row[0] != shards:
        raise HostDiffers(
            f"host {host.name} recorded {row[0]} shards, the config says {shards}: one is another cluster's"
        )
    if row[1] != key.value:
        raise HostDiffers(f"host {host.name} recorded that keys are {row[1]}, the config says {key.value}")


class Control:
    """The connections to one host."""

    def __init__(self, host: Host, shards: int, key: KeyKind) -> None:
        self.host = host
        self._shards, self._key = shards, key
        self._idle: list[_Bounded] = []
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._verified = False

    def run(self, work: Callable[[psycopg.Connection[Any]], T]) -> T:
        """Runs `work` with a connection in autocommit; again where one that was idle turns out to be dead.

        Raises what `work` or the connecting raises, `HostDiffers` among it.
        """
        for _ in range(_KEPT + 1):
            connection, fresh = self._take()
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
        """Closes what is idle."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _take(self) -> tuple[_Bounded, bool]:
        if self._pid != os.getpid():
            # The sockets are the parent's: they are left to it, unclosed; psycopg itself does not touch them here.
            self._lock, self._idle, self._pid = threading.Lock(), [], os.getpid()
        with self._lock:
            while self._idle:
                connection = self._idle.pop()
                if not connection.closed:
                    return connection, False
        args = {"keepalives_idle": "5", **self.host.connect_args(), "application_name": "pgshard look"}
        connection = _Bounded.connect(**args, autocommit=True, prepare_threshold=None)
        if not self._verified:
            try:
                verify(connection, self.host, self._shards, self._key)
            except BaseException:
                connection.close()
                raise
            self._verified = True
        return connection, True

    def _give_back(self, connection: _Bounded) -> None:
        with self._lock:
            if not connection.closed and len(self._idle) < _KEPT:
                self._idle.append(connection)
                return
        connection.close()
