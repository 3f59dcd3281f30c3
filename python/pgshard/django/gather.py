"""One call over many shards: a few at a time, within a deadline. Failures of some shards do not
lose the results of the others."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextvars import copy_context
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import psycopg
from django.db import DatabaseError, OperationalError, connections

from .backend.pools import release
from .cluster import alias
from .errors import InDoubt, ShardUnavailable

T = TypeVar("T")

WIDTH = 8
"""How many shards are queried at the same time by default. Each has a thread and a connection."""
CANCEL_MAX = 5.0
"""How many seconds it may take to cancel a statement that is no longer waited for."""


class Partial(OperationalError):
    """Some shards failed, or were not queried in time. `gathered` has the results of the others."""

    def __init__(self, gathered: Gathered[Any]) -> None:
        self.gathered = gathered
        shard, error = next(iter(sorted(gathered.errors.items())))
        count = len(gathered.values) + len(gathered.errors)
        super().__init__(f"{len(gathered.errors)} of {count} shards failed; shard {shard}: {error}")

    def __reduce__(self) -> Any:
        """For copies, and for what sends errors to other processes, as Celery does."""
        return type(self), (self.gathered,)


@dataclass
class Gathered(Generic[T]):
    """The results of a call over many shards."""

    values: dict[int, T] = field(default_factory=dict)
    """By shard: the value, if it succeeded."""
    errors: dict[int, Exception] = field(default_factory=dict)
    """By shard: the error, if it failed."""

    def all(self) -> Mapping[int, T]:
        """The values, if no shard failed. Raises `Partial`."""
        if self.errors:
            raise Partial(self) from next(iter(self.errors.values()))
        return self.values


def gather(
    shards: Iterable[int],
    work: Callable[[str], T],
    *,
    width: int = WIDTH,
    timeout: float | None = None,
) -> Gathered[T]:
    """Calls `work` with the alias of each shard, for at most `width` shards at a time.

    `timeout`: seconds for all together. A shard that was not queried by then is left out, and gives
    `ShardUnavailable`; one that has not answered by then gives `InDoubt`, and its statement is
    cancelled. Errors of databases are gathered; any other ends the call.

    If this thread has a transaction on a shard, `work` runs in this thread for it, so that it sees
    what the transaction has done; the timeout does not interrupt it.
    """
    if width < 1:
        raise ValueError(f"width must be 1 or more, not {width}")
    end = None if timeout is None else time.monotonic() + timeout
    result: Gathered[T] = Gathered()
    here: list[int] = []
    elsewhere: list[int] = []
    for shard in shards:
        wrapper = getattr(connections._connections, alias(shard), None)
        (here if wrapper is not None and wrapper.in_atomic_block else elsewhere).append(shard)
    if end is None and (len(elsewhere) == 1 or width == 1):
        here, elsewhere = here + elsewhere, []
    for shard in here:
        _one(result, shard, lambda shard=shard: work(alias(shard)), end)  # type: ignore[misc]
    if elsewhere:
        _threads(result, elsewhere, work, min(width, len(elsewhere)), end)
    return result


def _late() -> ShardUnavailable:
    return ShardUnavailable("not asked: the time for all shards together was over")


def _one(result: Gathered[T], shard: int, work: Callable[[], T], end: float | None) -> None:
    if end is not None and time.monotonic() >= end:
        result.errors[shard] = _late()
        return
    try:
        result.values[shard] = work()
    except DatabaseError as error:
        result.errors[shard] = error


class Errand:
    """Work on a shard in a thread of its own. Another thread may cancel it."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._wrapper: Any = None
        self._lock = threading.Lock()

    def run(self, work: Callable[[str], T]) -> T:
        """Does the work, and gives back the connections it took."""
        with self._lock:
            self._wrapper = connections[self._where]
        try:
            return work(self._where)
        finally:
            # This comes before the connection is another thread's: a cancellation would hit that
            # thread's statement.
            with self._lock:
                self._wrapper = None
            release()

    def _cancel(self) -> None:
        with self._lock:
            connection = self._wrapper and self._wrapper.connection
            if connection is not None:
                try:
                    connection.cancel_safe(timeout=CANCEL_MAX)
                except (psycopg.Error, OSError):
                    pass  # The host is silent: the connection's own timeouts end the statement.

    @staticmethod
    def give_up(errands: Iterable[Errand]) -> None:
        """Cancels the statements that these wait for, without waiting until the hosts receive
        that."""
        for errand in errands:
            threading.Thread(target=errand._cancel, name="pgshard cancel", daemon=True).start()


def _threads(
    result: Gathered[T], shards: list[int], work: Callable[[str], T], width: int, end: float | None
) -> None:
    queue = iter(shards)
    pool = ThreadPoolExecutor(width, thread_name_prefix="pgshard gather")
    running: dict[Any, tuple[int, Errand]] = {}
    late = False
    try:
        while not late:
            for shard in queue:
                if end is not None and time.monotonic() >= end:
                    result.errors[shard] = _late()
                    continue
                errand = Errand(alias(shard))
                # The caller's context variables hold in the thread too.
                running[pool.submit(copy_context().run, errand.run, work)] = shard, errand
                if len(running) >= width:
                    break
            if not running:
                return
            left = None if end is None else max(end - time.monotonic(), 0)
            done, _ = wait(running, left, return_when=FIRST_COMPLETED)
            for future in done:
                _one(result, running.pop(future)[0], future.result, None)
            late = not done
        for shard, _ in running.values():
            result.errors[shard] = InDoubt(
                "no answer: the time for all shards together was over; a write may have taken"
                " effect"
            )
        result.errors.update((shard, _late()) for shard in queue)
        Errand.give_up(errand for _, errand in running.values())
    finally:
        pool.shutdown(wait=not late)
