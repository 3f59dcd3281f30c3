"""Whether a host can be reached: this keeps calls from waiting for a host that cannot. The rules
are those of src/router/circuit.rs.

While the circuit is closed, calls connect by themselves. The first connection that fails opens it:
from then on calls fail immediately, and a thread of the circuit's own tries again, at growing
intervals. All calls use what the thread finds out.

Invariant: a host that answers again is used again, within `PAUSE_MAX` and the time of one try;
nothing is tried while there are no calls; and an error that the server itself sent opens nothing,
because the server was reached.
"""

from __future__ import annotations

import logging
import os
import random
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import psycopg

from .errors import HostUnreachable, WrongServer

log = logging.getLogger("pgshard")

PAUSE_MIN = 0.1
"""How many seconds pass after the first failure before the host is tried again."""
PAUSE_MAX = 2.0
"""The longest such pause, in seconds."""
TRY_WAIT = 0.2
"""For how many seconds after a try has begun calls wait for its result, if the last try got an
answer. A host that is there answers within a few milliseconds."""

# A message of a server begins with its severity, in whatever language, and two spaces. libpq's own
# messages have one space.
_SERVERS_WORD = re.compile(r"(?:^|failed: )\S+:  ", re.MULTILINE)


def is_unreachable(error: psycopg.Error) -> bool:
    """Whether no server could be reached, or the one that answered is not the host. False if the
    server answered with an error."""
    if isinstance(error, WrongServer):
        return True
    own = error.sqlstate is None and not _SERVERS_WORD.search(str(error))
    return isinstance(error, psycopg.OperationalError) and own


@dataclass
class _Open:
    """What is known of a host that is out of reach."""

    until: float
    """The host is not tried before this time, of `time.monotonic`."""
    pause: float
    """The length of this pause."""
    cause: psycopg.Error
    silent: bool
    """Whether the host gave no answer at all: then no call waits for a try, because the host may be
    silent again."""
    trying: float | None = None
    """When the try that is running began; None if none is running."""


class Circuit:
    """The state of one host. All threads of a process may use it."""

    def __init__(self) -> None:
        self.generation = 0
        """A connection of an earlier generation is closed instead of used: the host went silent, so
        it only looks alive."""
        self._forget()

    def _forget(self) -> None:
        self._pid = os.getpid()
        self._changed = threading.Condition()
        self._open: _Open | None = None

    def _mine(self) -> threading.Condition:
        if self._pid != os.getpid():
            # In the child of a fork: the thread that tries the host, or holds the lock, exists only
            # in the parent.
            self._forget()
        return self._changed

    @property
    def is_open(self) -> bool:
        """Whether calls would fail immediately."""
        return self._pid == os.getpid() and self._open is not None

    def check(self, name: str, start_try: Callable[[], None]) -> None:
        """Returns when a call may proceed to the host of this name. When it is time for a try it
        calls `start_try`, which tries in a thread of its own and calls `failed` or `answered` at
        the end.

        Raises `HostUnreachable`, or `WrongServer`.
        """
        if not self.is_open:
            return
        changed = self._mine()
        with changed:
            now = time.monotonic()
            begins = (
                self._open is not None and self._open.trying is None and self._open.until <= now
            )
            if begins and self._open is not None:
                self._open.trying = now
        if begins:
            try:
                start_try()
            except RuntimeError as error:
                # No thread can be started, for instance while the interpreter ends.
                self.failed(name, psycopg.OperationalError(str(error)), silent=False, tried=True)
        with changed:
            left = TRY_WAIT
            if self._open is not None and self._open.trying is not None and not self._open.silent:
                left -= time.monotonic() - self._open.trying
                changed.wait_for(
                    lambda: self._open is None or self._open.trying is None, max(left, 0)
                )
            down = self._open
        if down is not None:
            raise told(name, down.cause, max(down.until - time.monotonic(), 0))

    def failed(self, name: str, cause: psycopg.Error, silent: bool, *, tried: bool) -> None:
        """A connection could not be opened. `tried`: it was the connection of a try."""
        changed = self._mine()
        with changed:
            before, now = self._open, time.monotonic()
            if before is not None and not tried:
                # This call began before the circuit opened. Only a try counts.
                return
            pause = PAUSE_MIN if before is None else min(before.pause * 2, PAUSE_MAX)
            # Random, so that the processes of a fleet do not all try at the same time.
            until = now + pause * (0.75 + random.random() / 4)
            self._open = _Open(until, pause, cause, silent)
            self.generation += silent
            changed.notify_all()
        if before is None:
            log.warning("host %s is out of reach: %s", name, str(cause).strip())

    def answered(self, name: str) -> None:
        """The host was reached."""
        if not self.is_open:
            return
        changed = self._mine()
        with changed:
            was_open, self._open = self._open is not None, None
            changed.notify_all()
        if was_open:
            log.info("host %s is within reach again", name)


def told(name: str, cause: psycopg.Error, again_in: float | None = None) -> psycopg.Error:
    """The error for a call, with the cause in its text."""
    words = " ".join(str(cause).split())
    text = words if isinstance(cause, WrongServer) else f"host {name} is out of reach: {words}"
    if again_in is not None:
        text = f"{text} (it is not tried again yet)"
    error = (WrongServer if isinstance(cause, WrongServer) else HostUnreachable)(text)
    error.__cause__ = cause
    return error
