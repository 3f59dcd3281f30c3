"""Whether a host can be reached: what keeps calls from waiting for one that cannot. The rules are those of src/router/circuit.rs.

Closed, calls connect by themselves. The first connection that fails opens it: from then on calls fail at once, and a thread of
its own tries again, ever more seldom. What that finds out counts for everybody.

Invariant: a host that answers again is used again, within `PAUSE_MAX` and the time of one try; nothing is tried where nobody
calls; and an error that the server itself gave opens nothing, for it was reached.
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
"""Seconds for which nothing is tried after the first failure."""
PAUSE_MAX = 2.0
"""Seconds at most."""
TRY_WAIT = 0.2
"""Seconds after its start for which calls wait for what a try says, where the last one was answered. A host that is there
answers within a few milliseconds."""

# What a server says stands after its severity and two spaces, in whatever language; libpq itself writes one.
_SERVERS_WORD = re.compile(r"(?:^|failed: )\S+:  ", re.MULTILINE)


def is_unreachable(error: psycopg.Error) -> bool:
    """Whether the server could not be spoken with, or what answered is not the host: not when it answered with an error."""
    if isinstance(error, WrongServer):
        return True
    own = error.sqlstate is None and not _SERVERS_WORD.search(str(error))
    return isinstance(error, psycopg.OperationalError) and own


@dataclass
class _Open:
    """What is known of a host that is out of reach."""

    until: float
    """Nothing is tried before, of `time.monotonic`."""
    pause: float
    """How long that was."""
    cause: psycopg.Error
    silent: bool
    """Whether it gave no answer at all: then nobody waits for a try, for it may be silent again."""
    trying: float | None = None
    """Since when a try is on its way."""


class Circuit:
    """The state of one host. For all threads of a process."""

    def __init__(self) -> None:
        self.generation = 0
        """Connections of an earlier one are closed instead of used: the host went silent, and they only look alive."""
        self._forget()

    def _forget(self) -> None:
        self._pid = os.getpid()
        self._changed = threading.Condition()
        self._open: _Open | None = None

    def _mine(self) -> threading.Condition:
        if self._pid != os.getpid():
            # In the child of a fork: the thread that tries, or holds the lock, is the parent's.
            self._forget()
        return self._changed

    @property
    def is_open(self) -> bool:
        """Whether calls would fail at once."""
        return self._pid == os.getpid() and self._open is not None

    def check(self, name: str, start_try: Callable[[], None]) -> None:
        """Comes back where a call may go on to the host of this name. `start_try` is called when it is time for a try: it calls
        `failed` or `answered` when that has ended, in a thread of its own.

        Raises `HostUnreachable`, or `WrongServer`.
        """
        if not self.is_open:
            return
        changed = self._mine()
        with changed:
            now = time.monotonic()
            begins = self._open is not None and self._open.trying is None and self._open.until <= now
            if begins and self._open is not None:
                self._open.trying = now
        if begins:
            try:
                start_try()
            except RuntimeError as error:
                # No thread can be started, as at the interpreter's end.
                self.failed(name, psycopg.OperationalError(str(error)), silent=False, tried=True)
        with changed:
            left = TRY_WAIT
            if self._open is not None and self._open.trying is not None and not self._open.silent:
                left -= time.monotonic() - self._open.trying
                changed.wait_for(lambda: self._open is None or self._open.trying is None, max(left, 0))
            down = self._open
        if down is not None:
            raise told(name, down.cause, max(down.until - time.monotonic(), 0))

    def failed(self, name: str, cause: psycopg.Error, silent: bool, *, tried: bool) -> None:
        """A connection could not be opened; in `tried`, that of the try."""
        changed = self._mine()
        with changed:
            before, now = self._open, time.monotonic()
            if before is not None and not tried:
                # Of a call that began before it was open; only a try counts.
                return
            pause = PAUSE_MIN if before is None else min(before.pause * 2, PAUSE_MAX)
            # By chance, so that the tries of a fleet are spread.
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
    """The error that a call gets, with the cause in it."""
    words = " ".join(str(cause).split())
    text = words if isinstance(cause, WrongServer) else f"host {name} is out of reach: {words}"
    if again_in is not None:
        text = f"{text} (it is tried again in {again_in:.1f} s)"
    error = (WrongServer if isinstance(cause, WrongServer) else HostUnreachable)(text)
    error.__cause__ = cause
    return error
