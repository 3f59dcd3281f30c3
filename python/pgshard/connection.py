"""A connection to one server; the server's identity is queried before anything else."""

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
"""How many seconds a new server may take to report its identity. Connecting has a limit of its own,
5 s for each address."""

# This takes one round trip, and none of its functions needs a privilege. The timeline is taken from
# the log: the one in pg_control_checkpoint() is the former one until a promoted server has made a
# checkpoint.
_WHO = (
    "SELECT CASE WHEN NOT pg_catalog.pg_is_in_recovery() "
    "THEN pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()) END, "
    "(SELECT system_identifier FROM pg_catalog.pg_control_system()), "
    "pg_catalog.date_part('epoch', pg_catalog.pg_postmaster_start_time()), "
    "pg_catalog.current_setting('transaction_read_only') = 'on'"
)
# What the server has recorded about its own host, the highest generation first.
_OWN_RECORDS = (
    "SELECT i.generation, i.system_identifier, i.timeline FROM pgshard.identity i "
    "JOIN pgshard.cluster c ON c.host_name = i.host_name ORDER BY i.generation DESC"
)
# The servers that are awaited come first: they are no strangers when the others come.
_RECORDS = (
    "SELECT host_name, generation, system_identifier, timeline FROM pgshard.identity "
    "ORDER BY timeline"
)


class NoAnswer(psycopg.OperationalError):
    """A server was silent until the time for its answer was over."""


class HostConnection(psycopg.Connection[Any]):
    """A connection that knows which server answers, and that another thread can end."""

    server = Server()
    """Which server it is, as the server reported when the connection was opened."""
    circuit: Circuit | None = None
    """What is known of its host."""
    generation = 0
    """The circuit's generation when it was opened."""
    _answer_max: float | None = None

    @property
    def answer_max(self) -> float | None:
        """After how many seconds each wait ends, even if the server has stopped while its machine
        has not."""
        return self._answer_max

    @answer_max.setter
    def answer_max(self, seconds: float | None) -> None:
        # A class of its own, so that a wait without a limit costs what psycopg's costs.
        self._answer_max = seconds
        self.__class__ = HostConnection if seconds is None else _Limited

    _news: select.poll | None = None

    def has_news(self) -> bool:
        """Whether the server has sent something, or has ended the connection. Only for an open one,
        because its socket stays the same."""
        if self._news is None:
            self._news = select.poll()
            self._news.register(self.fileno(), select.POLLIN)
        return bool(self._news.poll(0))

    def seems_alive(self) -> bool:
        """Whether it is open, its host has not gone silent since, and the server has sent nothing
        unrequested. Called before each statement, so it sends nothing.

        What a server sends to an idle connection is usually a farewell: it is being shut down, or
        has ended the session. (A notice that a reload changed a setting also counts as one, and
        costs a new connection.)
        """
        circuit = self.circuit
        if self.closed or (circuit is not None and circuit.generation != self.generation):
            return False
        try:
            news = self._news
            return not (news.poll(0) if news is not None else self.has_news())
        except (psycopg.Error, OSError):
            return False

    @property
    def is_retired(self) -> bool:
        """Whether its host went silent after it was opened, so that it may only look alive."""
        return self.circuit is not None and self.circuit.generation != self.generation

    def cut(self) -> None:
        """Ends the connection. Any thread may call this; a thread that waits for an answer gets the
        error for a lost connection."""
        try:
            number = self.fileno()
            copy = os.dup(number)
            # While the connection is open, its number belongs to no other. So if it is still open,
            # the copy is of its socket.
            mine = not self.closed and self.fileno() == number
        except (psycopg.Error, OSError):
            return
        with socket.socket(fileno=copy) as shared:
            if mine:
                try:
                    shared.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass  # It has ended by itself.


class _Limited(HostConnection):
    """A connection with a limit on its waits."""

    def wait(self, gen: Generator[Any, Any, T], *args: Any, **kwargs: Any) -> T:
        limit = self._answer_max or 0.0
        try:
            return super().wait(_until(gen, time.monotonic() + limit), *args, **kwargs)
        except TimeoutError:
            self.pgconn.finish()
            raise NoAnswer(f"no answer within {limit:g} s") from None


def _until(gen: Generator[Any, Any, T], end: float) -> Generator[Any, Any, T]:
    """The same waits, with a limit. psycopg returns at every interval, with nothing if nothing was
    ready."""
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


def reach(args: Mapping[str, Any], answer_max: float = ANSWER_MAX) -> HostConnection:
    """Opens a connection in autocommit and queries the server's identity. The connection keeps
    `answer_max` as its own limit.

    Raises `psycopg.Error`.
    """
    connection = _open(args, answer_max)
    try:
        connection.server = ask(connection)
    except psycopg.Error:
        # Another thread has ended it, which is no evidence about the server.
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


def _open(args: Mapping[str, Any], answer_max: float) -> HostConnection:
    connection = HostConnection.connect(**{**args, "autocommit": True})
    connection.answer_max = answer_max
    return connection


def ask(connection: psycopg.Connection[Any]) -> Server:
    """Queries a server's identity. Raises `psycopg.Error` when the connection is lost."""
    try:
        row = connection.execute(_WHO, prepare=False).fetchone()
    except psycopg.Error as error:
        if is_lost(error, connection):
            raise
        # The server does not report its identity.
        return Server()
    if row is None or row[1] is None:
        return Server()
    return Server(Identity(row[1], timeline_of(row[0])), float(row[2] or 0), bool(row[3]))


def own_records(connection: psycopg.Connection[Any]) -> list[Record]:
    """What the server has recorded about its own host, if it belongs to a cluster: used if it is
    not the known server."""
    try:
        return [Record(*row) for row in connection.execute(_OWN_RECORDS, prepare=False).fetchall()]
    except psycopg.Error:
        return []


def records(connection: psycopg.Connection[Any]) -> list[tuple[str, Record]]:
    """What the server has recorded about all hosts. A server with an older control schema has
    recorded nothing."""
    try:
        rows = connection.execute(_RECORDS, prepare=False).fetchall()
    except psycopg.Error:
        return []
    return [
        (name, Record(generation, system, timeline)) for name, generation, system, timeline in rows
    ]


def is_standby(connection: psycopg.Connection[Any]) -> bool:
    """Whether the server is a standby. Raises `psycopg.Error`."""
    row = connection.execute("SELECT pg_catalog.pg_is_in_recovery()", prepare=False).fetchone()
    return bool(row and row[0])


def is_lost(error: BaseException | None, connection: psycopg.Connection[Any]) -> bool:
    """Whether an error has ended the connection, so that the statement on its way may have taken
    effect."""
    if not isinstance(error, psycopg.Error):
        return False
    if connection.closed:
        return True
    if error.sqlstate is None:
        # An error of libpq itself: there was no answer.
        return isinstance(error, psycopg.OperationalError)
    # A server sends the severity twice, once of them in its own language. A pooler such as
    # PgBouncer sends it once, in English.
    if (error.diag.severity_nonlocalized or error.diag.severity) in ("FATAL", "PANIC"):
        return True
    return error.sqlstate.startswith("08") or error.sqlstate in ("57P01", "57P02", "57P03")
