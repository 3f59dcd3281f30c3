"""Which server answers under a host's name, and whether it is still the host: the rules, as src/pg/identity.rs has them.

After a fail-over the former primary may come back as it was: it takes writes that the promoted server never has. The two are
told apart by their timeline, which a promotion raises; a server of another cluster is told by its system identifier.

Invariant: once a process has seen a host at a timeline, no connection of an older one is used there: new ones are refused,
those that are open are cut, whatever they are in the middle of.
"""

from __future__ import annotations

import enum
import os
import re
import threading
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

_LOG_FILE = re.compile(r"[0-9A-F]{8}", re.ASCII)


@dataclass(frozen=True)
class Identity:
    """Which server it is, as it says itself."""

    system: int
    """The system identifier, which a server has in common with its standbys, and with every other copy of its files."""
    timeline: int | None
    """The timeline that it writes. None of a standby."""


@dataclass(frozen=True)
class Server:
    """What one server says when it is asked who it is."""

    identity: Identity | None = None
    """None where it does not say: some services have taken the functions away."""
    started: float = 0.0
    """When it was started, in seconds since 1970: two addresses that lead to one server say the same."""

    @property
    def timeline(self) -> int | None:
        """The timeline that it writes. None of a standby, and where it does not say."""
        return None if self.identity is None else self.identity.timeline

    def rivals(self, other: Server) -> bool:
        """Whether both take writes, and neither is the later."""
        one, two = self.identity, other.identity
        if one is None or two is None or one.timeline is None or two.timeline is None or self == other:
            return False
        return one.timeline == two.timeline or one.system != two.system


def timeline_of(file: str | None) -> int | None:
    """The first eight digits of a log file's name."""
    found = None if file is None else _LOG_FILE.match(file)
    return None if found is None else int(found.group(), 16)


@dataclass(frozen=True)
class Record:
    """What is known of a host: how often an operator has accepted a server for it, and which server it is."""

    generation: int
    """1 when the host was bootstrapped, one more each time that an operator accepted another. 0: seen, not recorded."""
    system: int
    """The system identifier."""
    timeline: int
    """The highest timeline that was seen."""

    def refusal(self, identity: Identity) -> str | None:
        """Why the server of this identity is not the host; None: it is."""
        if identity.system != self.system:
            return (
                f"it is another server: its system identifier is {identity.system}, the host's is {self.system}. Nothing is "
                "written there: correct the url; if the host was upgraded or restored by a dump, `pgshard host accept` says so"
            )
        if identity.timeline is not None and identity.timeline < self.timeline:
            return (
                f"it is a former primary: it writes timeline {identity.timeline}, and the host was seen at timeline "
                f"{self.timeline}. Nothing is written there: fence it (docs/high-availability.md); if it is what was restored "
                "on purpose, `pgshard host accept` says so"
            )
        return None

    def joined(self, other: Record) -> Record:
        """What is known with both. What contradicts this one, without an operator's word, is left out."""
        former, latter = (other, self) if other.generation < self.generation else (self, other)
        if former.system == latter.system and former.generation in (latter.generation, 0):
            return replace(latter, timeline=max(former.timeline, latter.timeline))
        return self if former.generation == latter.generation else latter

    def replaced_by(self, records: Sequence[Record]) -> Record | None:
        """The last of these records of one server, the last generation first, if by them it took the place of this one."""
        if not records or records[0].generation <= self.generation:
            return None
        descends = any(record.system == self.system and self.generation in (0, record.generation) for record in records)
        return records[0] if descends else None


class Seen(enum.Enum):
    """What an answer at one of a host's addresses says of the host."""

    NOTHING = "nothing"
    """Nothing new: a standby, or the host."""
    LATER = "later"
    """The host is there now."""
    IMPOSTOR = "impostor"
    """Another server that takes writes."""
    RIVAL = "rival"
    """Another server that takes writes, and nothing tells which is the host."""


class Link(Protocol):
    """A connection, as far as this module needs one."""

    server: Server

    def cut(self) -> None:
        """Ends it, whatever it is in the middle of; from any thread."""

    def __hash__(self) -> int: ...


class Known:
    """What a process knows of one host, and its open connections there. For all its threads."""

    def __init__(self) -> None:
        self.settled = False
        """Whether all addresses were asked once."""
        self.answered = 0
        """The address, by its number, that a new connection begins with."""
        self._record: Record | None = None
        self._host = Server()
        self._forget()

    def _forget(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._open: weakref.WeakSet[Link] = weakref.WeakSet()
        self.looking = False
        """Whether a thread of this process looks at the other addresses."""

    def _mine(self) -> threading.Lock:
        if self._pid != os.getpid():
            # In the child of a fork: connections are the parent's, as is the thread that may have held the lock.
            self._forget()
        return self._lock

    @property
    def record(self) -> Record | None:
        """What is known, if anything is."""
        return self._record

    def start_looking(self) -> bool:
        """True for the first caller of a process."""
        with self._mine():
            first, self.looking = not self.looking, True
            return first

    def refusal(self, server: Server) -> str | None:
        """Why a server is not the host, by what is known now; None: it is, or does not say who it is."""
        record = self._record
        return None if record is None or server.identity is None else record.refusal(server.identity)

    def learn(self, record: Record) -> None:
        """Takes in a record, and cuts the connections to what is not the host by it."""
        with self._mine():
            self._learn(record)

    def _learn(self, record: Record) -> None:
        known = self._record = record if self._record is None else self._record.joined(record)
        for link in list(self._open):
            if link.server.identity is not None and known.refusal(link.server.identity) is not None:
                self._open.discard(link)
                link.cut()

    def learn_of(self, server: Server) -> Seen:
        """Takes in a server's own word, where it is of the system that is known."""
        with self._mine():
            known, identity = self._record, server.identity
            if known is None or identity is None or identity.timeline is None:
                return Seen.NOTHING
            if known.refusal(identity) is not None:
                return Seen.IMPOSTOR
            if identity.timeline > known.timeline:
                self._learn(replace(known, timeline=identity.timeline))
                return Seen.LATER
            return Seen.RIVAL if server.rivals(self._host) else Seen.NOTHING

    def admit(self, link: Link) -> str | None:
        """Takes a connection as one to the host, until a later server is known; or says why it is none. A server that does not
        say who it is, is taken."""
        identity = link.server.identity
        if identity is None:
            return None
        with self._mine():
            known = self._record
            refusal = None if known is None else known.refusal(identity)
            if refusal is not None:
                return refusal
            generation = 0 if known is None else known.generation
            self._learn(Record(generation, identity.system, identity.timeline or 0))
            self._open.add(link)
            if identity.timeline is not None:
                self._host = link.server
            return None

    def accept(self, records: Iterable[Record]) -> bool:
        """Takes in what a server has recorded, if by that an operator has accepted it in the place of the one that is known."""
        with self._mine():
            replaced = None if self._record is None else self._record.replaced_by(list(records))
            if replaced is not None:
                self._learn(replaced)
            return replaced is not None
