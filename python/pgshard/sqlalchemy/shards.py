"""The shards of an application: an engine for each host, and transactions that are run again as a
whole when their shard moves.

Invariant: a transaction is committed only if none of its statements was answered by a signpost,
even if `work` did not notice; COMMIT is sent once; and what a failed transaction has made of an
object does not pass for stored.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import os
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NoReturn, TypeVar

import psycopg
from psycopg.pq import TransactionStatus
from sqlalchemy import BigInteger, Column, Connection, Engine, FetchedValue, TypeDecorator, event
from sqlalchemy import create_engine as _create_engine
from sqlalchemy import inspect as _inspect
from sqlalchemy.dialects import postgresql
from sqlalchemy.exc import DBAPIError, DisconnectionError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession
from sqlalchemy.ext.asyncio import create_async_engine as _create_async_engine
from sqlalchemy.orm import (
    MappedColumn,
    Mapper,
    PassiveFlag,
    Session,
    SessionTransaction,
    mapped_column,
)
from sqlalchemy.orm.attributes import set_attribute, set_committed_value
from sqlalchemy.orm.base import NO_VALUE

from ..connect import connect
from ..connection import HostConnection, is_lost, is_standby
from ..directory import Directory
from ..errors import ConfigError, LegacyId, PgshardError, WrongId, WrongKey
from ..hosts import Host
from ..map import Placement
from ..pool import WAIT_MAX, is_alive
from ..recovery import RETRY_FOR, Recovery, RecoveryContext
from ..stale import MoveSignal, asks_about_names, met
from ..template import render
from .written import ID, KEY, REFERS, Unclear, Written, is_expression, mark, written

T = TypeVar("T")
log = logging.getLogger("pgshard")

SCHEMA = "shard"
"""The schema of sharded tables in models: `MetaData(schema=SCHEMA)`."""
_ATTEMPT = "pgshard_attempt"
_MADE_BY, _FROM = "pgshard run", "pgshard shard"
_AS_IT_IS = PassiveFlag.PASSIVE_NO_INITIALIZE | PassiveFlag.INCLUDE_PENDING_MUTATIONS
_READ_ONLY = "25006"
_DIALECT = postgresql.dialect()  # type: ignore[no-untyped-call]
_WAITERS_MAX = 32
"""How many threads asyncio calls may use while they wait for a move to end, or connect. Further
calls wait for a thread."""


class WrongShard(PgshardError):
    """An object belongs on another shard than the transaction's, by its key or its ID. Nothing of
    the transaction was kept."""


class InDoubt(PgshardError):
    """The connection was lost while COMMIT was on its way: the transaction may have taken effect,
    or may not."""


class TransactionFailed(PgshardError):
    """A statement failed and `work` continued without a savepoint, or `work` ended its transaction:
    what it did is rolled back, whatever COMMIT returns."""


class NotRepeatable(PgshardError):
    """A transaction would have to be run again, and an object from outside of `work` prevents it: a
    second run would lose its changes, or write rows of the first. Nothing of the transaction was
    kept."""


class ShardMoved(PgshardError):
    """The shard has moved since the transaction began. It is raised within `work`, which is then
    run again, so `run` never raises it."""


def shard_id(**options: Any) -> MappedColumn[Any]:
    """The primary key, an ID that the shard makes. Its column is
    `bigint DEFAULT {shard}.next_id() PRIMARY KEY`."""
    return mapped_column(
        BigInteger, primary_key=True, server_default=FetchedValue(), info={ID: True}, **options
    )


def shard_key(*args: Any, **options: Any) -> MappedColumn[Any]:
    """The sharding key. A session refuses an object with a key, ID or reference to another row that
    belongs to another shard."""
    return mapped_column(*args, info={KEY: True}, **options)


class _Earlier:
    """What the runs of one call leave to the next."""

    def __init__(self) -> None:
        self.runs: set[object] = set()
        self.changes: dict[int, tuple[object, dict[str, Any]]] = {}
        """By its number in memory: an object from outside, and what it came with and that was not
        stored yet."""


class _Attempt:
    """One transaction on one shard, as its connection's events see it."""

    def __init__(self, recovery_context: RecoveryContext, shard: int, earlier: _Earlier) -> None:
        self.recovery_context = recovery_context
        self.shard = shard
        self.run = object()
        self._earlier = earlier
        self._checked: object = None
        self._came: list[tuple[object, dict[str, Any], dict[str, Any]]] = []
        self._changed: object = None
        self.began = time.monotonic()
        self.place: Placement = recovery_context.directory.place(shard)
        self.schema = recovery_context.directory.schema(shard)
        self.met: MoveSignal | None = None
        self.read_only = False
        self._sent = 0
        self._ended = False
        self.answered = False
        """Whether a statement has succeeded, so that the server has a transaction."""

    @property
    def options(self) -> dict[str, Any]:
        """The execution options of its connection."""
        return {"schema_translate_map": {SCHEMA: self.schema}, _ATTEMPT: self}

    def _look_for_the_end(self, driver: Any) -> None:
        """SQLAlchemy does not see that a text, or the driver, ends a transaction. The next
        statement begins another."""
        if (
            self.answered
            and driver is not None
            and driver.pgconn.transaction_status == TransactionStatus.IDLE
        ):
            self._ended = True

    def before(self, sql: str, driver: Any) -> str:
        """Called before a statement is sent. Returns the SQL to send."""
        self._look_for_the_end(driver)
        if self._sent and self.recovery_context.directory.epoch(self.shard) > self.place.epoch:
            # The transaction can only have read so far, because a write would have kept the shard
            # where it is. What it reads next could be the old copy, through a plan that was made
            # before.
            self.met = MoveSignal.SIGNPOST
            raise ShardMoved(f"shard {self.shard} has moved since the transaction began")
        self._sent += 1
        if asks_about_names(sql):
            # This counts only if the host reports that it served the shard.
            self.met = self.met or MoveSignal.RELATIVE
        return render(sql, self.schema, self.shard)

    def failed(self, error: BaseException | None) -> None:
        """A statement failed."""
        if not isinstance(error, psycopg.Error):
            return
        how = met(error.sqlstate, error.diag.message_primary or "")
        self.met = self.met if self.met is MoveSignal.SIGNPOST else how or self.met
        self.read_only = self.read_only or error.sqlstate == _READ_ONLY

    def check(self, one: object) -> None:
        """Refuses an object that belongs to another shard. Raises `WrongShard`."""
        state = _inspect(one)
        values = dict(state.dict)
        if state.key is not None:
            # An object that has expired has only this.
            primary = (
                state.mapper.get_property_by_column(column).key
                for column in state.mapper.primary_key
            )
            values = {**dict(zip(primary, state.key[1])), **values}
        for attribute in state.mapper.column_attrs:
            value = values.get(attribute.key)
            if value is None or is_expression(value):
                # An expression is looked at with its statement.
                continue
            for column in attribute.columns:
                what = mark(column)
                if what is not None:
                    self._is_here(f"{type(one).__name__}.{attribute.key}", column, what, value)

    def check_statement(self, context: Any) -> None:
        """Refuses a statement that would write what belongs to another shard. `context` is
        SQLAlchemy's, with all rows of the statement. Raises `WrongShard`."""
        if context is self._checked:
            # The next part of the rows.
            return
        self._checked = context
        try:
            values = written(getattr(context, "compiled", None))
        except Unclear as column:
            raise WrongShard(
                f"{column} would get the value of an expression, and nobody can tell whether it is"
                f" of shard {self.shard}, which the transaction is on: give a value, or a column of"
                " the same kind, or write the whole statement as text"
            ) from None
        for value in values:
            self._check_value(value, context.compiled_parameters)

    def _check_value(self, one: Written, rows: list[Any]) -> None:
        for row in rows:
            value = one.of(row)
            if value is not None:
                self._is_here(
                    f"{one.column.table.name}.{one.column.name}", one.column, one.mark, value
                )

    def _is_here(self, name: str, column: Any, what: str, value: Any) -> None:
        if isinstance(column.type, TypeDecorator):
            # The application's type: what it makes of the value is the key, or the ID.
            value = column.type.process_bind_param(value, _DIALECT)
        directory = self.recovery_context.directory
        # The server takes a text for a number, and for a UUID.
        if what == ID:
            try:
                shard = directory.shard_of_id(int(value) if isinstance(value, str) else value)
            except LegacyId:
                return  # It names no shard. The key that the transaction is for does.
        else:
            shard = (
                directory.shard_of_text(value)
                if isinstance(value, str)
                else directory.shard_of_key(value)
            )
        if shard != self.shard:
            raise WrongShard(
                f"{name} is of shard {shard}, and the transaction is on shard {self.shard}: a row"
                " does not change its shard, make a new one there and delete this one"
            )

    def attach(self, one: object) -> None:
        """Called before an object comes into the session. Raises `WrongShard` and
        `NotRepeatable`."""
        state = _inspect(one)
        if state.info.get(_MADE_BY) in self._earlier.runs:
            raise NotRepeatable(
                f"an earlier run of `work` on shard {self.shard} made this {type(one).__name__},"
                " and an object from outside of `work` brings it into this run, which has made its"
                " own: make that object within `work`, too, or load it there"
            )
        if state.key is None:
            # Its values may not be there yet. It is looked at as it is flushed.
            return
        self.check(one)
        came_from = state.info.get(_FROM, self.shard)
        if came_from != self.shard:
            raise WrongShard(
                f"this {type(one).__name__} is of shard {came_from}, and the transaction is on"
                f" shard {self.shard}: session.merge() makes a copy of it there"
            )
        values = {
            name.key: state.dict[name.key]
            for name in state.mapper.column_attrs
            if name.key in state.dict
        }
        _, expected = self._earlier.changes.get(id(one), (one, {}))
        if any(values.get(name) != value for name, value in expected.items()):
            # As by `photo.likes += 1`.
            raise self._not_repeatable(one)
        self._came.append((one, values, dict(state.committed_state)))
        if not all(self._is_repeatable(state, name, values) for name in state.committed_state):
            self._changed = one

    def _is_repeatable(self, state: Any, name: str, values: dict[str, Any]) -> bool:
        """Whether what an attribute has changed to can be put back after a rollback. Of relations
        only that can which comes again by itself, because objects that this run made refer to this
        one; and a value that changes in place does not show that `work` has changed it."""
        if name not in state.mapper.relationships:
            return name in values and isinstance(values[name], Hashable)
        history = state.get_history(name, _AS_IT_IS)
        return not history.deleted and all(
            _inspect(one).info.get(_MADE_BY) is self.run for one in history.added
        )

    def put_back(self) -> None:
        """Called after a rollback, which has made the session's objects forget their values: those
        that came from outside get back what they had, and what of it was not stored."""
        for one, values, before in self._came:
            for name, value in values.items():
                if before.get(name) is not NO_VALUE:
                    set_committed_value(one, name, before.get(name, value))
                if name in before:
                    set_attribute(one, name, value)

    def again(self) -> None:
        """Called before `work` is run again. Raises `NotRepeatable`."""
        if self._changed is not None:
            raise self._not_repeatable(self._changed)
        self._earlier.runs.add(self.run)
        for one, values, before in self._came:
            self._earlier.changes[id(one)] = (
                one,
                {name: values[name] for name in before if name in values},
            )

    def _not_repeatable(self, one: object) -> NotRepeatable:
        return NotRepeatable(
            f"the transaction on shard {self.shard} must be run again, because the shard has moved"
            f" or its host failed over, and cannot: a {type(one).__name__} had changed before it"
            " was added to the session, and a second run would lose that, or do it twice; change"
            " it after it was added, or use session.merge()"
        )

    def before_commit(self, driver: Any, is_active: bool) -> None:
        """Called after `believe`. Raises `TransactionFailed` if a statement has failed without a
        savepoint, or `work` has ended the transaction."""
        self._look_for_the_end(driver)
        if self._ended or not is_active:
            raise TransactionFailed(
                f"`work` ended its transaction on shard {self.shard} (session.rollback() or"
                " close(), a flush that failed, or the text ROLLBACK or COMMIT): what it did is"
                " rolled back, unless it said COMMIT; raise an error instead, or use `with"
                " session.begin_nested()`"
            )
        if driver is not None and driver.pgconn.transaction_status == TransactionStatus.INERROR:
            raise TransactionFailed(
                f"a statement on shard {self.shard} failed and `work` went on without a savepoint:"
                " what it did is rolled back; catch errors outside of `with"
                " session.begin_nested()`"
            )

    def believe(self) -> None:
        """Called before the COMMIT of a transaction that met something: queries the host to find
        out whether that was the application's own.

        Raises `ShardMoved`.
        """
        own = Recovery(self.recovery_context, self.shard).is_own(
            MoveSignal.RELATIVE, self.place, self.began
        )
        if self.met is MoveSignal.SIGNPOST or not own:
            raise ShardMoved(
                f"shard {self.shard} was moved, or closed for a move, during the transaction"
            )
        self.met = None

    def is_worth_another_try(self, recovery: Recovery) -> bool:
        """Called after the transaction was rolled back: waits until it may be run again, perhaps
        for seconds. False immediately if it met an error of the application's own."""
        if self.met is not None:
            return recovery.after(self.met, self.place, self.began)
        if self.read_only:
            try:
                standby = self.recovery_context.questions(self.place.host).control.run(is_standby)
            except psycopg.Error:
                return False
            if standby:
                recovery.failed_over(self.place)
            return standby
        return False


def _listen(engine: Engine) -> None:
    """Lets the attempts see what happens on the engine's connections."""

    @event.listens_for(engine, "before_cursor_execute", retval=True)
    def before(
        connection: Connection, cursor: Any, sql: str, parameters: Any, context: Any, many: bool
    ) -> Any:
        attempt = connection.get_execution_options().get(_ATTEMPT)
        if attempt is None:
            return sql, parameters
        attempt.check_statement(context)
        return attempt.before(sql, _driver(connection)), parameters

    @event.listens_for(engine, "after_cursor_execute")
    def after(
        connection: Connection, cursor: Any, sql: str, parameters: Any, context: Any, many: bool
    ) -> None:
        attempt = connection.get_execution_options().get(_ATTEMPT)
        if attempt is not None:
            attempt.answered = True

    @event.listens_for(engine, "handle_error")
    def failed(context: Any) -> None:
        connection = context.connection
        attempt = None if connection is None else connection.get_execution_options().get(_ATTEMPT)
        if attempt is not None:
            attempt.failed(context.original_exception)
        if isinstance(context.original_exception, psycopg.Error) and connection is not None:
            # SQLAlchemy recognizes a lost connection by the text of its error.
            driver = _driver(connection)
            if driver is not None and is_lost(context.original_exception, driver):
                context.is_disconnect, context.invalidate_pool_on_disconnect = True, False

    @event.listens_for(engine, "checkout")
    def checked_out(dbapi: Any, record: Any, proxy: Any) -> None:
        driver = getattr(dbapi, "driver_connection", dbapi)
        if not is_alive(getattr(driver, "linked", driver)):
            raise DisconnectionError("it ended while it was idle")


def _driver(connection: Connection) -> Any:
    """psycopg's connection; None if there is none any more."""
    return (
        None
        if connection.invalidated or connection.closed
        else connection.connection.driver_connection
    )


@event.listens_for(Mapper, "before_insert")
@event.listens_for(Mapper, "before_update")
@event.listens_for(Mapper, "before_delete")
def _check(mapper: Any, connection: Connection, one: object) -> None:
    """Called for each object that is about to be written, on whatever connection. Not before the
    flush: a reference that is given as an object gets its value in it."""
    attempt = connection.get_execution_options().get(_ATTEMPT)
    if attempt is not None:
        attempt.check(one)


@event.listens_for(Mapper, "mapper_configured")
def _note_references(mapper: Any, of: type) -> None:
    """A relationship may refer to rows without a constraint: the column that it fills is a
    reference, too."""
    for relation in mapper.relationships:
        if not relation.viewonly:
            for source, column in (
                *relation.synchronize_pairs,
                *(relation.secondary_synchronize_pairs or ()),
            ):
                if mark(column) is None and isinstance(source, Column):
                    column.info[REFERS] = source


_running: contextvars.ContextVar[_Attempt | None] = contextvars.ContextVar(
    "pgshard_attempt", default=None
)


@event.listens_for(Mapper, "init")
def _made(one: object, args: Any, kwargs: Any) -> None:
    attempt = _running.get()
    if attempt is not None:
        _inspect(one).info[_MADE_BY] = attempt.run


class _Session(Session):
    """The session of one attempt."""

    @property
    def attempt(self) -> _Attempt:
        """It is with the session's connection."""
        assert isinstance(self.bind, Connection), "it was made for a connection"
        found: _Attempt = self.bind.get_execution_options()[_ATTEMPT]
        return found

    def begin(self, nested: bool = False) -> SessionTransaction:
        """A savepoint, if `nested`. Raises `TransactionFailed` otherwise: `run` has begun the
        transaction."""
        if not nested:
            _refuse_to_end("begin")
        return super().begin(nested)

    def commit(self) -> None:
        """Raises `TransactionFailed`: nothing would be committed yet."""
        _refuse_to_end("commit")


def _refuse_to_end(name: str) -> NoReturn:
    raise TransactionFailed(
        f"session.{name}() within `run`, which commits when `work` has returned: nothing is"
        " committed before. Use session.flush() to send what was changed, session.begin_nested()"
        " for a savepoint, and a `run` for each transaction"
    )


@event.listens_for(_Session, "before_attach")
def _attach(session: _Session, one: object) -> None:
    session.attempt.attach(one)


_tells: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()
"""For each mapper, whether its objects identify their shard."""


@event.listens_for(_Session, "loaded_as_persistent")
@event.listens_for(_Session, "pending_to_persistent")
def _note_shard(session: _Session, one: object) -> None:
    """An object may have no column that identifies its shard. Most have one, and this runs for each
    row."""
    state = _inspect(one)
    tells = _tells.get(state.mapper)
    if tells is None:
        tells = _tells[state.mapper] = any(
            mark(column) is not None and not column.nullable for column in state.mapper.columns
        )
    if not tells:
        state.info[_FROM] = session.attempt.shard


@event.listens_for(_Session, "persistent_to_transient")
def _is_new_again(session: _Session, one: object) -> None:
    """Called for an object that was inserted, after its transaction, or savepoint, was rolled back.
    For SQLAlchemy the rows that link it to others are still there, and adding it again would not
    write them."""
    state = _inspect(one)
    state.info.pop(_FROM, None)
    for relation in state.mapper.relationships:
        if relation.key in state.dict and not relation.viewonly:
            state.committed_state[relation.key] = NO_VALUE


class _Engines:
    """What both kinds of shards share: the directory, and an engine for each host, made at its
    first use."""

    def __init__(
        self, directory: Directory, *, retry_for: float = RETRY_FOR, **options: Any
    ) -> None:
        """`options` are for SQLAlchemy's `create_engine`, such as `echo`. Raises `ConfigError` if
        the shards are on an unsharded host, where sessions do not work yet."""
        if directory.unsharded is not None:
            self._refuse(directory, directory.unsharded)
        for given in (options, options.get("execution_options", {})):
            if given.get("isolation_level") == "AUTOCOMMIT":
                raise ValueError(
                    "isolation_level is AUTOCOMMIT, and what `run` does must be a transaction:"
                    " leave it out"
                )
        self.directory = directory
        self._recovery_context = RecoveryContext(directory, retry_for)
        self._options = options
        self._met: set[str] = set()
        self._forget()
        _all.add(self)

    def _forget(self) -> None:
        self._lock = threading.Lock()
        self._engines: dict[str, Any] = {}

    @staticmethod
    def _refuse(directory: Directory, host: Host) -> NoReturn:
        raise ConfigError(
            str(directory.config.path),
            [
                f"host {host.name} is unsharded: sessions of SQLAlchemy work on shards only, and"
                " nothing is sent there"
            ],
        )

    @classmethod
    def open(cls, path: str | os.PathLike[str] | None = None, **options: Any) -> Any:
        """The shards of a config file; if no file is given, of the one that `Config.find` finds."""
        return cls(Directory.open(path), **options)

    def _connected(self, host: Host) -> HostConnection:
        named: dict[str, Any] = {} if host.named else {"prepare_threshold": None}
        connection = connect(host, **named)
        if host.name not in self._met:
            try:
                self.directory.meet(connection, host)
            except BaseException:
                connection.close()
                raise
            self._met.add(host.name)
        return connection

    def _engine(self, name: str) -> Any:
        found = self._engines.get(name)
        if found is None:
            host = self.directory.host(name)
            if host.whole is not None:
                self._refuse(self.directory, host)
            options = {
                "pool_size": host.pool_size,
                "max_overflow": 0,
                "pool_timeout": WAIT_MAX,
                "pool_use_lifo": True,
            }
            made = self._made(host, {**options, **self._options})
            with self._lock:
                found = self._engines.setdefault(name, made)
        return found

    def _made(self, host: Host, options: dict[str, Any]) -> Any:
        raise NotImplementedError


class Shards(_Engines):
    """The shards of a cluster. All threads of a process may use it, and so may the children of a
    fork."""

    def _made(self, host: Host, options: dict[str, Any]) -> Engine:
        def creator() -> HostConnection:
            connection = self._connected(host)
            connection.autocommit = False
            return connection

        engine = _create_engine("postgresql+psycopg://", creator=creator, **options)
        _listen(engine)
        return engine

    def run(self, key: object, work: Callable[[Session], T]) -> T:
        """Runs `work` in a transaction on the key's shard, and runs it again as a whole if the
        shard moves during it. The commit comes at the end; `work` may use savepoints, and must have
        no effect elsewhere that may not happen twice.

        Raises what `work` raises, `ShardUnavailable`, `WrongShard`, `InDoubt`, `TransactionFailed`,
        and SQLAlchemy's `DBAPIError`s; if the host is out of reach, their `orig` is
        `HostUnreachable`.
        """
        return self.run_on(self.directory.shard_of_key(key), work)

    def run_by_id(self, id: int, work: Callable[[Session], T]) -> T:
        """The same as `run`, on the shard of an ID. Also raises `WrongId`."""
        return self.run_on(self.directory.shard_of_id(id), work)

    def run_on(self, shard: int, work: Callable[[Session], T]) -> T:
        """The same as `run`, on the shard with this number."""
        recovery = Recovery(self._recovery_context, shard)
        earlier = _Earlier()
        while True:
            attempt = _Attempt(self._recovery_context, shard, earlier)
            try:
                return self._attempt(attempt, work)
            except Exception:
                if not attempt.is_worth_another_try(recovery):
                    raise
                attempt.again()

    def _attempt(self, attempt: _Attempt, work: Callable[[Session], T]) -> T:
        with self._engine(attempt.place.host).connect() as plain:
            connection = plain.execution_options(**attempt.options)
            try:
                begun = connection.begin()
                with _Session(
                    connection, join_transaction_mode="rollback_only", expire_on_commit=False
                ) as session:
                    outer = _running.set(attempt)
                    try:
                        result = work(session)
                        session.flush()
                        if attempt.met is not None:
                            attempt.believe()
                        attempt.before_commit(_driver(connection), begun.is_active)
                        _commit(begun.commit, attempt)
                    except BaseException:
                        _undo(session)
                        raise
                    finally:
                        _running.reset(outer)
                return result
            except BaseException:
                if attempt.met is not None and not connection.invalidated:
                    # Its session may remember a signpost.
                    connection.invalidate()
                raise

    def close(self) -> None:
        """Closes the connections that are not in use."""
        engines, self._engines = self._engines, {}
        for engine in engines.values():
            engine.dispose()
        self._recovery_context.close()

    def after_fork(self) -> None:
        """For the child of a fork: the connections belong to the parent. It is called
        automatically."""
        engines = self._engines
        self._forget()
        for engine in engines.values():
            engine.dispose(close=False)


def _undo(session: Any) -> None:
    """Takes from a session's objects what a transaction that failed has made of them. Closing the
    session would leave its new objects as if they were stored, and adding them again would write
    nothing."""
    try:
        session.rollback()
    except Exception as error:  # noqa: BLE001 # an earlier error matters more than a lost connection
        log.debug("a session's rollback failed: %s", error)
    session.attempt.put_back()


def _commit(commit: Callable[[], None], attempt: _Attempt) -> None:
    try:
        commit()
    except DBAPIError as error:
        raise _of_commit(error, attempt) from error


def _of_commit(error: DBAPIError, attempt: _Attempt) -> Exception:
    if error.connection_invalidated:
        return InDoubt(
            f"the connection to host {attempt.place.host} was lost during COMMIT: {error.orig}"
        )
    return error


class AsyncLinked(psycopg.AsyncConnection[Any]):
    """A connection for asyncio. `linked` opened it and queried the server's identity, and this
    object takes that connection over."""

    linked: HostConnection


class AsyncShards(_Engines):
    """The shards of a cluster, for asyncio. The tasks of one event loop may use it."""

    def _forget(self) -> None:
        super()._forget()
        self._executor = ThreadPoolExecutor(_WAITERS_MAX, thread_name_prefix="pgshard")

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)

    def _made(self, host: Host, options: dict[str, Any]) -> AsyncEngine:
        async def creator() -> AsyncLinked:
            linked = await self._in_thread(lambda: self._connected(host))
            connection = AsyncLinked(linked.pgconn)
            connection.linked = linked
            connection.prepare_threshold = linked.prepare_threshold
            return connection

        engine = _create_async_engine("postgresql+psycopg://", async_creator=creator, **options)
        _listen(engine.sync_engine)
        return engine

    async def run(self, key: object, work: Callable[[AsyncSession], Awaitable[T]]) -> T:
        """Runs `work` in a transaction on the key's shard, like `Shards.run`.

        If the task is cancelled before the end, nothing of the transaction stays, unless its COMMIT
        was on its way.
        """
        return await self.run_on(self.directory.shard_of_key(key), work)

    async def run_by_id(self, id: int, work: Callable[[AsyncSession], Awaitable[T]]) -> T:
        """The same as `run`, on the shard of an ID. Also raises `WrongId`."""
        return await self.run_on(self.directory.shard_of_id(id), work)

    async def run_on(self, shard: int, work: Callable[[AsyncSession], Awaitable[T]]) -> T:
        """The same as `run`, on the shard with this number."""
        recovery = Recovery(self._recovery_context, shard)
        earlier = _Earlier()
        while True:
            attempt = _Attempt(self._recovery_context, shard, earlier)
            try:
                return await self._attempt(attempt, work)
            except Exception:
                if attempt.met is None and not attempt.read_only:
                    raise
                again = await self._in_thread(partial(attempt.is_worth_another_try, recovery))
                if not again:
                    raise
                attempt.again()

    async def _attempt(self, attempt: _Attempt, work: Callable[[AsyncSession], Awaitable[T]]) -> T:
        async with self._engine(attempt.place.host).connect() as plain:
            connection: AsyncConnection = await plain.execution_options(**attempt.options)
            try:
                begun = await connection.begin()
                session = AsyncSession(
                    connection,
                    sync_session_class=_Session,
                    join_transaction_mode="rollback_only",
                    expire_on_commit=False,
                )
                async with session:
                    outer = _running.set(attempt)
                    try:
                        result = await work(session)
                        await session.flush()
                        if attempt.met is not None:
                            await self._in_thread(attempt.believe)
                        attempt.before_commit(await connection.run_sync(_driver), begun.is_active)
                        try:
                            await begun.commit()
                        except DBAPIError as error:
                            raise _of_commit(error, attempt) from error
                    except BaseException:
                        await session.run_sync(_undo)
                        raise
                    finally:
                        _running.reset(outer)
                return result
            except BaseException:
                if attempt.met is not None and not connection.invalidated:
                    # Its session may remember a signpost.
                    await connection.invalidate()
                raise

    async def close(self) -> None:
        """Closes the connections that are not in use."""
        engines, self._engines = self._engines, {}
        for engine in engines.values():
            await engine.dispose()
        await self._in_thread(self._recovery_context.close)

    def after_fork(self) -> None:
        """For the child of a fork: the connections and threads belong to the parent. It is called
        automatically."""
        abandoned.append(self._engines)
        self._forget()


abandoned: list[Any] = []
"""Objects that belong to the parent of this process. They must not be collected here, because that
would close their connections."""
_all: weakref.WeakSet[Any] = weakref.WeakSet()


def _after_fork() -> None:
    for one in list(_all):
        one.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)

__all__ = [
    "SCHEMA",
    "AsyncShards",
    "InDoubt",
    "NotRepeatable",
    "ShardMoved",
    "Shards",
    "TransactionFailed",
    "WrongId",
    "WrongKey",
    "WrongShard",
    "shard_id",
    "shard_key",
]
