"""Queries of a host about shards: one at a time, however many threads look up however many shards.

Invariant: a caller only gets the answer to a query that was sent after the caller came. An older
answer may be from before the very fence that the caller ran into. And there is a pause between
queries, so that an application with nothing but wrong statements cannot flood the host with them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import psycopg

from .control import Control
from .errors import ConfigError, LookUpFailed
from .stale import Look, MoveSignal

_LOOK = (
    "SELECT asked.shard, state, epoch, peer, deadline_in_ms, last_fence_ago_ms, open_token,"
    " incoming_epoch FROM pg_catalog.unnest(%s::int4[]) AS asked(shard), LATERAL"
    " pgshard.look(asked.shard)"
)
_SHARDS_MAX = 512
"""How many shards are in one query. If more are wanted, the host is queried again immediately."""
_SIGNPOST_SPACING = 0.001
_RELATIVE_SPACING = 0.010

_Answer = tuple[float, "Look | LookUpFailed"]


class Questions:
    """The queries of a process's threads about shards, to one host."""

    def __init__(self, control: Control) -> None:
        self.control = control
        # Callers that met a signpost come mostly once per move. The others often met an error of
        # the application's own. They have separate lanes, so that the others never delay the
        # former.
        self._lanes = {
            MoveSignal.SIGNPOST: _Lane(_SIGNPOST_SPACING),
            MoveSignal.RELATIVE: _Lane(_RELATIVE_SPACING),
        }
        self._mending: dict[int, _Mended] = {}
        self._lock = threading.Lock()
        self.asked = 0
        """How many questions were asked so far."""

    def ask(self, shard: int, how: MoveSignal) -> tuple[float, Look]:
        """What the host reports about a shard, and when it was queried. Raises `LookUpFailed` or
        `HostDiffers`."""
        return self._lanes[how].ask(shard, self._look)

    def expire(self, shard: int, seen: float) -> bool:
        """Lifts a fence after its deadline, as the answer to the query sent at `seen` reported."""
        return self._mend(shard, seen, "SELECT pgshard.expire_fence(%s)", [shard])

    def open(self, shard: int, seen: float, token: UUID) -> bool:
        """Opens a shard with a decided move, as the answer to the query sent at `seen` reported."""
        return self._mend(shard, seen, "SELECT pgshard.finish_open(%s, %s)", [shard, token])

    def _look(self, shards: Sequence[int]) -> dict[int, Look]:
        self.asked += 1
        place = f"host {self.control.host.name} ({self.control.host.address})"
        try:
            # They are sent as text, so that the driver looks up no types of this session.
            rows = self.control.run(
                lambda c: c.execute(_LOOK, [list(shards)], prepare=False).fetchall()
            )
        except (psycopg.Error, ConfigError) as error:
            raise LookUpFailed(f"{place} did not say where shards are: {_words(error)}") from error
        return dict(_read(row, place) for row in rows)

    def _mend(self, shard: int, seen: float, sql: str, params: list[Any]) -> bool:
        """True if this call did it. If another caller has acted after `seen`, this does nothing."""
        with self._lock:
            mended = self._mending.setdefault(shard, _Mended())
        with mended.turn:
            if mended.at > seen:
                return False
            try:
                return self.control.run(lambda c: _act(c, sql, params))
            except psycopg.Error as error:
                if error.sqlstate is not None:
                    # Refused, or the mover has locked the row: another process is dealing with it.
                    return False
                raise LookUpFailed(
                    f"host {self.control.host.name} did not answer: {_words(error)}"
                ) from error
            finally:
                mended.at = time.monotonic()


class _Mended:
    """Which caller is dealing with a stalled move, and when a caller last did."""

    def __init__(self) -> None:
        self.turn = threading.Lock()
        self.at = float("-inf")


class _Lane:
    """Callers of one kind. Callers that come while one of them holds back share its query, because
    it is not sent yet."""

    def __init__(self, spacing: float) -> None:
        self._spacing = spacing
        self._wanted: set[int] = set()
        self._lock = threading.Lock()
        self._turn = threading.Lock()
        self._asked = float("-inf")
        self._answers: dict[int, _Answer] = {}

    def ask(self, shard: int, look: Any) -> tuple[float, Look]:
        wanted = time.monotonic()
        with self._lock:
            self._wanted.add(shard)
        with self._turn:
            answer = self._answers.get(shard)
            if answer is None or answer[0] < wanted:
                answer = self._question(shard, look)
        if isinstance(answer[1], LookUpFailed):
            raise answer[1]
        return answer[0], answer[1]

    def _question(self, shard: int, look: Any) -> _Answer:
        early = self._spacing - (time.monotonic() - self._asked)
        if early > 0:
            time.sleep(early)
        with self._lock:
            self._wanted.discard(shard)
            shards = [shard] + [
                self._wanted.pop() for _ in range(min(len(self._wanted), _SHARDS_MAX - 1))
            ]
        asked = self._asked = time.monotonic()
        try:
            looks = look(shards)
        except LookUpFailed as error:
            self._answers.update((one, (asked, error)) for one in shards)
        else:
            silent = LookUpFailed("pgshard.look gave no row")
            self._answers.update((one, (asked, looks.get(one, silent))) for one in shards)
        return self._answers[shard]


def _act(connection: psycopg.Connection[Any], sql: str, params: list[Any]) -> bool:
    # The mover may hold the row; then it is dealing with it already. The mode is given because the
    # role's transactions may be read-only by default, and such a role can end a dead mover's fence
    # as well.
    connection.execute("BEGIN ISOLATION LEVEL READ COMMITTED, READ WRITE", prepare=False)
    try:
        connection.execute("SET LOCAL lock_timeout = '200ms'", prepare=False)
        row = connection.execute(sql, params, prepare=False).fetchone()
        connection.execute("COMMIT", prepare=False)
    except psycopg.Error:
        if not connection.closed:
            connection.execute("ROLLBACK", prepare=False)
        raise
    return bool(row and row[0])


def _read(row: Sequence[Any], place: str) -> tuple[int, Look]:
    shard, state, epoch, peer, deadline, ago, token, incoming = row
    if state not in (None, "serving", "fenced", "moved") or (state == "moved" and peer is None):
        raise LookUpFailed(
            f"{place}: pgshard.look answered {state!r} of shard {shard}: is it of a newer pgshard?"
        )
    # If a clock was set back, a fence lies in the future: it counts as just now.
    seconds = None if ago is None else max(ago / 1000, 0.0)
    overdue = state == "fenced" and deadline is not None and deadline < 0
    return shard, Look(state, epoch or 0, peer, overdue, seconds, token, incoming)


def _words(error: BaseException) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
