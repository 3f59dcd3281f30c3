"""A connection to one server, which is asked who it is before anything else."""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Generator, Mapping
from typing import Any, TypeVar

import psycopg

from .circuit import Circuit
from .identity import Identity, Record, Server, timeline_of

T = TypeVar("T")

ANSWER_MAX = 5.0
"""Seconds that a new server may take to say who it is. The way there has its own limit, 5 s an address."""

# One round trip. No function of it needs a right. The timeline is that of the log: the one in pg_control_checkpoint() is the
# former for as long as a promoted server has not made a checkpoint.
_WHO = (
    "SELECT CASE WHEN NOT pg_catalog.pg_is_in_recovery() "
    "THEN pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()) END, "
    "(SELECT system_identifier FROM pg_catalog.pg_control_system()), "
    "pg_catalog.date_part('epoch', pg_catalog.pg_postmaster_start_time())"
)
# What the server has recorded of its own host, the last generation first.
_OWN_RECORDS = (
    "SELECT i.generation, i.system_identifier, i.timeline FROM pgshard.identity i "
    "JOIN pgshard.cluster c ON c.host_name = i.host_name ORDER BY i.generation DESC"
)
_RECORDS = "SELECT host_name, generation, system_identifier, timeline FROM pgshard.identity"


class NoAnswer(psycopg.OperationalError):
    """A server was silent until the time for its answer was over."""


class Linked(psycopg.Connection[Any]):
    """A connection that knows who answers, and can be ended from another thread."""

    server = Server()
    """Who it is, as it said when the connection was opened."""
    circuit: Circuit | None = None
    """Its host's."""
    generation = 0
    """The circuit's when it was opened."""
    answer_max: float | None = None
    """Seconds after which each wait ends, also when the server has stopped and its machine has not."""

    def wait(self, gen: Generator[Any, Any, T], *args: Any, **kwargs: Any) -> T:
        if self.answer_max is None:
            return super().wait(gen, *args, **kwargs)
        try:
            return super().wait(_until(gen, time.monotonic() + self.answer_max), *args, **kwargs)
        except TimeoutError:
            self.pgconn.finish()
            raise NoAnswer(f"no answer within {self.answer_max:g} s") from None

    _news: select.poll | None = None

    def has_news(self) -> bool:
        """Whether the server has sent something, or has ended it. Of an open connection: it has one socket for as long."""
        if self._news is None:
            self._news = select.poll()
            self._news.register(self.fileno(), select.POLLIN)
        return bool(self._news.poll(0))

    @property
    def is_retired(self) -> bool:
        """Whether its host went silent since it was opened, so that it may only look alive."""
        return self.circuit is not None and self.circuit.generation != self.generation

    def cut(self) -> None:
        """Ends the connection, from any thread: whoever waits for an answer gets the error of a lost connection."""
        try:
            number = self.fileno()
            copy = os.dup(number)
            # A number is one connection's for as long as that is open: if it is open still, the copy is of its socket.
            mine = not self.closed and self.fileno() == number
        except (psycopg.Error, OSError):
            return
        with socket.socket(fileno=copy) as shared:
            if mine:
                try:
                    shared.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass  # It has ended by itself.


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


def reach(args: Mapping[str, Any], answer_max: float = ANSWER_MAX) -> Linked:
    """Opens a connection in autocommit and asks who is there. It keeps `answer_max` as its own.

    Raises `psycopg.Error`.
    """
    connection = _open(args, answer_max)
    try:
        connection.server = ask(connection)
    except psycopg.Error:
        # Somebody has ended it: that is no word about the server.
        connection.close()
        connection = _open(args, answer_max)
        try:
            connection.server = ask(connection)
        except BaseException:
            connection.close()
            raise
    except BaseException:
        connection.close()
        raise
    return connection


def _open(args: Mapping[str, Any], answer_max: float) -> Linked:
    connection = Linked.connect(**{**args, "autocommit": True})
    connection.answer_max = answer_max
    return connection


def ask(connection: psycopg.Connection[Any]) -> Server:
    """Asks a server who it is. Raises `psycopg.Error` when the connection is lost."""
    try:
        row = connection.execute(_WHO, prepare=False).fetchone()
    except psycopg.Error as error:
        if is_lost(error, connection):
            raise
        # It keeps that to itself.
        return Server()
    if row is None or row[1] is None:
        return Server()
    return Server(Identity(row[1], timeline_of(row[0])), float(row[2] or 0))


def own_records(connection: psycopg.Connection[Any]) -> list[Record]:
    """What the server has recorded of its own host, if it is one of a cluster: for where it is not whom one knew."""
    try:
        return [Record(*row) for row in connection.execute(_OWN_RECORDS, prepare=False).fetchall()]
    except psycopg.Error:
        return []


def records(connection: psycopg.Connection[Any]) -> list[tuple[str, Record]]:
    """What the server has recorded of all hosts. One whose control schema is older has recorded nothing."""
    try:
        rows = connection.execute(_RECORDS, prepare=False).fetchall()
    except psycopg.Error:
        return []
    return [(name, Record(generation, system, timeline)) for name, generation, system, timeline in rows]


def is_standby(connection: psycopg.Connection[Any]) -> bool:
    """Whether the server is a standby. Raises `psycopg.Error`."""
    row = connection.execute("SELECT pg_catalog.pg_is_in_recovery()", prepare=False).fetchone()
    return bool(row and row[0])


def is_lost(error: BaseException | None, connection: psycopg.Connection[Any]) -> bool:
    """Whether an error has ended the connection, so that what was on its way may have taken effect."""
    if not isinstance(error, psycopg.Error):
        return False
    if connection.closed:
        return True
    if error.sqlstate is None:
        # libpq's own: there was no answer.
        return isinstance(error, psycopg.OperationalError)
    # A server says twice how bad it is, once in words of its own language. A pooler, PgBouncer for one, says it once, in English.
    if (error.diag.severity_nonlocalized or error.diag.severity) in ("FATAL", "PANIC"):
        return True
    return error.sqlstate.startswith("08") or error.sqlstate in ("57P01", "57P02", "57P03")
