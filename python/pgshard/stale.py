"""What a failed statement means for where its shard is: the decisions, without I/O, the same as in
src/router/stale.rs.

Invariant: an error counts as the application's own only if the shard's host, queried after the
statement failed, reports that it serves the shard and that there was no fence since the statement
began. And what one host reports about another is not believed before that other host's own row
confirms it.
"""

from __future__ import annotations

import enum
import functools
import re
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

MARGIN = 0.050
"""In seconds. A fence that is older than the statement by less than this counts as younger. A wrong
guess costs one try."""


class MoveSignal(enum.Enum):
    """How a statement's error can be connected with a move."""

    SIGNPOST = "signpost"
    """A signpost answered: the shard is closed or on another host. Worth another try, unless the
    host contradicts it twice."""
    RELATIVE = "relative"
    """A name was missing or had changed: it is the application's mistake, or a signpost that could
    not identify itself."""


def met(sqlstate: str | None, message: str = "") -> MoveSignal | None:
    """What a statement with this SQLSTATE and message ran into; None if no move can cause the
    error."""
    if sqlstate == "SH001":
        return MoveSignal.SIGNPOST
    if sqlstate is not None and sqlstate[:2] in ("42", "0A", "3F", "55"):
        return MoveSignal.RELATIVE
    # The server looked for an object by its number, from before the shard went away and came back.
    # The message is not translated.
    if sqlstate == "XX000" and message.startswith("cache lookup failed for "):
        return MoveSignal.RELATIVE
    return None


@dataclass(frozen=True)
class Look:
    """What a host reports about a shard: the result of `pgshard.look`."""

    state: str | None = None
    """`serving`, `fenced` or `moved`; None if the shard was never here."""
    epoch: int = 0
    peer: str | None = None
    """The host that the shard is being moved to, or has gone to."""
    overdue: bool = False
    """For a fence: its deadline has passed."""
    last_fence_ago: float | None = None
    """Seconds since tables and signposts last changed places, in either direction; None if they
    never did."""
    token: UUID | None = None
    """What proves to the peer that the move was decided."""
    incoming: int | None = None
    """The epoch at which a move is bringing the shard here."""


class Do(enum.Enum):
    """What to do after a statement failed, or about the host that a shard is reported to be on."""

    AGAIN = "again"
    """The host serves the shard: run it there again."""
    OWN = "own"
    """The error is the application's own."""
    WAIT = "wait"
    """The shard is closed for a moment, or the hosts do not agree yet."""
    EXPIRE = "expire"
    """The shard is closed, and the deadline of the one who closed it has passed: open it again."""
    ASK = "ask"
    """The shard went to another host: query that one."""
    NOT_HERE = "not-here"
    """The host has never had the shard."""
    HERE = "here"
    """About a peer: the shard is there, or was there and is being moved on."""
    UNOPENED = "unopened"
    """About a peer: the move there is decided, but the shard is not open there yet."""


class Verdict(NamedTuple):
    """What to do, and the values that are needed for it."""

    do: Do
    epoch: int | None = None
    peer: str | None = None
    token: UUID | None = None


def judge(how: MoveSignal, look: Look, ran: float, expected: int) -> Verdict:
    """What a failed statement means, given what its host has reported since.

    `ran`: seconds from before the statement (or its transaction) was sent until the look came back.
    `expected`: the epoch at which the statement was sent.
    """
    if look.state is None:
        return Verdict(Do.NOT_HERE if look.incoming is None else Do.WAIT)
    if look.state == "serving":
        disturbed = look.last_fence_ago is not None and look.last_fence_ago <= ran + MARGIN
        if how is MoveSignal.SIGNPOST or disturbed or look.epoch > expected:
            return Verdict(Do.AGAIN, look.epoch)
        return Verdict(Do.OWN)
    if look.state == "fenced":
        return Verdict(Do.EXPIRE if look.overdue else Do.WAIT)
    return Verdict(Do.ASK, look.epoch, look.peer, look.token)


def judge_peer(epoch: int, look: Look) -> Verdict:
    """What a host's answer means if another host reported that it has the shard, at this epoch."""
    if look.state is not None and look.epoch >= epoch:
        if look.state != "moved":
            return Verdict(Do.HERE, look.epoch)
        # The epoch in a row with state `moved` is that of the next owner, so it must be larger than
        # the one queried.
        if look.epoch > epoch:
            return Verdict(Do.ASK, look.epoch, look.peer, look.token)
        return Verdict(Do.WAIT)
    if look.incoming is not None and look.incoming >= epoch:
        return Verdict(Do.UNOPENED)
    return Verdict(Do.WAIT)


def pause(waited: float, chance: float) -> float:
    """How many seconds to wait before the next query, after `waited` seconds: a quarter of it, 2 to
    50 ms, after a second a twentieth of it, up to 250 ms; less a random part of up to a half."""
    pause = max(min(max(waited / 4, 0.002), 0.050), min(waited / 20, 0.250))
    return pause * (1 - min(max(chance, 0.0), 1.0) / 2)


_WORD = re.compile(r"--[^\n\r]*|/\*|\w+|.", re.DOTALL)
_ONCE = {"CALL", "DO", "VACUUM", "CLUSTER", "REPACK"}
_MAYBE_CONCURRENTLY = {"CREATE", "DROP", "REINDEX", "ALTER", "REFRESH"}


def repeatable(sql: str) -> bool:
    """Whether nothing of this statement can stay if it fails, so that it may run again.

    That is not certain for CALL, DO, VACUUM, CLUSTER, REPACK and anything CONCURRENTLY: these can
    commit in the middle.
    """
    first = None
    at = 0
    while at < len(sql):
        found = _WORD.match(sql, at)
        assert found is not None, "the last alternative matches any character"
        text = found.group()
        if text == "/*":
            at = _past_comment(sql, at)
            continue
        at = found.end()
        if text.startswith("--") or not (text[0].isalnum() or text[0] == "_"):
            continue
        word = text.upper()
        if first is None:
            first = word
            if first in _ONCE:
                return False
            if first not in _MAYBE_CONCURRENTLY:
                return True
        elif word == "CONCURRENTLY":
            return False
    return True


_ABOUT_NAMES = re.compile(
    r"\b(?:pg_get_serial_sequence|pg_relation_size|pg_total_relation_size|pg_table_size|pg_indexes_size|to_reg[a-z]+"
    r"|has_[a-z_]+_privilege|(?:obj|col|shobj)_description|information_schema|pg_class|pg_attribute|pg_description|pg_tables|pg_sequences)\b",
    re.IGNORECASE,
)


def asks_about_names(sql: str) -> bool:
    """Whether the answer would differ, without an error, if a signpost is in the shard's place: the
    statement queries the catalogs for a name. Such an answer is believed only after the host has
    reported that it served the shard."""
    # This check takes longer than everything else that is done for a statement; applications send
    # the same few again and again.
    return _asks(sql) if len(sql) < 4096 else _ABOUT_NAMES.search(sql) is not None


@functools.lru_cache(maxsize=512)
def _asks(sql: str) -> bool:
    # The same statement for another shard is another text. Each name in the pattern contains one of
    # these words, which are found fast.
    low = sql.lower()
    if not (
        "pg_" in low
        or "to_reg" in low
        or "has_" in low
        or "_description" in low
        or "information_schema" in low
    ):
        return False
    return _ABOUT_NAMES.search(sql) is not None


def _past_comment(sql: str, at: int) -> int:
    """The end of the block comment that begins here. Comments nest; one that never ends takes the
    rest of the text."""
    depth = 0
    while at < len(sql):
        two = sql[at : at + 2]
        if two == "/*":
            depth, at = depth + 1, at + 2
        elif two == "*/":
            depth, at = depth - 1, at + 2
            if depth == 0:
                return at
        else:
            at += 1
    return len(sql)
