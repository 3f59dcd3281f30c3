"""Following the map: in the config file, or in a database table with changes announced by NOTIFY.

Invariant: a map that cannot be read never replaces the last good one; the reason is logged.
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile
import threading
import time
import weakref
from pathlib import Path
from typing import Any, Protocol

import psycopg

from .config import Config, MapStore
from .errors import ConfigError
from .hosts import LOGIN_AGAIN
from .map import ShardMap, is_host_name

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

log = logging.getLogger("pgshard")

FILE_INTERVAL = 0.5
"""In seconds: how often the file's modification time is looked at, at most."""
DATABASE_INTERVAL = 5.0
"""In seconds: how often a database is queried, in addition to its notifications."""
_FORMAT = 1
"""The `pgshard_map.format` that is understood here."""


class MapSink(Protocol):
    """What a follower brings new maps to."""

    @property
    def config(self) -> Config:
        """The newest config that was taken."""

    @property
    def map(self) -> ShardMap:
        """The newest map that was taken."""

    @property
    def shards(self) -> int:
        """N, the number of shards."""

    def take(self, map: ShardMap) -> None:
        """Takes a map that may be newer."""

    def take_config(self, config: Config) -> None:
        """Takes what may have changed in the config file."""


class FileFollower:
    """Looks at the file when a place is looked up. It has no thread, so a fork loses nothing."""

    def __init__(self, directory: MapSink) -> None:
        self._directory = weakref.ref(directory)
        self._path = directory.config.path
        self._looked = time.monotonic()
        # What was loaded may be older than what the file holds by now, so the first look reads it
        # again.
        self._seen: tuple[int, int, int] | None = None
        self._turn = threading.Lock()
        self._complained = False

    def glance(self) -> None:
        """Looks, unless the last look was a moment ago."""
        if time.monotonic() - self._looked >= FILE_INTERVAL:
            self.look()

    def look(self) -> None:
        """Reads the file if it has changed. If another thread is reading it, this does not wait."""
        if not self._turn.acquire(blocking=False):
            return
        try:
            self._looked = time.monotonic()
            directory = self._directory()
            try:
                stat = os.stat(self._path)
                stamp = (stat.st_mtime_ns, stat.st_ino, stat.st_size)
                if stamp == self._seen or directory is None:
                    return
                directory.take_config(Config.load(self._path))
                self._seen, self._complained = stamp, False
            except (OSError, ConfigError) as error:
                if not self._complained:
                    log.warning(
                        "the map stays at version %s: %s",
                        directory and directory.map.version,
                        error,
                    )
                self._complained = True
        finally:
            self._turn.release()

    def after_fork(self) -> None:
        """In the child the lock is free."""
        self._turn = threading.Lock()


class DatabaseFollower:
    """A thread that listens. It starts at the first use, and again in the child of a fork."""

    def __init__(self, directory: MapSink, store: MapStore) -> None:
        self._directory = weakref.ref(directory)
        self._store = store
        self._shards = directory.shards
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None

    def glance(self) -> None:
        """Makes sure that the thread runs."""
        if self._thread is None:
            with self._starting:
                if self._thread is None:
                    thread = threading.Thread(target=self._run, name="pgshard map", daemon=True)
                    thread.start()
                    self._thread = thread

    def look(self) -> None:
        """Reads the map now, on a connection of its own."""
        directory = self._directory()
        if directory is not None:
            directory.take(_from_database(self._store, self._shards))

    def after_fork(self) -> None:
        """The parent's thread does not exist in the child."""
        self._starting = threading.Lock()
        self._thread = None

    def _run(self) -> None:
        failures = 0
        while self._directory() is not None:
            try:
                with _connect(self._store) as connection:
                    # This comes before the map is read, so that a map that is published in between
                    # is not missed.
                    connection.execute("LISTEN pgshard_map")
                    while True:
                        self._take(_fetch(connection, self._store, self._shards))
                        if failures:
                            log.info(
                                "the map is followed again in %s", self._store.database.address
                            )
                        failures = 0
                        if not self._wait(connection):
                            return
            except (psycopg.Error, ConfigError) as error:
                failures += 1
                if failures == 1:
                    place = self._store.database.address
                    log.warning("the map stays as it is: %s does not give it: %s", place, error)
                time.sleep(min(0.1 * 2 ** min(failures, 10), DATABASE_INTERVAL))

    def _take(self, map: ShardMap) -> None:
        directory = self._directory()
        if directory is not None:
            directory.take(map)
            _keep_copy(self._store, map)

    def _wait(self, connection: psycopg.Connection[Any]) -> bool:
        """Waits until there is news or it is time for another query. False if the map is no longer
        needed."""
        until = time.monotonic() + DATABASE_INTERVAL
        while time.monotonic() < until:
            for _ in connection.notifies(timeout=1.0, stop_after=1):
                return True
            if self._directory() is None:
                return False
        return True


def load_map(config: Config) -> ShardMap:
    """The map of a config that keeps it in a database, or the copy while the database cannot be
    queried. Raises `ConfigError`."""
    store = config.store
    assert store is not None, "a config has its map in the file or in a store"
    try:
        map = _from_database(store, config.shards)
    except psycopg.Error as error:
        problem = f"[map] the map's database {store.database.address} cannot be asked: {error}"
        copied = _copied(store.cache, config.shards)
        if copied is None:
            raise ConfigError(str(config.path), [problem]) from None
        log.warning(
            "%s: version %s is taken from the copy %s", problem, copied.version, store.cache
        )
        return copied
    _keep_copy(store, map)
    return map


def _connect(store: MapStore) -> psycopg.Connection[Any]:
    """Connects to the map's database. A login that is refused is tried again."""
    options: dict[str, Any] = {"autocommit": True, "application_name": "pgshard map"}
    try:
        return psycopg.connect(**{**store.database.connect_args(), **options})
    except psycopg.OperationalError as error:
        if not store.database.reads_again(error):
            raise
    time.sleep(LOGIN_AGAIN)
    return psycopg.connect(**{**store.database.connect_args(), **options})


def _from_database(store: MapStore, shards: int) -> ShardMap:
    with _connect(store) as connection:
        return _fetch(connection, store, shards)


def _fetch(connection: psycopg.Connection[Any], store: MapStore, shards: int) -> ShardMap:
    sql = (
        "SELECT m.version, m.shards, m.placement, f.version FROM pgshard_map.map m,"
        " pgshard_map.format f"
    )
    row = connection.execute(sql, prepare=False).fetchone()
    place = f"the map in {store.database.address}"
    if row is None:
        raise ConfigError(place, ["there is no map: `pgshard map import` writes one"])
    version, count, lists, format = row
    if format != _FORMAT:
        raise ConfigError(
            place, [f"tables of format {format}, this package knows {_FORMAT}: take a newer one"]
        )
    if count != shards:
        raise ConfigError(place, [f"it is of {count} shards, this cluster has {shards}"])
    wrong = [f'"{host}" is not a valid host name' for host in lists if not is_host_name(host)]
    if wrong:
        raise ConfigError(place, wrong)
    return ShardMap.of(version, count, lists, place)


def _copied(path: Path | None, shards: int) -> ShardMap | None:
    """The copy on disk, as the `[map]` section of a config; None if no usable copy exists."""
    if path is None:
        return None
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))["map"]
        return ShardMap.of(int(table["version"]), shards, dict(table["placement"]), str(path))
    except (OSError, ValueError, KeyError, TypeError, ConfigError) as error:
        log.warning("the copy of the map %s cannot be used: %s", path, error)
        return None


def _keep_copy(store: MapStore, map: ShardMap) -> None:
    """Writes the copy, unless it is already there: the file is whole or absent, even if the power
    fails."""
    path = store.cache
    if path is None:
        return
    lists = "".join(f'{host} = "{map.ranges(host)}"\n' for host in sorted(set(map.hosts)))
    head = (
        f"# The map as {store.database.address} had it, for when that cannot be asked. Every new"
        " map replaces it.\n\n"
    )
    text = f"{head}[map]\nversion = {map.version}\n\n[map.placement]\n{lists}"
    try:
        if path.exists() and path.read_text(encoding="utf-8") == text:
            return
        handle, name = tempfile.mkstemp(prefix=".pgshard-map-", suffix=".tmp", dir=path.parent)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(name, 0o644)
            os.replace(name, path)
        except OSError:
            os.unlink(name)
            raise
    except OSError as error:
        log.warning("version %s of the map is not in the copy %s: %s", map.version, path, error)
