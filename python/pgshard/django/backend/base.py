"""The connection object of one shard, `connections["shard-31"]`.

In autocommit it uses the thread's connection to the shard's host, which it shares with the thread's
other aliases. For a transaction, and for each server-side cursor outside of one, it takes a
connection of its own.

Invariant: a statement is run again only if no effect of it, or of the transaction it began, can
have stayed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import psycopg
from django.db import DatabaseError, NotSupportedError, OperationalError, ProgrammingError
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.postgresql import base as postgresql
from django.db.backends.utils import debug_transaction
from django.dispatch import Signal
from psycopg import IsolationLevel
from psycopg.pq import TransactionStatus
from psycopg.sql import SQL, Literal

from ... import errors as core
from ...connection import is_lost, is_standby
from ...map import Placement
from ...pool import Connection, Pool, is_alive
from ...recovery import Recovery
from ...stale import MoveSignal, asks_about_names, met
from ...stale import repeatable as may_repeat
from ...template import quote_name, render
from ..cluster import ALIASES, AllRows, cluster, shard_of_alias, state
from ..errors import (
    ConnectionLost,
    InDoubt,
    LayoutChanged,
    ShardMoved,
    ShardUnavailable,
    translate_errors,
)
from ..uncovered import check_covered, is_write
from . import pools
from .client import DatabaseClient
from .creation import DatabaseCreation
from .cursor import Cursor, DebugCursor
from .features import DatabaseFeatures
from .introspection import DatabaseIntrospection
from .operations import DatabaseOperations
from .reading import HOLE, OnceCursor, reading_once
from .schema import refuse

READ_ONLY = "25006"
_IDLE = TransactionStatus.IDLE
alias_created = Signal()
"""Sent when a thread makes `wrapper`, its connection object for a shard. A loop over all databases
does not find these objects."""
_ENSURE_CONNECTION = BaseDatabaseWrapper.ensure_connection
# Without the check for a running event loop: `cursor` itself has just made it.
_CREATE_CURSOR = getattr(
    postgresql.DatabaseWrapper.create_cursor,
    "__wrapped__",
    postgresql.DatabaseWrapper.create_cursor,
)


class DatabaseWrapper(postgresql.DatabaseWrapper):
    """One shard, as one thread uses it."""

    ops_class = DatabaseOperations
    features_class = DatabaseFeatures
    introspection_class = DatabaseIntrospection
    client_class = DatabaseClient
    creation_class = DatabaseCreation
    pool = None  # Django's own pools are kept by alias.
    connection: Any
    savepoint_ids: list[Any]
    atomic_blocks: list[Any]
    run_on_commit: list[Any]
    run_commit_hooks_on_set_autocommit_on: bool

    def __init__(self, settings_dict: dict[str, Any], alias: str) -> None:
        shard = shard_of_alias(alias)
        if shard is None:
            raise NotSupportedError(
                f"{alias} is not the alias of a shard: those are shard-0, shard-1, …"
            )
        super().__init__(settings_dict, ALIASES[shard])
        self.shard = shard
        self.schema = ""
        """The schema of the shard, for SQL that is made now."""
        self.quoted_schema = ""
        self.is_unsharded = False
        """Whether the host keeps all shards in that schema."""
        self.all_rows: AllRows | None = None
        """What the query is for that is being compiled, if that is all rows of the unsharded
        host."""
        self._take_schema(cluster().config.schema(shard))
        self.take_layout()
        self.autocommit = True
        self._place = Placement("", 0)
        self._shared: dict[str, tuple[Pool, Connection]] = {}  # The thread's connections, by host.
        self._own: Pool | None = (
            None  # The pool of self.connection, while only this object uses it.
        )
        self._sent = 0  # How many statements the transaction has sent, without savepoints.
        self._began = 0.0  # When the first of them was sent.
        self.has_written = False
        """Whether the transaction has sent a statement that is no mere SELECT."""
        self.kept = 0
        """How often something was kept: how many COMMITs there were, and statements outside of
        transactions that may write."""
        self.ended: OperationalError | None = None
        """What has ended the transaction. No savepoint takes it back."""
        self._savepoints: list[str] = []
        self._defers = alias in state.visible
        """In tests: whether a transaction begins with its first statement, since a test case begins
        one on each shard."""
        self._outermost: str | None = None
        """The savepoint that the transaction was to begin with, and which is not sent: to roll back
        to it is to roll back everything."""
        self._counts = True
        self._streams = 0
        pools.touch(alias)
        alias_created.send(sender=type(self), wrapper=self)

    # --------------------------------------------------------------------------
    # layout

    @property
    def follows_layout(self) -> bool:
        """Whether the schema may change, because the config has an unsharded host. Tests change the
        config, and other threads keep their objects."""
        return self.is_unsharded or (state.cluster or cluster()).has_unsharded

    def take_layout(self) -> None:
        """Takes over the schema of the shard from the host where it is now, for the SQL that is
        made next."""
        if self.follows_layout:
            self._take_schema(cluster().directory.schema(self.shard))

    def _take_schema(self, schema: str) -> None:
        if schema != self.schema:
            self.schema, self.quoted_schema = schema, quote_name(schema)
            self.is_unsharded = schema != cluster().config.schema(self.shard)

    def _check_layout(self, cursor: Any) -> None:
        """Refuses a statement whose text has the schema of another host. Raises
        `LayoutChanged`."""
        there = cluster().directory.schema_at(self._place, self.shard)
        if cursor.made_for not in (None, there):
            raise LayoutChanged(
                f"shard {self.shard} is on host {self._place.host} by now, in the schema {there},"
                f" and the statement was made for the schema {cursor.made_for}: nothing of it has"
                " run, make the call again",
                self.shard,
            )

    # --------------------------------------------------------------------------
    # connections

    def connection_options(self) -> dict[str, Any]:
        """Arguments for new connections to a host, in addition to those from the config."""
        params: dict[str, Any] = super().get_connection_params()
        for key in ("dbname", "user", "password", "host", "port"):
            params.pop(key, None)
        params["cursor_factory"] = reading_once(params["cursor_factory"])
        return params

    def configure(self, connection: Connection) -> None:
        """Prepares a new connection, as Django does: time zone, role, isolation."""
        self._configure_timezone(connection)
        self._configure_role(connection)
        level = self.settings_dict["OPTIONS"].get("isolation_level")
        if level is not None:
            connection.isolation_level = IsolationLevel(level)

    def _configure_role(self, connection: Connection) -> bool:
        """The same as Django's, which would need this object's connection to quote the name: the
        one that is being opened."""
        role = self.settings_dict["OPTIONS"].get("assume_role")
        if role:
            connection.execute(SQL("SET ROLE {}").format(Literal(role)))
        return bool(role)

    def connect(self) -> None:
        """Starts over: in autocommit, on the thread's connection. Begins a deferred transaction."""
        if self._is_deferred():
            with translate_errors():
                self._begin_anew()
            return
        self.in_atomic_block = False
        self.savepoint_ids = []
        self.atomic_blocks = []
        self.needs_rollback = False
        self.closed_in_transaction = False
        self.errors_occurred = False
        self.run_on_commit = []
        self._own, self.ended = None, None
        self.autocommit = True
        self._attach()

    def ensure_connection(self) -> None:
        """In a transaction, makes sure of its connection; else of the thread's connection to the
        host where the shard is now."""
        if BaseDatabaseWrapper.ensure_connection is not _ENSURE_CONNECTION:
            # Tests that forbid databases replace this method.
            BaseDatabaseWrapper.ensure_connection(self)
        if self._own is not None and self.connection is not None:
            return
        if self.in_atomic_block and self.closed_in_transaction:
            raise ProgrammingError("Cannot open a new connection in an atomic block.")
        if self._is_attached():
            return
        with self.wrap_database_errors, translate_errors():
            if self.connection is None and self._own is not None and not self.closed_in_transaction:
                self._begin_anew()
            elif self.connection is None or self._own is not None:
                self.connect()
            else:
                self._attach()

    def _pool(self, host: str) -> Pool:
        return pools.pool(host, self)

    def _taken(self, pool: Pool) -> Connection:
        """A connection that only this object uses."""
        connection = pool.take()
        try:
            self._configure_timezone(connection)
        except BaseException:
            pool.discard(connection)
            raise
        return connection

    def _is_attached(self) -> bool:
        """Whether it has the thread's connection to the host where the shard is now, and the end of
        that connection has not been noticed. Called before each statement."""
        connection = self.connection
        if connection is None or self._own is not None:
            return False
        place = (state.cluster or cluster()).directory.place(self.shard)
        held = self._shared.get(place.host)
        if held is None or held[1] is not connection or not connection.seems_alive():
            return False
        self._place = place
        return True

    def _attach(self) -> None:
        """Takes the thread's connection to the shard's host; opens or replaces it if needed."""
        place = cluster().directory.place(self.shard)
        mine = pools.slots()
        self._shared = mine.shared
        held = mine.shared.get(place.host)
        if held is None or not is_alive(held[1]):
            if held is not None:
                del mine.shared[place.host]
                held[0].discard(held[1])
            pool = self._pool(place.host)
            held = mine.shared[place.host] = (pool, pool.take())
        if held[1] is not self.connection:
            self._configure_timezone(held[1])
        self._place, self.connection = place, held[1]
        mine.attached[self.alias] = self

    def get_autocommit(self) -> bool:
        """The same as Django's; in tests it opens no connection."""
        if self._defers and not self.closed_in_transaction:
            return self.autocommit
        return bool(super().get_autocommit())

    def set_autocommit(self, autocommit: bool, *args: Any, **kwargs: Any) -> None:
        """The same as Django's. At the end of a transaction with a lost connection it opens no
        other: that could fail, and the error would take the place of the one that reports the
        outcome of the transaction."""
        if autocommit and self.connection is None:
            deferred = self._is_deferred()
            self._own, self.autocommit = None, True
            if deferred:
                pools.slots().transactions.pop(self.alias, None)
                if self.run_commit_hooks_on_set_autocommit_on:
                    self.run_and_clear_commit_hooks()
                    self.run_commit_hooks_on_set_autocommit_on = False
        elif (
            not autocommit and self._defers and self._own is None and not self.closed_in_transaction
        ):
            self.validate_no_atomic_block()
            with debug_transaction(self, "BEGIN"), translate_errors():
                self._defer()
        else:
            super().set_autocommit(autocommit, *args, **kwargs)

    def _defer(self) -> None:
        self._place = cluster().directory.place(self.shard)
        self._own, self.connection = self._pool(self._place.host), None
        self.autocommit = False
        self._sent, self.ended, self._savepoints, self._outermost = 0, None, [], None
        self.has_written = False
        pools.slots().transactions[self.alias] = self

    def _is_deferred(self) -> bool:
        """Whether a transaction has begun, and nothing of it was sent."""
        return (
            self._defers
            and self._own is not None
            and self.connection is None
            and not self.closed_in_transaction
        )

    def _take_back(self) -> None:
        """Rolls the transaction back, and defers it again."""
        connection, self.connection = self.connection, None
        self._sent, self.ended, self.has_written = 0, None, False
        if connection is None or self._own is None:
            return
        try:
            connection.rollback()
            connection.autocommit = True
        except psycopg.Error:
            self._own.discard(connection)
        else:
            self._own.give_back(connection)

    def _set_autocommit(self, autocommit: bool) -> None:
        with self.wrap_database_errors:
            if autocommit:
                pools.slots().transactions.pop(self.alias, None)
                if self._own is not None:
                    self.connection.autocommit = True
                    self._share()
                return
            if self._own is None:
                # The thread's connection now belongs to this object; another alias gets another
                # one.
                self._own, _ = pools.slots().shared.pop(self._place.host)
            self.connection.autocommit = False
            self._sent, self.ended, self._savepoints = 0, None, []
            self.has_written = False
            pools.slots().transactions[self.alias] = self

    def _share(self) -> None:
        """Makes the connection the thread's again, or gives it back if the thread has another one
        by now."""
        mine, own, self._own = pools.slots(), self._own, None
        assert own is not None, "only after a transaction"
        if self._place.host in mine.shared:
            own.give_back(self.connection)
            self.connection = None
        else:
            mine.shared[self._place.host] = (own, self.connection)

    def _close(self) -> None:
        if self._own is not None and self.connection is not None:
            self._own.discard(self.connection)
            self._own = None

    def detach(self) -> None:
        """Lets go of the thread's connection, which is given back."""
        if self._own is None:
            self.connection = None
        # Django keeps these for an object's life, and tests change the settings.
        for name in ("timezone", "timezone_name"):
            self.__dict__.pop(name, None)

    def is_busy(self) -> bool:
        """Whether something relies on this very object: a transaction, an open cursor, a test that
        counts statements."""
        return bool(
            self._own is not None
            or self.in_atomic_block
            or self._streams
            or self.force_debug_cursor
            or self.execute_wrappers
            or self.run_on_commit
            or self.allow_thread_sharing
        )

    def is_usable(self) -> bool:
        """Whether the connection takes statements and its end has not been noticed. Django's tests
        call this after each test."""
        return self.connection is not None and is_alive(self.connection) and not self.has_failed()

    def close_if_health_check_failed(self) -> None:
        """Does nothing: each statement checks whether its connection has ended."""

    def init_connection_state(self) -> None:
        """Does nothing: the pool prepares a connection when it opens it."""

    def close_pool(self) -> None:
        """Does nothing: each pool belongs to a host, not to an alias."""

    # --------------------------------------------------------------------------
    # cursors

    def make_cursor(self, cursor: Any) -> Cursor:
        if type(cursor) is OnceCursor:
            # A schema of all shards is the same in each text, and may be a part of other words.
            cursor.schema = None if self.is_unsharded else self.schema
        return Cursor(cursor, self)

    def make_debug_cursor(self, cursor: Any) -> DebugCursor:
        return DebugCursor(cursor, self)

    def _cursor(self, name: str | None = None) -> Any:
        known = BaseDatabaseWrapper.ensure_connection is _ENSURE_CONNECTION
        if name is None and known and self.connection is not None:
            # It does not matter which connection it is on: `_ready` checks that before each
            # statement, and once is enough.
            try:
                return self._prepare_cursor(_CREATE_CURSOR(self))
            except psycopg.Error:
                pass  # It has ended.
        wrapped = super()._cursor(name)
        if name is not None:
            wrapped.server_side_name, wrapped.pid = name, os.getpid()
        return wrapped

    def chunked_cursor(self) -> Any:
        """A server-side cursor. Outside of transactions it has a connection of its own, so that no
        other statement ends it."""
        self.ensure_connection()
        if not cluster().directory.host(self._place.host).named:
            # Behind a pooler in transaction mode the next FETCH may reach another session.
            return self._cursor()
        if self._own is not None:
            return super().chunked_cursor()
        with self.wrap_database_errors, translate_errors():
            pool = self._pool(self._place.host)
            raw = self._taken(pool)
        try:
            self._named_cursor_idx += 1
            name = f"pgshard_{id(raw)}_{self._named_cursor_idx}"
            wrapped = self._prepare_cursor(self._on(raw, name))
        except BaseException:
            pool.give_back(raw)
            raise
        wrapped.server_side_name, wrapped.stream, wrapped.pid = name, (pool, raw), os.getpid()
        self._streams += 1
        pools.slots().streams.add(wrapped)
        return wrapped

    def stream_ended(self, pool: Pool, connection: Connection, discard: bool = False) -> None:
        """Takes back the connection of a server-side cursor."""
        self._streams -= 1
        (pool.discard if discard else pool.give_back)(connection)

    def _on(self, connection: Connection, name: str | None) -> Any:
        """A cursor of psycopg on this connection."""
        mine, self.connection = self.connection, connection
        try:
            return self.create_cursor(name)
        finally:
            self.connection = mine

    def rendered(self, sql: Any) -> Any:
        """The SQL with this shard's schema in place of `{shard}`, its number of `{shard_id}`."""
        if not isinstance(sql, str):
            sql = sql.as_string(self.connection)
        self.take_layout()
        return render(sql, self.schema, self.shard)

    # --------------------------------------------------------------------------
    # moves

    def run(
        self, cursor: Any, sql: str, execute: Callable[[], Any], repeatable: bool = True
    ) -> Any:
        """Runs a statement. Runs it again if the shard has moved and that is safe.

        Raises `ShardMoved` if it is not safe, and `ShardUnavailable` if the shard could not be used
        in time.
        """
        recovery: Recovery | None = None
        if not sql.startswith("SELECT "):
            if is_write(sql):
                check_covered(self.alias)
            self.has_written = self.has_written or self._counts
        self._ready(cursor)
        while True:
            if self.follows_layout:
                self._check_layout(cursor)
            began = time.monotonic()
            if self._own is not None and self._sent == 0:
                self._began = began
            try:
                # The shards of tests do not move. The schema is left out, so that what is found is
                # kept once for all shards.
                if self._defers or not asks_about_names(
                    sql if self.is_unsharded else sql.replace(self.schema, HOLE)
                ):
                    result = execute()
                else:
                    recovery = recovery or Recovery(cluster().recovery_context, self.shard)
                    believed, result = self._believed(
                        cursor, sql, execute, recovery, began, repeatable
                    )
                    if not believed:
                        continue
            except DatabaseError as error:
                if isinstance(error, (ShardMoved, ShardUnavailable)):
                    raise
                cause = error.__cause__
                how = met(getattr(cause, "sqlstate", None), _message(cause))
                repeatable = repeatable and may_repeat(sql) and not _several(sql)
                first = self._own is None or self._sent == 0 or cursor.stream is not None
                if how is None:
                    self._lost(cursor, error)
                    if getattr(cause, "sqlstate", None) == READ_ONLY and self._is_on_standby(
                        cursor
                    ):
                        recovery = recovery or Recovery(cluster().recovery_context, self.shard)
                        self._failed_over(cursor, recovery, first and repeatable, began, error)
                        continue
                    self._count()
                    raise
                if not (first and repeatable):
                    self._count()
                    self._refuse(how, began, error)
                    raise
                recovery = recovery or Recovery(cluster().recovery_context, self.shard)
                if not self._recovered(cursor, recovery, how, began):
                    self._count()
                    raise
                continue
            self._count()
            if self._own is None and not sql.startswith("SELECT "):
                self.kept += 1
            shared = self.connection if self._own is None and cursor.stream is None else None
            if shared is not None and shared.pgconn.transaction_status != _IDLE:
                self._refuse_to_begin()
            return result

    def _believed(
        self,
        cursor: Any,
        sql: str,
        execute: Callable[[], Any],
        recovery: Recovery,
        began: float,
        repeatable: bool,
    ) -> tuple[bool, Any]:
        """Runs a statement that a signpost would answer without an error, and finds out from the
        host whether it served the shard. The first value is False if it did not, no effect of the
        statement stays, and the statement is worth another try.
        """
        repeatable = repeatable and may_repeat(sql) and not _several(sql)
        if self._own is not None or cursor.stream is not None or not repeatable:
            result = execute()
            if repeatable and (self._sent == 0 or cursor.stream is not None):
                return not self._recovered(cursor, recovery, MoveSignal.RELATIVE, began), result
            self._refuse(MoveSignal.RELATIVE, began, None)
            return True, result
        with self.wrap_database_errors:
            self.connection.execute("BEGIN", prepare=False)
        try:
            result = execute()
            if self._recovered(cursor, recovery, MoveSignal.RELATIVE, began):
                return False, None
            with self.wrap_database_errors:
                self.connection.execute("COMMIT", prepare=False)
        except BaseException:
            if self.connection is not None and not self.connection.closed:
                with self.wrap_database_errors:
                    self.connection.execute("ROLLBACK", prepare=False)
            raise
        return True, result

    def _count(self) -> None:
        self._sent += self._counts

    def _ready(self, cursor: Any) -> None:
        """Makes sure that the cursor is on this object's connection: another alias may have taken
        the one it began on."""
        if cursor.stream is None:
            if (
                BaseDatabaseWrapper.ensure_connection is not _ENSURE_CONNECTION
                or not self._is_attached()
            ):
                self.ensure_connection()
            if (
                self._own is not None
                and self._sent
                and cluster().directory.epoch(self.shard) > self._place.epoch
            ):
                # The transaction can only have read so far, because a write would have kept the
                # shard where it is. What it reads next could be the old copy, through a plan that
                # was made before.
                self._moved(MoveSignal.SIGNPOST, self._began)
            if cursor.cursor.connection is not self.connection:
                cursor.cursor = self._on(self.connection, cursor.server_side_name)

    def _refuse_to_begin(self) -> NoReturn:
        """For SQL that began a transaction on the connection that the thread's aliases share."""
        self._drop_shared()
        begin = f'transaction.atomic(using="{self.alias}")'
        raise ProgrammingError(
            f"the statement began a transaction, which was rolled back: use {begin}"
        )

    def _drop_shared(self) -> None:
        held = pools.slots().shared.pop(self._place.host, None)
        if held is not None:
            held[0].discard(held[1])
        self.connection = None

    def _refuse(self, how: MoveSignal, began: float, error: BaseException | None) -> None:
        """Raises `ShardMoved`, unless the error or the answer is the application's own. Raises
        `InDoubt` if that cannot be known, and something of the statement may stay."""
        since = self._began if self._own is not None else began
        try:
            with translate_errors():
                if Recovery(cluster().recovery_context, self.shard).is_own(how, self._place, since):
                    return
        except OperationalError as unknown:
            if self._own is not None:
                self.ended = unknown  # Code that catches this must not commit an unknown state.
                raise
            self.kept += 1
            raise InDoubt(
                "whether the shard was served during a statement, which may have taken effect:"
                f" {unknown}"
            ) from unknown
        self._moved(how, since, error)

    def _moved(self, how: MoveSignal, since: float, error: BaseException | None = None) -> NoReturn:
        whole = self._own is not None
        if whole:
            words = "a transaction was open: nothing of it stays, so run all of it again"
        else:
            words = (
                "a statement ran that is not repeated, because a part of it may have taken effect"
            )
        moved = ShardMoved(f"shard {self.shard} was moved, or closed for a move, while {words}")
        moved.met_move(self.shard, how, self._place, since, whole)
        if whole:
            self.ended = moved
        else:
            self.kept += 1
        raise moved from error

    def _lost(self, cursor: Any, error: DatabaseError) -> None:
        """If the error is that of a lost connection, raises one that reports the outcome of the
        statement."""
        if not is_lost(error.__cause__, cursor.cursor.connection):
            return
        host = f"the connection to host {self._place.host} was lost"
        if self._own is not None and cursor.stream is None:
            self.ended = ConnectionLost(
                f"{host} in a transaction: nothing has taken effect: {error}"
            )
            raise self.ended from error
        if cursor.stream is None:
            self._drop_shared()
        self.kept += 1
        raise InDoubt(
            f"{host} while a statement was on its way, which may have taken effect: {error}"
        ) from error

    def fetch_failed(self, cursor: Any, error: DatabaseError) -> None:
        """Rows of a statement that ran before could not be fetched. Raises another error if the
        connection was lost."""
        if cursor.stream is not None or cursor.cursor.connection is self.connection:
            self._lost(cursor, error)

    def _is_on_standby(self, cursor: Any) -> bool:
        """Whether a server that refused to write is a standby. Otherwise the transaction is
        read-only by choice."""
        connection = cursor.cursor.connection
        identity = connection.server.identity
        if identity is not None and identity.timeline is None:
            return True
        try:
            if connection.pgconn.transaction_status == TransactionStatus.IDLE:
                return is_standby(connection)
            # Behind a pooler the server may be another one by now. The transaction has failed, so
            # it cannot query that.
            return cluster().recovery_context.questions(self._place.host).control.run(is_standby)
        except (psycopg.Error, core.PgshardError):
            return False

    def _failed_over(
        self, cursor: Any, recovery: Recovery, again: bool, began: float, error: DatabaseError
    ) -> None:
        """Goes to the server that is the primary now, after a statement found that this one is a
        standby."""
        if again:
            self._recovered(cursor, recovery, None, began)
            return
        where = f"the server of host {self._place.host} is a standby since a fail-over"
        moved = ShardMoved(
            f"{where}: nothing of the transaction has taken effect: run all of it again"
        )
        moved.met_move(self.shard, None, self._place, self._began, self._own is not None)
        if self._own is not None:
            self.ended = moved
        else:
            self._drop_shared()
        raise moved from error

    def _recovered(
        self, cursor: Any, recovery: Recovery, how: MoveSignal | None, began: float
    ) -> bool:
        """Waits until the statement is worth another try, and prepares the cursor for it; False if
        it is not worth one. `how` is None if the statement met a standby."""
        given_back: list[bool] = []

        def give_back() -> None:
            if not given_back:
                given_back.append(True)
                self._let_go(cursor)

        try:
            with self.wrap_database_errors, translate_errors():
                if how is None:
                    give_back()
                    recovery.failed_over(self._place)
                elif not recovery.after(how, self._place, began, give_back):
                    return False
                self._resume(cursor)
        except BaseException:
            if given_back and self._own is not None and cursor.stream is None:
                # The same as Django's close() does within a transaction.
                self.closed_in_transaction = self.needs_rollback = self.in_atomic_block
                self.connection = None
            raise
        self.errors_occurred = False
        return True

    def _let_go(self, cursor: Any) -> None:
        """Closes the connection before anything is waited for, because its session may remember a
        signpost."""
        if cursor.stream is not None:
            pool, connection = cursor.stream
            pool.discard(connection)
        elif self._own is not None:
            self._own.discard(self.connection)
        else:
            self._drop_shared()

    def _resume(self, cursor: Any) -> None:
        """Puts the cursor on a connection to the host where the shard is now. A transaction begins
        again there."""
        if cursor.stream is not None:
            self._place = cluster().directory.place(self.shard)
            pool = self._pool(self._place.host)
            cursor.stream = (pool, self._taken(pool))
            cursor.cursor = self._on(cursor.stream[1], cursor.server_side_name)
            return
        if self._own is not None:
            self._begin_anew()
            for sid in self._savepoints:
                self.connection.execute(self.ops.savepoint_create_sql(sid))
        else:
            self._attach()
        cursor.cursor = self._on(self.connection, cursor.server_side_name)

    def _begin_anew(self) -> None:
        """Begins a transaction on a new connection, where the shard is now."""
        self._place = cluster().directory.place(self.shard)
        self._own = self._pool(self._place.host)
        self.connection = self._taken(self._own)
        self.connection.autocommit = False

    @contextmanager
    def copying(self, cursor: Any, statement: str) -> Iterator[None]:
        """For a COPY, which is never repeated."""
        if is_write(statement):
            check_covered(self.alias)
            self.has_written = True
        self._ready(cursor)
        if self.follows_layout:
            self._check_layout(cursor)
        began = time.monotonic()
        if self._own is not None and self._sent == 0:
            self._began = began
        self._count()
        try:
            with self.wrap_database_errors:
                yield
            self.kept += self._own is None
        except DatabaseError as error:
            how = met(getattr(error.__cause__, "sqlstate", None), _message(error.__cause__))
            if how is not None:
                self._refuse(how, began, error)
            raise

    # --------------------------------------------------------------------------
    # transactions

    def _commit(self) -> None:
        if self.ended is not None:
            # The application continued after the error was raised. Nothing of the transaction may
            # count as done.
            ended = self.ended
            self._rollback()
            raise ended
        closed = self.connection is None or self.connection.closed
        try:
            super()._commit()
        except DatabaseError as error:
            if closed or is_lost(error.__cause__, self.connection):
                host = f"the connection to host {self._place.host} was lost"
                if closed:
                    self.ended = ConnectionLost(
                        f"{host} before COMMIT: nothing has taken effect: {error}"
                    )
                else:
                    self.ended = InDoubt(
                        f"{host} during COMMIT, which may have taken effect: {error}"
                    )
                raise self.ended from error
            # A trigger or a constraint that is deferred to the commit raised the error.
            how = met(getattr(error.__cause__, "sqlstate", None), _message(error.__cause__))
            if how is not None:
                self._refuse(how, self._began, error)
            raise
        self.kept += 1
        self._over()

    def _rollback(self) -> None:
        try:
            super()._rollback()
        except DatabaseError:
            if self.ended is None:
                raise  # Otherwise the connection was lost, and with it the transaction.
        finally:
            self._over()

    def _over(self) -> None:
        """The transaction has ended. If it was begun by hand, the next one follows."""
        self._sent, self._savepoints, self.has_written = 0, [], False
        if self.ended is not None:
            self.ended = None
            if self._own is not None and self.connection is not None:
                # It is closed, or its session has met a signpost, which it may remember.
                self._own.discard(self.connection)
                self.connection = None

    def has_transaction(self) -> bool:
        """Whether a transaction is open, by `atomic` or by hand."""
        return self.in_atomic_block or (self._own is not None and self.connection is not None)

    def has_failed(self) -> bool:
        """Whether a statement of the transaction failed and no savepoint has undone that: COMMIT
        would roll back."""
        return (
            self.connection is not None
            and self.connection.pgconn.transaction_status == TransactionStatus.INERROR
        )

    def will_roll_back(self) -> bool:
        """Whether the end of the transaction, or of its innermost savepoint, will be a rollback
        that Django does not announce."""
        return self.needs_rollback or self.closed_in_transaction or self.has_failed()

    def _savepoint(self, sid: str) -> None:
        watched = self.queries_logged or self.execute_wrappers
        if self._is_deferred() and not self._savepoints and not watched:
            self._outermost = sid
        else:
            with self._uncounted():
                super()._savepoint(sid)
        self._savepoints.append(sid)

    def _savepoint_rollback(self, sid: str) -> None:
        if sid == self._outermost:
            self._take_back()
        else:
            with self._uncounted():
                super()._savepoint_rollback(sid)
        if sid in self._savepoints:
            del self._savepoints[self._savepoints.index(sid) + 1 :]

    def _savepoint_commit(self, sid: str) -> None:
        if sid == self._outermost:
            self._outermost = None
        else:
            with self._uncounted():
                super()._savepoint_commit(sid)
        if sid in self._savepoints:
            del self._savepoints[self._savepoints.index(sid) :]

    @contextmanager
    def _uncounted(self) -> Iterator[None]:
        self._counts = False
        try:
            yield
        finally:
            self._counts = True

    # --------------------------------------------------------------------------
    # schemas

    def prepare_database(self) -> None:
        """Refuses `manage.py migrate --database shard-N`, which would create Django's own tables in
        the host's `public`."""
        refuse(self.alias)

    def schema_editor(self, *args: Any, **kwargs: Any) -> Any:
        """Refuses: all shards are changed together, by files that `pgshard migrate up` runs."""
        refuse(self.alias)


def _message(error: BaseException | None) -> str:
    return (error.diag.message_primary or "") if isinstance(error, psycopg.Error) else ""


def _several(sql: str) -> bool:
    """Whether the text may hold several statements, some of which may have taken effect: it has a
    semicolon before its end."""
    return ";" in sql.rstrip().rstrip(";")
