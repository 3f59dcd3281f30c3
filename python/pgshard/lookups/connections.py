"""Connections for look-ups: four to each host at most, apart from the application's own. A
transaction waits for its claims, so claims cannot wait for the connections of transactions."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

import psycopg

from ..control import Control
from ..recovery import Recovery, RecoveryContext
from ..stale import met
from ..template import render

T = TypeVar("T")

PER_HOST = 4
"""How many connections a process has to one host for its look-ups."""
_READ_ONLY = "25006"


class NoConnection(psycopg.OperationalError):
    """All connections for look-ups were taken."""


class InShard:
    """A connection to a shard's host, for a statement or two."""

    def __init__(self, connection: psycopg.Connection[Any], schema: str) -> None:
        self._connection, self._schema = connection, schema

    def execute(self, sql: str, params: dict[str, Any] | None = None) -> psycopg.Cursor[Any]:
        """Runs a statement. Raises `psycopg.Error`."""
        return self._connection.execute(render(sql, self._schema), params, prepare=False)

    def transaction(self, begin: str, work: Callable[[], T]) -> T:
        """Runs `work` in a transaction that these statements begin. Raises `psycopg.Error`; then
        the connection is closed, and the transaction rolled back."""
        self.execute(begin)
        result = work()
        self.execute("COMMIT")
        return result


class _ToHost:
    """The connections to one host."""

    def __init__(self, control: Control) -> None:
        self.control = control
        self.places = threading.Semaphore(PER_HOST)


class LookupConnections:
    """The connections of a process for its look-ups. All threads may use it."""

    def __init__(self, recovery_context: RecoveryContext) -> None:
        self._recovery_context = recovery_context
        self._forget()

    def _forget(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._hosts: dict[str, _ToHost] = {}

    def run(self, shard: int, work: Callable[[InShard], T], within: float) -> T:
        """Runs `work` where the shard is; runs it again if that moves. Each wait takes `within`
        seconds at most.

        Raises `NoConnection` and `NoAnswer` if a wait was too long, another `psycopg.Error`, and
        the same as `Recovery.after`.
        """
        directory = self._recovery_context.directory
        end = time.monotonic() + within
        recovery = Recovery(self._recovery_context, shard, retry_for=within)
        while True:
            place, began = directory.place(shard), time.monotonic()
            left = max(end - began, 0.001)
            try:
                return self._on(place.host, directory.schema(shard), work, left)
            except psycopg.Error as error:
                if error.sqlstate == _READ_ONLY:
                    recovery.failed_over(place)
                    continue
                how = met(error.sqlstate, error.diag.message_primary or "")
                # The connection is closed by now.
                if how is None or not recovery.after(how, place, began):
                    raise

    def _on(self, name: str, schema: str, work: Callable[[InShard], T], left: float) -> T:
        host = self._host(name)
        if not host.places.acquire(timeout=left):
            raise NoConnection(
                f"host {name}: all {PER_HOST} connections for look-ups were taken for {left:.1f} s"
            )
        try:
            return host.control.run(
                lambda connection: work(InShard(connection, schema)), answer_max=left
            )
        finally:
            host.places.release()

    def _host(self, name: str) -> _ToHost:
        if self._pid != os.getpid():
            # In the child of a fork: the connections belong to the parent.
            self._forget()
        found = self._hosts.get(name)
        if found is None:
            directory = self._recovery_context.directory
            control = Control(
                directory.host(name),
                directory.meet,
                kept=PER_HOST,
                application_name="pgshard claim",
            )
            with self._lock:
                found = self._hosts.setdefault(name, _ToHost(control))
        return found

    def close(self) -> None:
        """Closes the connections that nobody uses."""
        for host in list(self._hosts.values()):
            host.control.close()
