"""Which host a shard is on, as far as this process knows: from the map, and from what hosts have
reported since.

Invariant: a shard is never looked for at an older epoch than before. One lock guards the exchange
of an immutable snapshot, and nothing is called while it is held.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import psycopg

from .config import Config
from .connection import records
from .control import verify
from .errors import ConfigError, LegacyId, UnknownHost, WrongServer
from .follow import DatabaseFollower, FileFollower, load_map
from .hosts import Host
from .identity import Records
from .ids import shard_of_id
from .keys import key_of_text, shard_of_key
from .map import Placement, ShardMap

log = logging.getLogger("pgshard")

_ASK_AGAIN = 0.1
"""For how many seconds the file is not searched again for a host name that was not in it."""


class _Snapshot(NamedTuple):
    """A map, and the placements learned since, which are newer. A try uses one snapshot, never a
    mixture of two."""

    map: ShardMap
    learned: Mapping[int, Placement]

    def placement(self, shard: int) -> Placement:
        return self.learned.get(shard) or self.map.placements[shard]

    def with_map(self, map: ShardMap) -> _Snapshot:
        kept = {
            shard: place for shard, place in self.learned.items() if map.epochs[shard] < place.epoch
        }
        return _Snapshot(map, kept)


class Directory:
    """What a process knows of a cluster. All its threads may use it, and so may the children of a
    fork."""

    def __init__(self, config: Config) -> None:
        """A directory for the cluster of this config. If the map is kept in a database, it is read
        from there, or from the copy.

        Raises `ConfigError` if there is no map.
        """
        self.config = config
        map = config.map if config.map is not None else load_map(config)
        config.check_map(map)
        self._snapshot = _Snapshot(map, {})
        self._hosts: dict[str, Host] = dict(config.hosts)
        self._records: dict[str, Records] = {}
        self._unknown_at = float("-inf")
        self._lock = threading.Lock()
        self._unsharded = self._has_all(self._snapshot)
        self._follower: FileFollower | DatabaseFollower
        if config.store is None:
            self._follower = FileFollower(self)
        else:
            self._follower = DatabaseFollower(self, config.store)
        _directories.add(self)

    @classmethod
    def open(cls, path: str | os.PathLike[str] | None = None) -> Directory:
        """The directory for a config file; if no file is given, for the one that `Config.find`
        finds."""
        return cls(Config.load(Config.find(path)))

    @property
    def shards(self) -> int:
        """N, the number of shards."""
        return self.config.shards

    @property
    def map(self) -> ShardMap:
        """The newest map that was taken."""
        return self._snapshot.map

    @property
    def hosts(self) -> Iterable[Host]:
        """The hosts that are known now."""
        return list(self._hosts.values())

    @property
    def unsharded(self) -> Host | None:
        """The unsharded host, as long as it has all shards; None if there is none, and from when a
        shard is known to be elsewhere."""
        return self._unsharded

    def schema(self, shard: int) -> str:
        """The schema of a shard, not quoted, on the host where it is now: its own, or the one that
        an unsharded host has for all."""
        host = self._hosts.get(self._snapshot.placement(shard).host)
        whole = None if host is None else host.whole
        return self.config.schema(shard) if whole is None else whole

    def schema_at(self, place: Placement, shard: int) -> str:
        """The schema of a shard, not quoted, at this place. Raises `UnknownHost`."""
        whole = self.host(place.host).whole
        return self.config.schema(shard) if whole is None else whole

    def shard_of_key(self, key: object) -> int:
        """The shard of a key. Raises `WrongKey`."""
        return shard_of_key(self.config.key, key, self.config.shards)

    def shard_of_text(self, text: str) -> int:
        """The shard of a key that a person typed, as text. Raises `WrongKey`."""
        return self.shard_of_key(key_of_text(self.config.key, text))

    def shard_of_id(self, id: int) -> int:
        """The shard of an ID. Raises `WrongId`, and `LegacyId` for one from before the shards."""
        if 0 <= id < self.config.legacy_below:
            raise LegacyId(id, self.config.legacy_below)
        return shard_of_id(id, self.config.shards)

    def place(self, shard: int) -> Placement:
        """Where the next try of a statement goes. Takes no lock, and does no I/O except to read the
        file's modification time."""
        self._follower.glance()
        snapshot = self._snapshot
        # The same as `placement`: this runs for each statement.
        return snapshot.learned.get(shard) or snapshot.map.placements[shard]

    def epoch(self, shard: int) -> int:
        """The epoch at which the shard is where it is, as far as this process knows. Queries no
        host and reads no file."""
        return self._snapshot.placement(shard).epoch

    def host(self, name: str) -> Host:
        """The host of this name. If it was added to the file since, the file is read for it.

        Raises `UnknownHost`.
        """
        host = self._hosts.get(name)
        if host is None and time.monotonic() - self._unknown_at >= _ASK_AGAIN:
            try:
                self._meet(Config.load(self.config.path))
            except ConfigError:
                pass  # The file cannot be read just now, so it names no host.
            host = self._hosts.get(name)
            if host is None:
                self._unknown_at = time.monotonic()
        if host is None:
            raise UnknownHost(
                f"{self.config.path}: there is no [hosts.{name}], and a shard is said to be there:"
                " add it"
            )
        return host

    def meet(self, connection: psycopg.Connection[Any], host: Host) -> None:
        """Called with the first connection to a host: compares what the host recorded with the
        config, and takes over what it knows about which server each host is.

        Raises `HostDiffers`, and `WrongServer` if the records show that this server is not the
        host.
        """
        config = self.config
        verify(connection, host, config.shards, config.key, config.legacy_below)
        said = records(connection)
        with self._lock:
            for name, record in said:
                self._records.setdefault(name, Records()).add(record)
        for other in self.hosts:
            self._teach(other)
        server = getattr(connection, "server", None)
        refusal = None if server is None else host.known.refusal(server)
        if refusal is not None:
            raise WrongServer(f"host {host.name} is not connected to: {refusal}")

    def _teach(self, host: Host) -> None:
        known = self._records.get(host.name)
        for record in [] if known is None else known.each():
            host.known.learn(record)

    def learn(self, shard: int, place: Placement) -> None:
        """Takes over what a host has reported about itself."""
        with self._lock:
            before = self._snapshot
            if before.placement(shard).epoch < place.epoch:
                self._exchange(_Snapshot(before.map, {**before.learned, shard: place}))

    def _exchange(self, snapshot: _Snapshot) -> None:
        """Takes the next snapshot, with the lock held."""
        self._unsharded = self._has_all(snapshot)
        self._snapshot = snapshot

    def _has_all(self, snapshot: _Snapshot) -> Host | None:
        """The unsharded host, if it has all shards."""
        host = next((host for host in self._hosts.values() if host.whole is not None), None)
        if host is None or any(one.host != host.name for one in snapshot.learned.values()):
            return None
        return host if set(snapshot.map.hosts) == {host.name} else None

    def take(self, map: ShardMap) -> None:
        """Takes over a map, unless it is older than the present one. Raises `ConfigError` if it is
        of another cluster, or gives an unsharded host some of the shards."""
        if map.shards != self.config.shards:
            raise ConfigError(
                str(self.config.path),
                [f"a map of {map.shards} shards, this cluster has {self.shards}"],
            )
        self.config.check_map(map)
        with self._lock:
            if map.version >= self._snapshot.map.version:
                self._exchange(self._snapshot.with_map(map))

    def refresh(self) -> None:
        """Looks now whether there is a newer map."""
        self._follower.look()

    def take_config(self, config: Config) -> None:
        """Takes over the map and the new hosts of a changed file. Raises `ConfigError` if the file
        is of another cluster."""
        fixed = ("shards", "epoch_ms", "prefix", "key", "legacy_below")
        wrong = [name for name in fixed if getattr(config, name) != getattr(self.config, name)]
        if wrong:
            raise ConfigError(
                str(config.path),
                [f"[cluster] {name} has changed, and it never may" for name in wrong],
            )
        self._meet(config)
        if config.map is not None:
            self.take(config.map)

    def _meet(self, config: Config) -> None:
        # The known hosts stay as they are, so that their connections stay.
        for name, host in config.hosts.items():
            if name not in self._hosts:
                log.info("met the host %s, which was added to %s", name, config.path)
                self._hosts = {**self._hosts, name: host}
                self._teach(host)

    def after_fork(self) -> None:
        """Makes the directory usable in the child of a fork. It is called automatically."""
        self._lock = threading.Lock()
        self._follower.after_fork()


_directories: weakref.WeakSet[Directory] = weakref.WeakSet()


def _after_fork() -> None:
    for directory in list(_directories):
        directory.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
