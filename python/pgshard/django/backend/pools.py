"""Connections of a process and of a thread. A process has a pool for each host. While no
transaction is open, a thread holds at most one connection to each host, which all its aliases
share."""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any

from asgiref.local import Local
from django.core import mail
from django.core.exceptions import ImproperlyConfigured
from django.core.handlers.asgi import ASGIHandler
from django.core.handlers.wsgi import WSGIHandler
from django.db import connections
from django.dispatch import Signal

from ...pool import Connection, Pool
from ..cluster import Cluster, cluster, state
from .cursor import abandoned

WRAPPERS_MAX = 1024
"""How many connection objects for shards a thread keeps. Each takes 4 KiB, and making one takes a
quarter of the time of a query."""

shard_connection_created = Signal()
"""Sent for each new connection to a host, with `host` (its name) and `connection` (psycopg's)."""


class _Pools:
    """The pools of this process. They belong to one cluster."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.cluster: Cluster | None = None
        self.by_host: dict[str, Pool] = {}


_pools = _Pools()
_held = Local(thread_critical=True)


class Slots:
    """What a thread holds. It is given back when the thread (or the event loop, or the worker)
    ends."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.shared: dict[str, tuple[Pool, Connection]] = {}
        """By host: the connection in autocommit."""
        self.touched: dict[str, None] = {}
        """The aliases that have a connection object in this thread, oldest first."""
        self.attached: dict[str, Any] = {}
        """By alias: the connection objects that may have one of the connections. They are asked to
        let go of it."""
        self.transactions: dict[str, Any] = {}
        """By alias: the connection objects that have begun a transaction."""
        self.streams: weakref.WeakSet[Any] = weakref.WeakSet()
        """The server-side cursors that this thread opened outside of transactions, and that may
        still be open."""

    def give_back(self, getpid: Any = os.getpid) -> None:
        """Gives all connections back. In the child of a fork they belong to the parent, and stay as
        they are."""
        # The dictionary itself stays, because connection objects refer to it.
        shared = dict(self.shared)
        self.shared.clear()
        if self.pid == getpid():
            for pool, connection in shared.values():
                pool.give_back(connection)

    def end_streams(self) -> None:
        """Closes the cursors that have a connection of their own."""
        for cursor in list(self.streams):
            cursor.end_stream()

    def __del__(self, getpid: Any = os.getpid) -> None:
        self.give_back(getpid)
        if self.pid == getpid():
            self.end_streams()


def slots() -> Slots:
    """The slots of this thread."""
    found = getattr(_held, "slots", None)
    if found is None or found.pid != os.getpid():
        found = _held.slots = Slots()
    result: Slots = found
    return result


def check_tests() -> None:
    """Raises `ImproperlyConfigured` if tests would reach a real shard."""
    if hasattr(mail, "outbox") and not state.visible:
        # This is only set while tests run.
        raise ImproperlyConfigured(
            "tests run, and this is the first one to use a real shard: give them shards of their"
            ' own by TEST_RUNNER = "pgshard.django.test.ShardedTestRunner", or by pytest with'
            " pytest-django"
        )


def pool(name: str, wrapper: Any) -> Pool:
    """The pool of a host. `wrapper` configures connections as Django wants them. Raises
    `UnknownHost`, and `ImproperlyConfigured` if tests would reach a real shard."""
    current = cluster()
    found = _pools.by_host.get(name) if _pools.cluster is current else None
    if found is not None:
        return found
    check_tests()
    directory = current.directory
    host = directory.host(name)
    met: list[bool] = []

    def options() -> dict[str, Any]:
        made: dict[str, Any] = wrapper.connection_options()
        if not host.named:
            made["prepare_threshold"] = None
        return made

    def configure(connection: Connection) -> None:
        if not met:
            directory.meet(connection, host)
            met.append(True)
        wrapper.configure(connection)
        shard_connection_created.send(sender=Pool, host=name, connection=connection)

    with _pools.lock:
        if _pools.cluster is not current:
            _pools.cluster, _pools.by_host = current, {}
        return _pools.by_host.setdefault(name, Pool(host, options, configure))


def close_all() -> None:
    """Closes all connections that no thread holds, and drops this thread's connection objects for
    shards: for tests, and before the server is stopped."""
    release()
    _forget(slots(), 0)
    with _pools.lock:
        pools, _pools.by_host = list(_pools.by_host.values()), {}
    for one in pools:
        one.close()


def release(**_: Any) -> None:
    """Gives back what this thread holds. Call it at the end of a request, a task, or a round of a
    long loop. Connections in a transaction stay; so do the connection objects for shards, without a
    connection."""
    mine = slots()
    attached, mine.attached = mine.attached, {}
    for alias, wrapper in attached.items():
        # Tests that forbid databases change these objects, and look at what they noted.
        if alias in state.visible:
            wrapper.detach()
        elif wrapper.is_busy():
            mine.attached[alias] = wrapper
        else:
            wrapper.detach()
            wrapper.queries_log.clear()
    mine.give_back()


def request_ended(sender: Any = None, **_: Any) -> None:
    """Called at the end of a request: does what `release` does, and closes what the request left
    open on a server-side cursor.

    If a browser disconnects, its request is cancelled by an exception that refers to itself and to
    the iterator it met, so Python would close that only at some later time. A test's client is not
    a server, and its test may still be using an iterator.
    """
    if isinstance(sender, type) and issubclass(sender, (ASGIHandler, WSGIHandler)):
        slots().end_streams()
    release()


def touch(alias: str) -> None:
    """Notes that this thread has a connection object for a shard, and drops old ones when there are
    many."""
    mine = slots()
    mine.touched[alias] = None
    if len(mine.touched) > WRAPPERS_MAX:
        _forget(mine, WRAPPERS_MAX // 2, alias)


def _forget(mine: Slots, keep: int, but: str | None = None) -> None:
    for alias in list(mine.touched)[: len(mine.touched) - keep]:
        wrapper = getattr(connections._connections, alias, None)
        if wrapper is None:
            del mine.touched[alias]
        elif alias in state.visible:
            # Tests that forbid databases change these objects.
            wrapper.detach()
        elif alias != but and not wrapper.is_busy():
            wrapper.detach()
            delattr(connections._connections, alias)
            del mine.touched[alias]


def _after_fork() -> None:
    # The sockets belong to the parent, so they are neither closed nor used here. What refers to
    # them must not be collected, because closing them would end the parent's sessions at the
    # server.
    global _pools
    mine = getattr(_held, "slots", None)
    wrappers = [
        getattr(connections._connections, alias, None) for alias in (mine.touched if mine else ())
    ]
    abandoned.append((_pools, mine, wrappers))
    _pools = _Pools()
    if mine is not None:
        # Some code may have kept a connection object.
        abandoned.append(dict(mine.shared))
        mine.shared.clear()
        for alias in mine.touched:
            if hasattr(connections._connections, alias):
                delattr(connections._connections, alias)
        _held.slots = Slots()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
