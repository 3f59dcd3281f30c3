"""What a call does between a statement that met a move and the next try: it queries the host,
waits, goes to the other host, and finishes what a dead mover left. `stale` makes the decisions;
they are the same as in src/router/recover.rs."""

from __future__ import annotations

import logging
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from uuid import UUID

from .control import Control
from .directory import Directory
from .errors import NotHere, PgshardError, ShardUnavailable, TooManyWaiting, UnknownHost
from .map import Placement
from .ownership import Questions
from .stale import Do, Look, MoveSignal, Verdict, judge, judge_peer, pause

log = logging.getLogger("pgshard")

RETRY_FOR = 15.0
"""How many seconds a call may wait in all for a shard that is being moved: longer than a fence's
deadline of 10 s."""
WAITERS_MAX = 1024
"""How many calls may wait for one shard; the next gets `TooManyWaiting` immediately."""
_OPEN_GRACE = 0.100
"""After how many seconds this process opens a decided move that no process has opened. The mover
takes about a millisecond."""
_HOPS_MAX = 8
"""Through how many hosts one answer may lead."""


class RecoveryContext:
    """What all calls of a process share: the directory, a set of questions for each host, and how
    many calls wait for each shard."""

    def __init__(self, directory: Directory, retry_for: float = RETRY_FOR) -> None:
        self.directory = directory
        self.retry_for = retry_for
        self.again = 0
        """How many statements and transactions were worth another try."""
        self._forget()

    def _forget(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._questions: dict[str, Questions] = {}
        self._waiting: dict[int, int] = {}

    def questions(self, name: str) -> Questions:
        """The questions for a host. Raises `UnknownHost`."""
        if self._pid != os.getpid():
            # In the child of a fork: threads that exist only in the parent may hold the locks.
            self._forget()
        found = self._questions.get(name)
        if found is None:
            host = self.directory.host(name)
            made = Questions(Control(host, self.directory.meet))
            with self._lock:
                found = self._questions.setdefault(name, made)
        return found

    def close(self) -> None:
        """Closes the connections that are not in use."""
        for questions in list(self._questions.values()):
            questions.control.close()

    @contextmanager
    def waiting(self, shard: int) -> Iterator[None]:
        """A place among the calls that wait for a shard. Their number is limited, so that they do
        no harm when they all continue at the same time."""
        with self._lock:
            count = self._waiting.get(shard, 0)
            if count >= WAITERS_MAX:
                raise TooManyWaiting(
                    f"{count} calls wait for the end of the move of shard {shard}: try again later"
                )
            self._waiting[shard] = count + 1
        try:
            yield
        finally:
            with self._lock:
                self._waiting[shard] -= 1
                if not self._waiting[shard]:
                    del self._waiting[shard]


class Recovery:
    """One call's way through a move. Only one thread uses it."""

    def __init__(
        self, recovery_context: RecoveryContext, shard: int, retry_for: float | None = None
    ) -> None:
        """`retry_for`: how many seconds this call may wait, if other than the context's."""
        self._recovery_context = recovery_context
        self._shard = shard
        self._retry_for = recovery_context.retry_for if retry_for is None else retry_for
        self._since: float | None = None
        self._unopened: float | None = None
        self._rounds = 0
        self._contradicted = False

    def is_own(self, how: MoveSignal, place: Placement, began: float) -> bool:
        """Only finds out whether the failed statement's error is the application's own. Raises the
        same as `after`."""
        self._recovery_context.questions(place.host)
        with self._recovery_context.waiting(self._shard):
            _, look = self._recovery_context.questions(place.host).ask(self._shard, how)
            return judge(how, look, time.monotonic() - began, place.epoch).do is Do.OWN

    def after(
        self,
        how: MoveSignal,
        place: Placement,
        began: float,
        give_back: Callable[[], None] = lambda: None,
    ) -> bool:
        """True when the statement that was sent to `place` at `began` (of `time.monotonic`) is
        worth another try; False immediately if its error is the application's own. `give_back` is
        called before anything is waited for: the connection must be closed, because its session may
        remember a signpost.

        Raises `ShardUnavailable` when the time for retries is over, and `NotHere`, `UnknownHost`,
        `LookUpFailed`, `HostDiffers` or `TooManyWaiting` if no host can be queried.
        """
        self._recovery_context.questions(place.host)
        with self._recovery_context.waiting(self._shard):
            if self._since is None:
                self._since = time.monotonic()
            while True:
                asked, look = self._recovery_context.questions(place.host).ask(self._shard, how)
                verdict = self._verdict(how, look, time.monotonic() - began, place.epoch)
                log.debug(
                    "shard %s on %s: %s met, %s",
                    self._shard,
                    place.host,
                    how.value,
                    verdict.do.value,
                )
                if verdict.do is Do.OWN:
                    return False
                give_back()
                if verdict.do is Do.NOT_HERE:
                    raise NotHere(
                        f"host {place.host} never had shard {self._shard}, which the map places"
                        " there: `pgshard check`"
                    )
                if verdict.do is Do.AGAIN:
                    assert verdict.epoch is not None
                    self._recovery_context.directory.learn(
                        self._shard, Placement(place.host, verdict.epoch)
                    )
                    return self._again(place.host)
                if self._closed(place.host, asked, look, verdict.do):
                    return self._again(place.host)

    def _verdict(self, how: MoveSignal, look: Look, ran: float, expected: int) -> Verdict:
        """What a look means. If the host serves the shard, and has neither closed nor opened it
        since the statement began, no signpost was there. The first time this is put down to a clock
        that was set; the second time SH001 is an error of the application, raised by one of its
        functions.
        """
        verdict = judge(how, look, ran, expected)
        if (
            how is MoveSignal.SIGNPOST
            and judge(MoveSignal.RELATIVE, look, ran, expected).do is Do.OWN
        ):
            if self._contradicted:
                return Verdict(Do.OWN)
            self._contradicted = True
        return verdict

    def failed_over(self, place: Placement) -> None:
        """Called after a statement found that its server is a standby: nothing was written there,
        and the connection was closed. Returns when the statement is worth another try on a new
        connection, the first time immediately.

        Raises `ShardUnavailable` when the time for retries is over, and `TooManyWaiting`.
        """
        with self._recovery_context.waiting(self._shard):
            if self._since is None:
                self._since = time.monotonic()
            log.debug("shard %s: the server of %s is a standby now", self._shard, place.host)
            self._rounds += 1
            self._recovery_context.again += 1
            if self._rounds > 1:
                self._wait(place.host, "its server is a standby")

    def _closed(self, host: str, asked: float, look: Look, do: Do) -> bool:
        """The shard is not served there. True if it was found on another host, else after a
        pause."""
        if do is Do.WAIT:
            self._wait(host, "it is being moved from there")
        elif do is Do.EXPIRE:
            if self._recovery_context.questions(host).expire(self._shard, asked):
                log.info(
                    "shard %s on %s: ended the fence of a mover that has stopped", self._shard, host
                )
            else:
                self._wait(host, "it was to be moved from there, and the mover has stopped")
        elif do is Do.ASK:
            if self._chase(look.peer, look.epoch, look.token):
                return True
            self._wait(host, "it has left there and is not open elsewhere yet")
        return False

    def _chase(self, peer: str | None, epoch: int, token: UUID | None) -> bool:
        """Follows a shard that has moved. True when its new host has been found and learned."""
        for _ in range(_HOPS_MAX):
            assert peer is not None, "a row that says moved names the peer: ownership.py checked it"
            try:
                questions = self._recovery_context.questions(peer)
            except UnknownHost:
                # It may have left the cluster since, and the shard before it.
                found = self._search(epoch)
                if found is None:
                    raise
                peer, epoch, token = found
                continue
            asked, look = questions.ask(self._shard, MoveSignal.SIGNPOST)
            verdict = judge_peer(epoch, look)
            if verdict.do is Do.HERE:
                assert verdict.epoch is not None
                self._recovery_context.directory.learn(self._shard, Placement(peer, verdict.epoch))
                return True
            if verdict.do is Do.ASK:
                peer, epoch, token = verdict.peer, look.epoch, verdict.token
                continue
            if verdict.do is Do.UNOPENED:
                self._unopened = self._unopened or time.monotonic()
                late = time.monotonic() - self._unopened >= _OPEN_GRACE
                if late and token is not None and questions.open(self._shard, asked, token):
                    log.info("shard %s on %s: opened what a mover had decided", self._shard, peer)
            return False
        return False

    def _search(self, epoch: int) -> tuple[str, int, UUID | None] | None:
        """Queries every known host for a shard that was given to an unknown one at `epoch`: the
        host that has it later, by the latest epoch. A host that does not answer is left out."""
        latest: tuple[str, int, UUID | None] | None = None
        names = [host.name for host in self._recovery_context.directory.hosts]
        for name in names:
            try:
                _, look = self._recovery_context.questions(name).ask(
                    self._shard, MoveSignal.SIGNPOST
                )
            except PgshardError as error:
                log.debug("shard %s: %s was not queried: %s", self._shard, name, error)
                continue
            verdict = judge_peer(epoch + 1, look)
            if verdict.do is Do.HERE:
                assert verdict.epoch is not None
                found: tuple[str, int, UUID | None] = (name, verdict.epoch, None)
            elif verdict.do is Do.ASK and verdict.peer in names:
                found = (verdict.peer, look.epoch, verdict.token)
            else:
                continue
            if latest is None or found[1] > latest[1]:
                latest = found
        return latest

    def _again(self, host: str) -> bool:
        # The first try after a look comes immediately. If a second round is needed, hosts and
        # signposts contradict each other, so it waits.
        self._rounds += 1
        self._recovery_context.again += 1
        if self._rounds > 1:
            self._wait(host, "it answers as if it had moved")
        return True

    def _wait(self, host: str, reason: str) -> None:
        assert self._since is not None, "after() has noted when it began"
        waited = time.monotonic() - self._since
        nap = pause(waited, random.random())
        if waited + nap > self._retry_for:
            raise ShardUnavailable(
                f"shard {self._shard} on {host} could not be used for {waited:.1f} s: {reason}"
            )
        time.sleep(nap)
