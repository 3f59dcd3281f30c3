"""The config file `pgshard.toml`, read and checked by the command's rules; only the messages name
no line.

Invariant: a config that loads can be used (every shard is placed once, every name is known), and no
message shows a password.
"""

from __future__ import annotations

import datetime
import difflib
import os
import re
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .errors import ConfigError
from .hosts import Host, read_conninfo
from .ids import SHARD_BITS_END
from .keys import SHARDS_MAX, KeyKind
from .layout import Unrouted, schema_problem
from .map import ShardMap, is_host_name, parse_ranges
from .password_command import PasswordCommand
from .values import NAME_MAX, Definition, Fold

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FILE_NAME = "pgshard.toml"
"""The name of the file, if nothing else is given."""
ENVIRONMENT = "PGSHARD_CONFIG"
"""The environment variable that names the file."""

_PREFIX = re.compile(r"(?!pg_)[a-z][a-z0-9_]*", re.ASCII)
_PREFIX_MAX = 37
_VERSION_MAX = 1 << 62
_MS_MAX = (1 << 41) - 1
_TIME = re.compile(
    r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d)(:\d\d)?(?:\.(\d{1,9}))?([Zz]|[+-]\d\d:\d\d)",
    re.ASCII,
)
_HOST_KEYS = (
    "url",
    "password_env",
    "password_file",
    "password_command",
    "pool_size",
    "router_url",
    "prepare",
    "reads",
    "replica_url",
    "weight",
    "max_shards",
    "max_bytes",
    "layout",
    "schema",
    "unrouted",
)
_ROUTER_KEYS = (
    "max_connections",
    "statement_timeout_ms",
    "prepare",
    "recycle",
    "selects",
    "idle_timeout_ms",
    "max_lifetime_ms",
    "max_replica_lag_ms",
    "replica_wait_ms",
)
_PREPARE = ("named", "unnamed")
_LOOKUP = re.compile(rf"[a-z][a-z0-9_]{{0,{NAME_MAX - 1}}}", re.ASCII)
_LOOKUP_FORM = 'write [lookups.emails] with table = "users", columns = ["email"] and key = "id"'
_COLUMNS_MAX = 32
_IDENTIFIER_MAX = 63


@dataclass(frozen=True)
class MapStore:
    """Where the map is kept if it is not in the file: in a table of a database."""

    database: Host
    """The database that `[map] url` names."""
    cache: Path | None
    """The file that keeps a copy, so that a process can start while the database is away."""


@dataclass(frozen=True)
class Config:
    """A config that was read and checked."""

    path: Path
    """The file it was read from."""
    shards: int
    """N, the number of shards: a key's shard is key mod N."""
    epoch_ms: int
    """The zero of the clock in IDs, in Unix milliseconds."""
    prefix: str
    """The beginning of a shard's schema name, before the number."""
    key: KeyKind
    """Which kind of keys the cluster has."""
    migrations: Path | None
    """The folder of the application's shard migrations."""
    hosts: Mapping[str, Host] = field(repr=False)
    """The hosts by name. A host may have no shards."""
    map: ShardMap | None = field(repr=False)
    """The map from the file; None if the map is kept in a database."""
    store: MapStore | None
    """The database that keeps the map; None if the map is in the file."""
    lookups: Mapping[str, Definition] = field(default_factory=dict, repr=False)
    """The look-ups by name."""
    legacy_below: int = 0
    """IDs from 0 up to this one, exclusively, were made before the shards, and name none."""

    @property
    def unsharded(self) -> Host | None:
        """The host that keeps all shards in one schema of ordinary tables, if there is one."""
        return next((host for host in self.hosts.values() if host.whole is not None), None)

    def schema(self, shard: int) -> str:
        """The schema of a shard, not quoted, on a host with a schema for each: `shard_0007`."""
        return f"{self.prefix}{shard:04d}"

    def check_map(self, map: ShardMap) -> None:
        """Checks that a map gives the unsharded host all shards or none. Raises `ConfigError`."""
        host = self.unsharded
        here = 0 if host is None else map.hosts.count(host.name)
        if host is not None and 0 < here < map.shards:
            raise ConfigError(
                str(self.path),
                [
                    f"the map gives {host.name} {here} of {map.shards} shards: it is unsharded, and"
                    " serves all of them or none"
                ],
            )

    @staticmethod
    def find(explicit: str | os.PathLike[str] | None = None) -> Path:
        """Where the config is: the given file, or the one that PGSHARD_CONFIG names, or
        `./pgshard.toml`."""
        return Path(explicit or os.environ.get(ENVIRONMENT) or FILE_NAME)

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Config:
        """Reads and checks a file. Raises `ConfigError` with everything that is wrong."""
        path = Path(path)
        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            remedy = f"`pgshard init` writes one; {ENVIRONMENT} names another"
            raise ConfigError(str(path), [f"there is no such file: {remedy}"]) from None
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise ConfigError(str(path), [f"cannot be read: {reason}"]) from None
        return Config.parse(text, path)

    @staticmethod
    def parse(text: str, path: str | os.PathLike[str]) -> Config:
        """Checks the text of a config, which is in the file `path`: relative paths start at that
        file's folder.

        Raises `ConfigError` with everything that is wrong.
        """
        path = Path(path)
        try:
            root = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise ConfigError(str(path), [f"this is not TOML: {error}"]) from None
        return _Reader(path).read(root)


class _Section:
    """A table of the file, with its name for messages, and a list of what is wrong with it."""

    def __init__(self, name: str, table: Mapping[str, Any], problems: list[str]) -> None:
        self.name, self.table, self.problems = name, table, problems

    def only(self, known: Iterable[str]) -> None:
        known = list(known)
        for key in self.table:
            if key not in known:
                place = f" in [{self.name}]" if self.name else ""
                what = "section" if isinstance(self.table[key], dict) else "key"
                self.problems.append(f'unknown {what} "{key}"{place}: {_similar(key, known)}')

    def add(self, key: str, problem: str) -> None:
        self.problems.append(f"[{self.name}] {key}: {problem}")

    def get(self, key: str, kind: type, wanted: str, remedy: str | None = None) -> Any:
        """The value. None if it is missing (which is a problem if `remedy` is given), or has
        another type (which is always a problem)."""
        if key not in self.table:
            if remedy is not None:
                missing = (
                    f"[{self.name}] has no {key}"
                    if self.name
                    else f"the section [{key}] is missing"
                )
                self.problems.append(f"{missing}: {remedy}")
            return None
        value = self.table[key]
        if not isinstance(value, kind) or isinstance(value, bool):
            self.problems.append(f"{self.path(key)} must be {wanted}, not {_type_name(value)}")
            return None
        return value

    def path(self, key: str) -> str:
        return f"{self.name}.{key}" if self.name else key

    def text(self, key: str, remedy: str | None = None) -> str | None:
        value: str | None = self.get(key, str, "a string", remedy)
        return value

    def number(self, key: str, remedy: str | None = None) -> int | None:
        value: int | None = self.get(key, int, "a whole number", remedy)
        return value

    def word(self, key: str, words: tuple[str, ...], default: str) -> str:
        value = self.text(key)
        if value is not None and value not in words:
            quoted = " or ".join(f'"{word}"' for word in words)
            self.add(key, f"{key} is {quoted}{_did_you_mean(value, words)}")
        return value if value in words else default

    def section(self, key: str, remedy: str | None = None) -> _Section | None:
        table = self.get(key, dict, "a table", remedy)
        return None if table is None else _Section(self.path(key), table, self.problems)


def _similar(word: str, known: list[str]) -> str:
    return _did_you_mean(word, known).removeprefix(": ") or f"known are {', '.join(known)}"


def _did_you_mean(word: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(word, list(known), 1)
    return f': did you mean "{close[0]}"?' if close else ""


def _type_name(value: object) -> str:
    names = {
        bool: "a boolean",
        str: "a string",
        int: "an integer",
        float: "a float",
        list: "an array",
        dict: "a table",
    }
    return names.get(type(value), "a datetime")


class _Reader:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.folder = path.parent
        self.problems: list[str] = []

    def read(self, table: Mapping[str, Any]) -> Config:
        root = _Section("", table, self.problems)
        root.only(["cluster", "hosts", "router", "rebalance", "tables", "lookups", "map"])
        cluster = root.section(
            "cluster", "add [cluster] with shards and epoch; `pgshard init` writes a whole config"
        )
        shards = epoch_ms = None
        prefix, key, migrations, legacy_below = "shard_", KeyKind.INTEGER, None, 0
        if cluster is not None:
            cluster.only(["shards", "epoch", "schema_prefix", "key", "migrations", "legacy_below"])
            shards, epoch_ms = self.shards(cluster), self.epoch(cluster)
            prefix, key, migrations = (
                self.prefix(cluster),
                self.key(cluster),
                self.migrations(cluster),
            )
            legacy_below = self.legacy_below(cluster, epoch_ms)
        router = root.section("router") or _Section("router", {}, self.problems)
        router.only(_ROUTER_KEYS)
        prepare = router.word("prepare", _PREPARE, "named")
        section = root.section(
            "hosts", 'add a section for each host: [hosts.db1] with url = "postgres://…"'
        )
        hosts = self.hosts(section, prepare, prefix) if section is not None else {}
        names = list(section.table) if section is not None else None
        map_section = root.section(
            "map", "add [map] with version = 1, and [map.placement] with a line for each host"
        )
        found, store = (
            self.map(map_section, shards, names) if map_section is not None else (None, None)
        )
        lookups_section = root.section("lookups")
        lookups = {} if lookups_section is None else self.lookups(lookups_section)
        if map_section is not None and shards is not None:
            self.all_or_none(map_section, shards, hosts)
        if self.problems or shards is None or epoch_ms is None:
            raise ConfigError(str(self.path), self.problems or ["the config is not complete"])
        return Config(
            self.path,
            shards,
            epoch_ms,
            prefix,
            key,
            migrations,
            hosts,
            found,
            store,
            lookups,
            legacy_below,
        )

    def shards(self, cluster: _Section) -> int | None:
        number = cluster.number(
            "shards", "add shards = 4096: many more than you will ever have servers"
        )
        if number is not None and not 1 <= number <= SHARDS_MAX:
            cluster.add("shards", f"shards must be 1 to {SHARDS_MAX}, not {number}")
            return None
        return number

    def epoch(self, cluster: _Section) -> int | None:
        value = cluster.table.get("epoch")
        if isinstance(value, datetime.datetime):
            text = value.isoformat()
        else:
            given = cluster.text("epoch", 'add epoch = "2026-01-01T00:00:00Z": a recent date')
            if given is None:
                return None
            text = given
        parts = _TIME.fullmatch(text)
        try:
            if parts is None:
                raise ValueError
            day, minutes, seconds, fraction, zone = parts.groups()
            zone = "+00:00" if zone in "Zz" else zone
            time = datetime.datetime.fromisoformat(f"{day}T{minutes}{seconds or ':00'}{zone}")
        except ValueError:
            problem = (
                f'the epoch "{text}" is not a time with its zone: write it like'
                ' "2026-01-01T00:00:00Z"'
            )
            cluster.add("epoch", problem)
            return None
        ns = int((fraction or "").ljust(9, "0"))
        unix = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
        ms = (time - unix) // datetime.timedelta(milliseconds=1) + ns // 1_000_000
        now = (datetime.datetime.now(datetime.timezone.utc) - unix) // datetime.timedelta(
            milliseconds=1
        )
        problem = ""
        if ns % 1_000_000:
            problem = "is finer than a millisecond: IDs count whole milliseconds"
        elif ms < 0:
            problem = "is before 1970: take a recent date, IDs last 69 years from there"
        elif ms > now:
            problem = "is in the future: IDs cannot tell of a time before their epoch"
        elif now - ms > _MS_MAX:
            problem = "is too long ago: its IDs have ended"
        if problem:
            cluster.add("epoch", f"the epoch {text} {problem}")
            return None
        return ms

    def prefix(self, cluster: _Section) -> str:
        prefix = cluster.text("schema_prefix")
        if prefix is None:
            return "shard_"
        if len(prefix) > _PREFIX_MAX or prefix == "pgshard" or not _PREFIX.fullmatch(prefix):
            rule = f"1 to {_PREFIX_MAX} of a-z, 0-9 and _, starting with a letter, and not pg_"
            cluster.add(
                "schema_prefix", f'schema prefix "{prefix}" must be {rule}: the default is "shard_"'
            )
        return prefix

    def key(self, cluster: _Section) -> KeyKind:
        name = cluster.text("key")
        if name is None:
            return KeyKind.INTEGER
        try:
            return KeyKind(name)
        except ValueError:
            known = [kind.value for kind in KeyKind]
            cluster.add("key", f'"{name}" is no kind of key: {_similar(name, known)}')
            return KeyKind.INTEGER

    def migrations(self, cluster: _Section) -> Path | None:
        # Only what runs migrations looks into the folder: applications have the config and not the
        # folder.
        name = cluster.text("migrations")
        return None if name is None else self.folder / name

    def legacy_below(self, cluster: _Section, epoch_ms: int | None) -> int:
        """The first ID that shards may have made. It must be behind all earlier ones, and before
        those that shards make now."""
        number = cluster.number("legacy_below")
        if number is None:
            return 0
        if number < 1:
            cluster.add(
                "legacy_below",
                f"legacy_below must be 1 or more, not {number}: write the largest ID that was made"
                " before the shards, plus one; without such IDs leave it out",
            )
        elif epoch_ms is not None:
            first = (time.time_ns() // 1_000_000 - epoch_ms) << SHARD_BITS_END
            if first < number:
                cluster.add(
                    "legacy_below",
                    f"legacy_below is {number}, and the IDs that shards make now begin at {first}:"
                    " IDs of the shards must be above all others: take an earlier epoch",
                )
        return number

    def hosts(self, section: _Section, prepare: str, prefix: str) -> dict[str, Host]:
        hosts: dict[str, Host] = {}
        unsharded: str | None = None
        databases: dict[tuple[str | None, ...], str] = {}
        for name in section.table:
            if not is_host_name(name):
                self.problems.append(
                    f'host name "{name}" must be 1 to 63 of A-Z, a-z, 0-9, _ and -'
                )
            entry = section.section(name)
            host = None if entry is None else self.host(name, entry, prepare, prefix)
            if entry is not None and entry.table.get("layout") == "unsharded":
                if unsharded is not None:
                    self.problems.append(
                        f'"{name}" is unsharded, and so is "{unsharded}": a cluster has one'
                        " database from before the shards: leave layout out of the others"
                    )
                unsharded = unsharded or name
            if host is None:
                continue
            hosts[name] = host
            for address in host.addresses:
                first = databases.setdefault(address, name)
                if first != name:
                    same = f'"{name}" is the same database as "{first}"'
                    self.problems.append(
                        f"{same}: each host must be a database of its own, a shard would be on both"
                    )
        if not section.table:
            self.problems.append(
                'there are no hosts: add [hosts.db1] with url = "postgres://user@address/database"'
            )
        return hosts

    def host(self, name: str, entry: _Section, prepare: str, prefix: str) -> Host | None:
        entry.only(_HOST_KEYS)
        url = entry.text("url", 'add url = "postgres://user@address:5432/database"')
        router_url = entry.text("router_url")
        own_prepare = entry.word("prepare", _PREPARE, prepare)
        entry.word("reads", ("primary", "replica"), "primary")
        whole = self.whole(entry, prefix)
        unrouted = self.unrouted(entry)
        size = entry.number("pool_size")
        if size is not None and not 1 <= size <= 1000:
            entry.add("pool_size", f"pool_size must be 1 to 1000, not {size}: the default is 16")
        password = self.password(entry)
        server = None if url is None else self.conninfo(entry, "url", url)
        pooler = server if router_url is None else self.conninfo(entry, "router_url", router_url)
        if server is None or pooler is None:
            return None
        return Host(
            name,
            pooler,
            server,
            pool_size=16 if size is None else size,
            named=own_prepare == "named",
            whole=whole,
            unrouted=unrouted,
            **password,
        )

    def whole(self, entry: _Section, prefix: str) -> str | None:
        """The schema of all shards, by `layout` and `schema`."""
        if entry.word("layout", ("sharded", "unsharded"), "sharded") == "sharded":
            if "schema" in entry.table and entry.table.get("layout", "sharded") == "sharded":
                entry.add(
                    "schema",
                    "schema is for an unsharded host: each shard has a schema of its own: leave it"
                    ' out; of a database from before the shards: layout = "unsharded"',
                )
            return None
        schema = entry.text(
            "schema", 'add schema = "app", the schema with the application\'s tables'
        )
        problem = None if schema is None else schema_problem(schema, prefix)
        if problem is not None:
            remedy = "name the schema that has the application's tables, and nothing else"
            entry.add("schema", f"{problem}: {remedy}")
        return schema

    def unrouted(self, entry: _Section) -> Unrouted:
        """What becomes of statements without a key, by `unrouted`."""
        if "unrouted" in entry.table and entry.table.get("layout", "sharded") == "sharded":
            entry.add(
                "unrouted",
                "unrouted is for an unsharded host: leave it out: on shards, statements without a"
                " key are always refused",
            )
            return Unrouted.REFUSE
        return Unrouted(entry.word("unrouted", ("refuse", "log"), "refuse"))

    def all_or_none(self, section: _Section, shards: int, hosts: Mapping[str, Host]) -> None:
        """Checks that the text gives an unsharded host all shards or none."""
        host = next((host for host in hosts.values() if host.whole is not None), None)
        placement = section.table.get("placement")
        text = placement.get(host.name) if host and isinstance(placement, dict) else None
        if host is None or not isinstance(text, str):
            return
        # What is wrong with the list itself is reported where the map is read.
        ranges, wrong = parse_ranges(text, shards)
        here = sum(last - first + 1 for first, last, _ in ranges)
        if not wrong and 0 < here < shards:
            self.problems.append(
                f"[map.placement] {host.name} is unsharded and gets {here} of {shards} shards: it"
                f' serves all of them or none: write {host.name} = "0-{shards - 1}"'
            )

    def conninfo(self, entry: _Section, key: str, text: str) -> Mapping[str, str] | None:
        found = read_conninfo(text, self.folder)
        if isinstance(found, str):
            entry.add(key, found)
            return None
        return found

    def password(self, entry: _Section) -> dict[str, Any]:
        env, file = entry.text("password_env"), entry.text("password_file")
        command = entry.get("password_command", list, "a list of strings, the program first")
        for key, value in (("password_env", env), ("password_file", file)):
            if value == "":
                entry.add(key, f"{key} is empty: leave it out")
        if command is not None and not (
            command and command[0] and all(isinstance(one, str) for one in command)
        ):
            # The arguments are not shown: one may be a secret.
            entry.add(
                "password_command",
                'it is a list of strings, the program first: ["program", "argument"]; a shell runs '
                'only if it is the program: ["sh", "-c", "…"]',
            )
            command = None
        sources = [
            key
            for key in ("password_env", "password_file", "password_command")
            if key in entry.table
        ]
        if len(sources) > 1:
            entry.add(
                sources[1],
                f"it stands beside {sources[0]}: a password has one source, take out one",
            )
        return {
            "password_env": env,
            "password_file": None if file is None else self.folder / file,
            "password_command": (
                None if command is None else PasswordCommand(tuple(command), self.folder)
            ),
        }

    def map(
        self, section: _Section, shards: int | None, hosts: list[str] | None
    ) -> tuple[ShardMap | None, MapStore | None]:
        kept_in = section.word("store", ("file", "postgres"), "file")
        if kept_in == "postgres":
            return None, self.store(section)
        section.only(["version", "placement", "store"])
        version = section.number("version", "add version = 1")
        if version is not None and not 1 <= version <= _VERSION_MAX:
            section.add(
                "version",
                f"the map's version cannot be {version}: the first is 1, each change adds 1",
            )
        placement = section.section("placement", "add [map.placement] with a line for each host")
        if placement is None:
            return None, None
        lists: dict[str, str] = {}
        for host in placement.table:
            if hosts is not None and host not in hosts:
                self.problems.append(
                    f'unknown host "{host}" in [map.placement]: {_similar(host, hosts)}'
                )
            text = placement.text(host)
            if text is not None:
                lists[host] = text
        if shards is None or version is None or len(lists) != len(placement.table):
            return None, None
        try:
            return ShardMap.of(version, shards, lists, "[map.placement]"), None
        except ConfigError as error:
            self.problems += [f"[map.placement] {problem}" for problem in error.problems]
            return None, None

    def lookups(self, section: _Section) -> dict[str, Definition]:
        found: dict[str, Definition] = {}
        for name in section.table:
            if not isinstance(section.table[name], dict):
                self.problems.append(f"lookups.{name} must be a section: {_LOOKUP_FORM}")
                continue
            if not _LOOKUP.fullmatch(name):
                self.problems.append(
                    f'"{name}" cannot be the name of a look-up: write a to z, digits and'
                    f" underscores, a letter first, {NAME_MAX} at most"
                )
            entry = _Section(section.path(name), section.table[name], self.problems)
            lookup = self.lookup(name, entry)
            if lookup is not None:
                found[name] = lookup
        return found

    def lookup(self, name: str, entry: _Section) -> Definition | None:
        entry.only(["table", "columns", "key", "unique", "fold"])
        table = self.identifier(entry, "table", "table", 'add table = "users"')
        columns = self.columns(entry)
        key = self.identifier(
            entry, "key", "column", 'add key = "id": the column with the sharding key'
        )
        unique = entry.table.get("unique", True)
        if unique is False:
            entry.add(
                "unique",
                f'the look-up "{name}" is not unique, which is not supported yet: write unique ='
                " true, or leave the look-up out",
            )
        elif unique is not True:
            self.problems.append(f"{entry.path('unique')} must be true, not {_type_name(unique)}")
        fold = entry.text("fold")
        folds = [one.value for one in Fold]
        if fold is not None and fold not in folds:
            entry.add(
                "fold",
                f'fold is "none" or "ascii", not "{fold}": keep another normal form in a column of'
                " its own",
            )
        if table is None or columns is None or key is None:
            return None
        if key in columns:
            self.problems.append(
                f'[{entry.name}] the look-up "{name}" looks up its own key "{key}": a key is unique'
                " by itself: the router finds its shard without a look-up"
            )
        return Definition(
            name, table, tuple(columns), key, Fold(fold) if fold in folds else Fold.NONE
        )

    def columns(self, entry: _Section) -> list[str] | None:
        names = entry.get(
            "columns",
            list,
            "a list of names",
            'add columns = ["email"]: the columns that are looked up',
        )
        if names is None:
            return None
        if not 1 <= len(names) <= _COLUMNS_MAX:
            entry.add(
                "columns",
                f"a look-up has 1 to {_COLUMNS_MAX} columns, not {len(names)}: {_LOOKUP_FORM}",
            )
            return None
        for at, name in enumerate(names):
            if not isinstance(name, str):
                self.problems.append(f"{entry.path('columns')} must be a list of names")
                return None
            if not self.is_identifier(entry, "columns", "column", name):
                return None
            if name in names[:at]:
                entry.add("columns", f'the column "{name}" is there twice')
                return None
        return list(names)

    def identifier(self, entry: _Section, key: str, what: str, remedy: str) -> str | None:
        name = entry.text(key, remedy)
        return name if name is not None and self.is_identifier(entry, key, what, name) else None

    def is_identifier(self, entry: _Section, key: str, what: str, name: str) -> bool:
        """Whether a name can be that of a table or a column in a shard. If not, that is a
        problem."""
        problem = ""
        if not name:
            problem = f"has no name: {_LOOKUP_FORM}"
        elif len(name.encode()) > _IDENTIFIER_MAX:
            problem = f"has a name of more than {_IDENTIFIER_MAX} bytes: {_LOOKUP_FORM}"
        elif any(mark in name for mark in "{}."):
            problem = (
                "names a schema: write the name alone, as in CREATE TABLE after {shard}., without"
                " quotes"
            )
        elif '"' in name:
            problem = "has a quote in its name: write it without quotes"
        if problem:
            entry.add(key, f'the {what} "{name}" {problem}')
        return not problem

    def store(self, section: _Section) -> MapStore | None:
        for key in ("version", "placement"):
            if key in section.table:
                section.add(
                    key,
                    'it stands beside store = "postgres": the map is in the database, take it out',
                )
        section.only(
            [
                "store",
                "url",
                "password_env",
                "password_file",
                "password_command",
                "cache",
                "version",
                "placement",
            ]
        )
        url = section.text("url", "add the url of the database that keeps the map")
        password = self.password(section)
        cache = section.text("cache")
        conninfo = None if url is None else self.conninfo(section, "url", url)
        if conninfo is None:
            return None
        database = Host("map", conninfo, conninfo, pool_size=1, named=False, **password)
        return MapStore(database, None if cache is None else self.folder / cache)
