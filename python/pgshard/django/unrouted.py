"""Queries that name no key, on a cluster that still has its one database: where in the program they
are. Shards would refuse them.

Invariant: the table of places is bounded; what does not fit counts as one place.
"""

from __future__ import annotations

import logging
import os
import threading

from .callers import place

log = logging.getLogger("pgshard")

PLACES_MAX = 256
"""The most places that are counted separately."""
OTHERS = "others"
"""The place of all others."""


class UnroutedCalls:
    """The places seen so far, with their numbers of statements."""

    def __init__(self) -> None:
        self._calls: dict[str, int] = {}
        self._lock = threading.Lock()

    def count(self, at: str) -> None:
        """Counts a statement. Logs the first one at each place."""
        with self._lock:
            if at not in self._calls and len(self._calls) >= PLACES_MAX:
                at = OTHERS
            count = self._calls[at] = self._calls.get(at, 0) + 1
        if count == 1:
            log.warning("%s: a statement names no key: shards would refuse it", at)

    def all(self) -> list[tuple[str, int]]:
        """The places and their numbers, the most frequent first."""
        with self._lock:
            found = list(self._calls.items())
        return sorted(found, key=lambda pair: (-pair[1], pair[0]))

    def after_fork(self) -> None:
        """In the child, the lock may be held by a thread that does not exist there."""
        self._lock = threading.Lock()


calls = UnroutedCalls()
"""Those of this process."""


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: calls.after_fork())


def count() -> None:
    """Counts a statement by its place in the program."""
    calls.count(place())


def unrouted_calls() -> list[tuple[str, int]]:
    """Where this process ran statements without a key on an unsharded host with `unrouted = "log"`,
    as file and line, and how many: the most frequent place first. At most 256 places are counted
    separately."""
    return calls.all()
