"""Which server answers under a host's name, and whether it is still the host. The rules are those
of src/pg/identity.rs.

After a fail-over the former primary may come back as it was: it takes writes that the promoted
server never gets. The two differ in their timeline, which a promotion raises; a server of another
cluster differs in its system identifier.

Invariant: once a process has seen a host at a timeline, it uses no connection to an older one: new
ones are refused, and open ones are cut, whatever they are doing.
"""

from __future__ import annotations

import enum
import os
import re
import threading
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

_LOG_FILE = re.compile(r"[0-9A-F]{8}", re.ASCII)


@dataclass(frozen=True)
class Identity:
    """Which server it is, by its own account."""

    system: int
    """The system identifier. A server shares it with its standbys, and with every other copy of its
    files."""
    timeline: int | None
    """The timeline that it writes; None for a standby."""


@dataclass(frozen=True)
class Server:
    """What a server returns when its identity is queried."""

    identity: Identity | None = None
    """None if it does not report it: some services have removed the functions."""
    started: float = 0.0
    """When it was started, in seconds since 1970. If two addresses lead to one server, this is the
    same for both."""
    read_only: bool = field(default=False, compare=False)
    """Whether transactions are read only there."""

    @property
    def timeline(self) -> int | None:
        """The timeline that it writes. None for a standby, and if the server does not report it."""
        return None if self.identity is None else self.identity.timeline

    def rivals(self, other: Server) -> bool:
        """Whether both servers take writes and neither timeline is the later."""
        one, two = self.identity, other.identity
        if (
            one is None
            or two is None
            or one.timeline is None
            or two.timeline is None
            or self == other
        ):
            return False
        return one.timeline == two.timeline or one.system != two.system


def timeline_of(file: str | None) -> int | None:
    """The first eight digits of a log file's name."""
    found = None if file is None else _LOG_FILE.match(file)
    return None if found is None else int(found.group(), 16)


@dataclass(frozen=True)
class Record:
    """What is known of a host: how often an operator has accepted a server for it, and which server
    it is."""

    generation: int
    """1 when the host was bootstrapped, and one more each time an operator accepted another server.
    0: only seen, not recorded."""
    system: int
    """The system identifier."""
    timeline: int
    """The highest timeline that was seen; 0 for a server that is awaited."""

    @property
    def is_awaited(self) -> bool:
        """Whether this is a server that has not been seen yet, and that an operator has accepted in
        advance."""
        return self.generation > 0 and self.timeline == 0

    def refusal(self, identity: Identity) -> str | None:
        """Why the server with this identity is not the host; None if it is the host."""
        if identity.system != self.system:
            return (
                f"it is another server: its system identifier is {identity.system}, the host's is"
                f" {self.system}. Nothing is written there: correct the url; if the host was"
                " upgraded or restored by a dump, `pgshard host accept` says so"
            )
        if identity.timeline is not None and identity.timeline < self.timeline:
            return (
                f"it is a former primary: it writes timeline {identity.timeline}, and the host was"
                f" seen at timeline {self.timeline}. Nothing is written there: fence it"
                " (docs/high-availability.md); if it is what was restored on purpose, `pgshard"
                " host accept` says so"
            )
        return None

    def joined(self, other: Record) -> Record:
        """What is known when both are taken together. A record that contradicts this one without an
        operator's word is left out."""
        former, latter = (other, self) if other.generation < self.generation else (self, other)
        if former.system == latter.system and former.generation in (latter.generation, 0):
            return replace(latter, timeline=max(former.timeline, latter.timeline))
        return self if former.generation == latter.generation else latter

    def replaced_by(self, records: Sequence[Record]) -> Record | None:
        """The record with the highest generation, of these records from one server, if it shows
        that the server took this one's place."""
        last = next((record for record in records if not record.is_awaited), None)
        if last is None or last.generation <= self.generation:
            return None
        return last if self.is_among(records) else None

    def is_among(self, records: Sequence[Record]) -> bool:
        """Whether these records from one server show that it was this one, or took its place."""
        return any(
            record.system == self.system
            and not record.is_awaited
            and self.generation in (0, record.generation)
            for record in records
        )


@dataclass
class Records:
    """What is recorded of one host: which server it is, and which one may take its place."""

    record: Record | None = None
    awaited: Record | None = None

    def add(self, record: Record) -> None:
        """Takes over a record. Of two servers that are awaited, the last one counts."""
        if record.is_awaited:
            self.awaited = record
        else:
            self.record = record if self.record is None else self.record.joined(record)

    def each(self) -> list[Record]:
        """Both, the awaited server first, so that it is no stranger when the other comes."""
        return [record for record in (self.awaited, self.record) if record is not None]

    def awaits(self, identity: Identity) -> Record | None:
        """The record under which the server with this identity takes the host's place, if it is the
        one that is awaited."""
        known, awaited = self.record, self.awaited
        if awaited is None or awaited.system != identity.system:
            return None
        if known is not None and (
            known.generation >= awaited.generation or known.system == awaited.system
        ):
            return None
        return replace(awaited, timeline=identity.timeline or 0)

    def refusal(self, identity: Identity) -> str | None:
        """Why the server with this identity is not the host; None if it is the host, or may take
        its place."""
        if self.record is None or self.awaits(identity) is not None:
            return None
        return self.record.refusal(identity)


class Seen(enum.Enum):
    """What an answer at one of a host's addresses means for the host."""

    NOTHING = "nothing"
    """Nothing new: it is a standby, or the host."""
    LATER = "later"
    """The host is at this address now."""
    IMPOSTOR = "impostor"
    """It is another server, and takes writes."""
    RIVAL = "rival"
    """It is another server and takes writes, and nothing shows which of the two is the host."""


class Link(Protocol):
    """What this module needs of a connection."""

    server: Server

    def cut(self) -> None:
        """Ends it, whatever it is doing. Any thread may call this."""

    def __hash__(self) -> int: ...


class Known:
    """What a process knows of one host, and its open connections there. All threads may use it."""

    def __init__(self) -> None:
        self.settled = False
        """Whether all addresses have been asked once."""
        self.answered = 0
        """The number of the address at which a new connection begins."""
        self._records = Records()
        self._host = Server()
        self._forget()

    def _forget(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._open: weakref.WeakSet[Link] = weakref.WeakSet()
        self.looking = False
        """Whether a thread of this process watches the other addresses."""

    def _mine(self) -> threading.Lock:
        if self._pid != os.getpid():
            # In the child of a fork: the connections belong to the parent, and so does the thread
            # that may have held the lock.
            self._forget()
        return self._lock

    @property
    def record(self) -> Record | None:
        """What is known, if anything is."""
        return self._records.record

    def start_looking(self) -> bool:
        """True for the first caller in a process."""
        with self._mine():
            first, self.looking = not self.looking, True
            return first

    def refusal(self, server: Server) -> str | None:
        """Why a server is not the host, by what is known now; None if it is the host, or does not
        report its identity."""
        return None if server.identity is None else self._records.refusal(server.identity)

    def learn(self, record: Record) -> None:
        """Takes over a record, and cuts the connections to servers that it shows not to be the
        host."""
        with self._mine():
            self._learn(record)

    def _learn(self, record: Record) -> None:
        self._records.add(record)
        self._cut_others()

    def _see(self, record: Record) -> None:
        known = self._records.record
        self._records.record = record if known is None else known.joined(record)
        self._cut_others()

    def _cut_others(self) -> None:
        for link in list(self._open):
            if self.refusal(link.server) is not None:
                self._open.discard(link)
                link.cut()

    def learn_of(self, server: Server) -> Seen:
        """Takes over what a server reports about itself, if it has the known system identifier, or
        is awaited."""
        with self._mine():
            known, identity = self._records.record, server.identity
            if known is None or identity is None or identity.timeline is None:
                return Seen.NOTHING
            awaited = self._records.awaits(identity)
            if awaited is not None:
                # It takes no writes before it takes the host's place.
                if server.read_only:
                    return Seen.NOTHING
                self._see(awaited)
                return Seen.LATER
            if known.refusal(identity) is not None:
                return Seen.IMPOSTOR
            if identity.timeline > known.timeline:
                self._see(replace(known, timeline=identity.timeline))
                return Seen.LATER
            return Seen.RIVAL if server.rivals(self._host) else Seen.NOTHING

    def admit(self, link: Link) -> str | None:
        """Accepts a connection as one to the host, until a later server is known; or returns why it
        is not. A server that does not report its identity is accepted."""
        identity = link.server.identity
        if identity is None:
            return None
        with self._mine():
            refusal = self._records.refusal(identity)
            if refusal is not None:
                return refusal
            awaited, known = self._records.awaits(identity), self._records.record
            if awaited is None:
                generation = 0 if known is None else known.generation
                self._see(Record(generation, identity.system, identity.timeline or 0))
            elif identity.timeline is not None and not link.server.read_only:
                self._see(awaited)
            self._open.add(link)
            if identity.timeline is not None:
                self._host = link.server
            return None

    def accept(self, records: Iterable[Record]) -> bool:
        """Takes over a server's records, if they show that an operator accepted it in place of the
        known server, or awaits another in its place."""
        with self._mine():
            known, records = self._records.record, list(records)
            if known is None:
                return False
            new = known.replaced_by(records)
            if new is None and known.is_among(records):
                new = next((record for record in records if record.is_awaited), None)
            if new is not None:
                self._learn(new)
            return new is not None
