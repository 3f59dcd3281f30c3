"""Cursors that notice moves. They are below users' `execute_wrapper`s, which see one call, and
above the driver."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import psycopg
from django.apps import apps
from django.db import DatabaseError, NotSupportedError
from django.db.backends.postgresql.base import CursorDebugWrapper
from django.db.backends.utils import CursorWrapper

from ...pool import Connection, Pool
from .sql import Compiled, check_tables

abandoned: list[Any] = []
"""Objects that belong to the parent of this process. They must not be collected here, because that
would close their connections."""


class _Moving:
    """What both kinds of cursors share. `self.cursor` is psycopg's; it is replaced when the shard
    gets another connection."""

    cursor: Any
    db: Any
    server_side_name: str | None = None
    """The name of a server-side cursor; None for any other."""
    stream: tuple[Pool, Connection] | None = None
    """The connection that a server-side cursor outside of transactions has for itself."""
    pid: int | None = None
    """The process that opened a server-side cursor."""
    made_for: str | None = None
    """The schema of the shard in the statement's text; None if the text has none."""

    def execute(self, sql: Any, params: Any = None) -> Any:
        if type(sql) is Compiled:
            self.made_for = sql.schema
            sql = self.db.rendered(sql) if "{shard" in sql else str(sql)
        else:
            if type(sql) is not str or "{shard" in sql:
                sql = self._rendered(sql)
            else:
                self.made_for = None
            check_tables(sql)
        return super().execute(sql, params)  # type: ignore[misc]

    def _rendered(self, sql: Any) -> Any:
        sql = self.db.rendered(sql)
        self.made_for = self.db.schema
        return sql

    def executemany(self, sql: Any, param_list: Any) -> Any:
        sql = self._rendered(sql)
        check_tables(sql)
        return super().executemany(sql, param_list)  # type: ignore[misc]

    def _execute(self, sql: Any, params: Any, *ignored: Any) -> Any:
        return self.db.run(self, sql, partial(self._send, sql, params))

    def _send(self, sql: Any, params: Any) -> Any:
        """The same as Django's `_execute`, which prepares for an error before each statement, and
        not when there is one."""
        if self.db.needs_rollback or not apps.ready:
            return CursorWrapper._execute(self, sql, params)
        try:
            return self.cursor.execute(sql) if params is None else self.cursor.execute(sql, params)
        except psycopg.Error:
            with self.db.wrap_database_errors:
                raise

    def _executemany(self, sql: Any, param_list: Any, *ignored: Any) -> Any:
        run = partial(CursorWrapper._executemany, self, sql, param_list)
        # Some of its statements may have taken effect, and the parameters may be a generator.
        return self.db.run(self, sql, run, repeatable=False)

    def __getattr__(self, name: str) -> Any:
        found = super().__getattr__(name)  # type: ignore[misc]
        # The rows of any other cursor came with its statement.
        if self.server_side_name is not None and name in CursorWrapper.WRAP_ERROR_ATTRS:
            return self._fetching()(found)
        return found

    def __iter__(self) -> Iterator[Any]:
        with self._fetching():
            yield from super().__iter__()  # type: ignore[misc]

    @contextmanager
    def _fetching(self) -> Iterator[None]:
        try:
            yield
        except DatabaseError as error:
            self.db.fetch_failed(self, error)
            raise

    def callproc(self, procname: Any, params: Any = None, kparams: Any = None) -> Any:
        """Not supported on shards: the procedure's name has no place for the schema."""
        raise NotSupportedError(
            f"name the schema: execute('SELECT * FROM {{shard}}.{procname}(…)')"
        )

    @contextmanager
    def copy(self, statement: Any, params: Any = None, **more: Any) -> Iterator[Any]:
        """psycopg's COPY. It is never repeated: raises `ShardMoved` if the shard is being moved."""
        statement = self._rendered(statement)
        check_tables(statement)
        with (
            self.db.copying(self, statement),
            self.cursor.copy(statement, params, **more) as copy,
        ):
            yield copy

    def close(self) -> None:
        """Closes the cursor. A server-side one outside of transactions gives its connection
        back."""
        if self.pid is None:
            self.cursor.close()
            return
        stream = self._take_stream()
        if self.pid != os.getpid():
            # In the child of a fork: the cursor belongs to the parent, and closing it here would
            # close it there.
            abandoned.append((self.cursor, stream))
            return
        try:
            self.cursor.close()
        finally:
            if stream is not None:
                self.db.stream_ended(*stream)

    def __del__(self, getpid: Any = os.getpid) -> None:
        # The process that opened the cursor has not closed it.
        if self.pid is not None and self.pid == getpid():
            self.end_stream()

    def end_stream(self) -> None:
        """Called when a server-side cursor outside of transactions was dropped by the code that
        opened it: closes its connection if it is open."""
        stream = self._take_stream()
        if stream is not None:
            self.db.stream_ended(*stream, discard=True)

    def _take_stream(self) -> tuple[Pool, Connection] | None:
        # In one step, because the thread that opened it and the one that collects it may both get
        # here at the same time.
        return self.__dict__.pop("stream", None)


class Cursor(_Moving, CursorWrapper):
    """A cursor."""


class DebugCursor(_Moving, CursorDebugWrapper):
    """A cursor that also logs its statements."""
