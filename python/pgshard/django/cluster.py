"""The cluster of this process: its config, its directory, and the names of its shards among
Django's database aliases."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.utils.functional import cached_property

from ..config import Config
from ..directory import Directory
from ..errors import ConfigError
from ..hosts import Host
from ..keys import KeyKind, shard_of_key
from ..lookups import Lookups
from ..recovery import RecoveryContext
from . import unnamed
from .own_shards import OwnShards

ENGINE = "pgshard.django.backend"
PREFIX = "shard-"
TEST_CONFIG = "PGSHARD_DJANGO_TEST_CONFIG"
"""The environment variable that a test run sets for its processes, so that none of them reaches the
real shards."""


class Cluster:
    """A config, and objects that are opened when they are first needed."""

    def __init__(self, config: Config, options: dict[str, Any], in_tests: bool = False) -> None:
        """`in_tests`: the config is one that `pgshard.django.test` made."""
        self.config = config
        self.options = options
        self.shards = config.shards
        """N, the number of shards."""
        self.legacy_below = config.legacy_below
        """IDs from 0 up to this one, exclusively, were made before the shards."""
        self.has_unsharded = config.unsharded is not None
        """Whether the config has an unsharded host. Without one, no call looks for it."""
        self._in_tests = in_tests
        self.divides_keys = config.key is KeyKind.INTEGER and not in_tests
        """Whether keys are integers, and the shard of each is its remainder."""
        self._own = OwnShards(self) if in_tests else None
        self.by_alias: dict[str, int] = {}
        """Shards by alias, for the aliases that were asked for."""
        self._lock = threading.RLock()
        self._recovery_context: RecoveryContext | None = None

    # Each statement needs both, so after the first time they are read without a lock.
    @cached_property
    def recovery_context(self) -> RecoveryContext:
        """How this process finds out where shards are."""
        with self._lock:
            if self._recovery_context is None:
                self._recovery_context = RecoveryContext(Directory(self.config))
            return self._recovery_context

    @cached_property
    def lookups(self) -> Lookups:
        """The look-ups of the cluster. In tests, what a test case has claimed and rolled back is no
        obstacle to the next one."""
        more = {"grace": 0.0} if self._in_tests else {}
        return Lookups(self.recovery_context, shard_of_key=self.shard_of_key, **more)

    @cached_property
    def directory(self) -> Directory:
        """Which host a shard is on."""
        return self.recovery_context.directory

    def shard_of_key(self, key: Any) -> int:
        """The shard of a key. Raises `WrongKey`."""
        shard = shard_of_key(self.config.key, key, self.shards)
        return shard if self._own is None else self._own.shard_of(key, shard)

    def after_fork(self) -> None:
        """In the child, the lock may be held by a thread that does not exist there."""
        self._lock = threading.RLock()
        if self._own is not None:
            self._own.after_fork()


class _State:
    """The state that exists once in a process, because Django has one set of settings."""

    cluster: Cluster | None = None
    visible: tuple[str, ...] = ()
    """The aliases of shards that a loop over all databases sees: only used in tests."""


state = _State()


def cluster() -> Cluster:
    """The cluster of the settings. Raises `ImproperlyConfigured` if there is none."""
    if state.cluster is None:
        remedy = 'DATABASES = pgshard.django.databases("pgshard.toml", default={…})'
        raise ImproperlyConfigured(f"no cluster is configured: write {remedy} in the settings")
    return state.cluster


class _Aliases(dict[int, str]):
    def __missing__(self, shard: int) -> str:
        return self.setdefault(shard, sys.intern(f"{PREFIX}{shard}"))


ALIASES = _Aliases()
"""By shard, its database alias: the same string each time, which Python finds faster in
dictionaries than an equal one."""


class AllRows(str):
    """In the place of a shard's alias: all rows of the unsharded host, at once. The text is the
    alias of shard 0, on whose connection object they are queried."""

    __slots__ = ()


class Unrouted(AllRows):
    """The same, for a query that names no key. Shards would refuse it."""

    __slots__ = ()


ALL_ROWS = AllRows(ALIASES[0])
UNROUTED = Unrouted(ALIASES[0])


def unsharded_host() -> Host | None:
    """The unsharded host, as long as it has all shards; None if there is none."""
    current = state.cluster or cluster()
    return current.directory.unsharded if current.has_unsharded else None


def alias(shard: int) -> str:
    """The database alias of a shard, such as `shard-31`."""
    return ALIASES[shard]


def shard_of_alias(name: object) -> int | None:
    """The shard that an alias names; None for any other name, and for a shard that the cluster does
    not have."""
    current = state.cluster
    if not isinstance(name, str) or current is None:
        return None
    found = current.by_alias.get(name)
    if found is not None or not name.startswith(PREFIX):
        return found
    digits = name[len(PREFIX) :]
    if not digits.isascii() or not digits.isdigit() or (digits[0] == "0" and digits != "0"):
        return None
    if len(digits) > 4 or int(digits) >= current.shards:
        return None
    return current.by_alias.setdefault(name, int(digits))


class Databases(dict[str, Any]):
    """The real databases, and one for each shard, which is made when it is first used and which no
    loop sees.

    So `migrate`, `check` and everything else that loops over databases sees only the real ones, and
    8192 shards cost nothing.
    """

    def __init__(self, real: dict[str, Any], options: dict[str, Any]) -> None:
        super().__init__(real)
        self._options = options

    def __missing__(self, name: str) -> dict[str, Any]:
        if shard_of_alias(name) is None:
            raise KeyError(name)
        return {
            "ENGINE": ENGINE,
            "NAME": name,
            "USER": "",
            "PASSWORD": "",
            "HOST": "",
            "PORT": "",
            "ATOMIC_REQUESTS": False,
            "AUTOCOMMIT": True,
            "CONN_MAX_AGE": 0,
            "CONN_HEALTH_CHECKS": False,
            "OPTIONS": self._options,
            "TIME_ZONE": None,
            "TEST": {
                "CHARSET": None,
                "COLLATION": None,
                "MIGRATE": False,
                "MIRROR": None,
                "NAME": None,
            },
        }

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or shard_of_alias(name) is not None

    def __iter__(self) -> Iterator[str]:
        yield from super().__iter__()
        yield from state.visible

    def keys(self) -> Any:
        """The real databases; in tests also the shards."""
        return list(self)


def databases(
    config: str | os.PathLike[str] | None = None,
    *,
    default: dict[str, Any],
    options: dict[str, Any] | None = None,
    **others: dict[str, Any],
) -> Databases:
    """The setting `DATABASES`: the default database, others, and an alias `shard-N` for each shard
    of this config.

    `config`: the file; without it, the one that PGSHARD_CONFIG names, or `./pgshard.toml`.
    `options`: for the connections to shards, like Django's `OPTIONS` for PostgreSQL. Nothing is
    connected to yet.

    Raises `ImproperlyConfigured` with everything that is wrong with the file.
    """
    in_tests = os.environ.get(TEST_CONFIG)
    try:
        read = Config.load(in_tests or Config.find(config))
    except ConfigError as error:
        raise ImproperlyConfigured(str(error)) from error
    wrong = [name for name in ("default", *others) if name.startswith(PREFIX)]
    if wrong:
        raise ImproperlyConfigured(
            f"databases cannot be called {', '.join(wrong)}: names that begin with {PREFIX} are for"
            " shards"
        )
    unnamed.change_django()
    state.cluster = Cluster(read, dict(options or {}), in_tests is not None)
    state.visible = tuple(alias(shard) for shard in range(read.shards)) if in_tests else ()
    return Databases({"default": default, **others}, state.cluster.options)


def _after_fork() -> None:
    if state.cluster is not None:
        state.cluster.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
