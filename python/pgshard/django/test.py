"""For the tests of applications: a few shards in a test database of their own. Django's test cases
use them like any database.

    TEST_RUNNER = "pgshard.django.test.ShardedTestRunner"

With pytest-django no setting is needed: `pgshard.django.pytest_plugin` does the same.

While the config has its shards on an unsharded host, tests run on such a host too: a database with
the tables of the models in one schema, with IDs of ordinary sequences. `PGSHARD_TEST_LAYOUT =
"sharded"` makes them run on shards. What models do not declare, such as triggers, is in
`PGSHARD_TEST_SQL`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from django.apps import apps
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.db.backends.postgresql.base import DatabaseWrapper
from django.test import TransactionTestCase
from django.test.runner import DiscoverRunner
from psycopg import sql
from psycopg.conninfo import make_conninfo

from ..config import Config
from ..hosts import Host
from ..keys import SHARDS_MAX
from ..layout import Unrouted
from ..template import quote_name
from .backend import pools
from .backend.client import escape_option
from .cluster import TEST_CONFIG, Cluster, alias, cluster, state
from .migrations import key_check_name
from .own_shards import MAKE
from .sharded import KEYS, is_sharded

SETTING = "PGSHARD_TEST_SHARDS"
"""The setting: how many shards a test database has."""
SHARDS = 8
"""How many it has without the setting."""
LAYOUT = "PGSHARD_TEST_LAYOUT"
"""The setting: `sharded` or `unsharded`, if tests are to run on another layout than the config's
shards have."""
SQL = "PGSHARD_TEST_SQL"
"""The setting: SQL that runs in a test database of an unsharded host once it has its tables. The
search path is their schema."""
SCHEMA = "app"
"""The schema of the tables, if the config names none."""


@dataclass
class TestShards:
    """What `begin` has made, for `end`."""

    real: Cluster
    host: Host
    names: list[str]
    folder: Path
    keep: bool
    shards: int
    whole: str | None
    """The schema of all shards, if the tests run on an unsharded host."""
    databases: Any
    """The databases that tests might use before, unless they specified otherwise."""


def begin(*, parallel: int = 0, keepdb: bool = False, suffix: str = "") -> TestShards:
    """Makes a database next to that of the first host, with a few shards and all their migrations,
    or with the tables of an unsharded host, and makes the aliases lead there.

    `parallel`: how many copies of it to make, for processes that run tests side by side. The real
    shards cannot be reached until `end`.

    Raises `ImproperlyConfigured` if that cannot be done.
    """
    real = cluster()
    config = real.config
    host = next(iter(config.hosts.values()))
    database = f"test_{host.server['dbname']}_shards{suffix}"
    names = [database] + [
        f"{database}_{number}" for number in range(1, parallel + 1 if parallel > 1 else 1)
    ]
    folder = Path(tempfile.mkdtemp(prefix="pgshard-test-"))
    usual = TransactionTestCase.databases
    made = TestShards(real, host, names, folder, keepdb, _shards(), _whole(real), usual)
    try:
        with _server(host) as server:
            # The tables of an unsharded host have no migrations: they are made again.
            kept = keepdb and made.whole is None and _shards_of(host, database) == made.shards
            _drop(server, names[1:] if kept else names)
            if not kept:
                server.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(database)))
            path = _write(made, 0)
            if made.whole is not None:
                _make_tables(host, database, made.whole)
            _command(path, "bootstrap")
            for lookup in config.lookups if made.whole is None else ():
                _command(path, "lookups", "build", lookup)
            _prepare(host, database, config.prefix)
            for number, name in enumerate(names[1:], 1):
                copy = sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(
                    sql.Identifier(name), sql.Identifier(database)
                )
                server.execute(copy)
                _write(made, number)
    except psycopg.errors.InsufficientPrivilege as error:
        user = host.server.get("user")
        shutil.rmtree(folder, ignore_errors=True)
        raise ImproperlyConfigured(
            f"host {host.name}: the role {user} may not make databases: ALTER ROLE {user} CREATEDB"
        ) from error
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    os.environ[TEST_CONFIG] = str(path)
    use(path)
    return made


def end(made: TestShards) -> None:
    """Drops what `begin` has made, and makes the aliases lead to the real shards again."""
    state.visible = ()
    TransactionTestCase.databases = made.databases
    pools.close_all()
    cluster().lookups.close()
    cluster().recovery_context.close()
    os.environ.pop(TEST_CONFIG, None)
    state.cluster = made.real
    shutil.rmtree(made.folder, ignore_errors=True)
    with _server(made.host) as server:
        _drop(server, made.names[1:] if made.keep else made.names)


def use(path: Path) -> None:
    """Makes this process's aliases lead to the shards of a test config. Tests may use them, unless
    a test specifies otherwise."""
    pools.close_all()
    state.cluster = Cluster(Config.load(path), cluster().options, in_tests=True)
    state.visible = tuple(alias(shard) for shard in range(state.cluster.config.shards))
    if TransactionTestCase.databases != "__all__":
        TransactionTestCase.databases = {*TransactionTestCase.databases, *state.visible}


def use_copy(number: int) -> None:
    """For a process that runs tests in parallel with others: makes the aliases lead to a copy of
    its own."""
    path = Path(os.environ[TEST_CONFIG]).with_name(f"pgshard-{number}.toml")
    if cluster().config.path != path:
        use(path)


def _write(made: TestShards, number: int) -> Path:
    config = made.real.config
    params = {
        key: value for key, value in made.host.server.items() if key not in ("password", "dbname")
    }
    url = (
        make_conninfo("", **params, dbname=made.names[number])
        .replace("\\", "\\\\")
        .replace('"', '\\"')
    )
    lines = [
        "[cluster]",
        f"shards = {made.shards}",
        # The real epoch, to the millisecond, so that the IDs in fixtures keep their meaning.
        f'epoch = "{_time(config.epoch_ms)}"',
        f'schema_prefix = "{config.prefix}"',
        f'key = "{config.key.value}"',
    ]
    if config.legacy_below:
        lines.append(f"legacy_below = {config.legacy_below}")
    if config.migrations is not None and made.whole is None:
        lines.append(f'migrations = "{config.migrations.absolute()}"')
    # A test may have a transaction on each shard.
    size = max(made.host.pool_size, made.shards + 4)
    lines += ["[hosts.test]", f'url = "{url}"', f"pool_size = {size}"]
    if made.whole is not None:
        unsharded = config.unsharded
        unrouted = Unrouted.REFUSE if unsharded is None else unsharded.unrouted
        lines += ['layout = "unsharded"', f"schema = {json.dumps(made.whole)}"]
        lines.append(f'unrouted = "{unrouted.value}"')
    if made.host.password_env is not None:
        lines.append(f'password_env = "{made.host.password_env}"')
    if made.host.password_file is not None:
        lines.append(f'password_file = "{made.host.password_file.absolute()}"')
    if made.host.password_command is not None:
        program, *args = made.host.password_command.args
        if "/" in program:
            program = str((made.host.password_command.folder / program).absolute())
        # A list of JSON strings is one of TOML, too.
        lines.append(f"password_command = {json.dumps([program, *args])}")
    for lookup in config.lookups.values():
        lines += [
            f"[lookups.{lookup.name}]",
            f"table = {json.dumps(lookup.table)}",
            f"columns = {json.dumps(lookup.columns)}",
            f"key = {json.dumps(lookup.key)}",
            f'fold = "{lookup.fold.value}"',
        ]
    lines += ["[map]", "version = 1", "[map.placement]", f'test = "0-{made.shards - 1}"', ""]
    path = made.folder / f"pgshard-{number}.toml"
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def _time(epoch_ms: int) -> str:
    from ..ids import time_of_id

    return time_of_id(0, epoch_ms).isoformat()


def _command(path: Path, *args: str) -> None:
    wanted = os.environ.get("PGSHARD", "pgshard")
    command = shutil.which(wanted)
    if command is None:
        raise ImproperlyConfigured(
            f"{wanted} is not in PATH, but it is needed to make the tests' shards: install it, or"
            " set PGSHARD"
        )
    done = subprocess.run(
        [command, "--config", str(path), "-q", *args], capture_output=True, text=True
    )
    if done.returncode:
        raise ImproperlyConfigured(
            f"pgshard {' '.join(args)} failed on the tests' shards:\n{done.stdout}{done.stderr}"
        )


def _server(host: Host) -> psycopg.Connection[Any]:
    # Any database will do, except those that are dropped and copied.
    return _connect(host, "postgres")


def _connect(host: Host, database: str) -> psycopg.Connection[Any]:
    args: dict[str, Any] = {
        **host.server,
        **{k: v for k, v in host.connect_args().items() if k == "password"},
    }
    return psycopg.connect(**{**args, "dbname": database}, autocommit=True)


def _shards() -> int:
    wanted = getattr(settings, SETTING, SHARDS)
    if type(wanted) is not int or not 1 <= wanted <= SHARDS_MAX:
        raise ImproperlyConfigured(
            f"{SETTING} is {wanted!r}: it is a number of shards, 1 to {SHARDS_MAX}"
        )
    return wanted


def _whole(real: Cluster) -> str | None:
    """The schema of all shards, if tests are to run on an unsharded host. Raises
    `ImproperlyConfigured`."""
    host = real.config.unsharded
    there = real.directory.unsharded if host is not None else None
    usual = "sharded" if there is None else "unsharded"
    wanted = getattr(settings, LAYOUT, usual)
    if wanted not in ("sharded", "unsharded"):
        raise ImproperlyConfigured(f'{LAYOUT} is {wanted!r}: it is "sharded" or "unsharded"')
    if wanted == "sharded":
        return None
    return SCHEMA if host is None or host.whole is None else host.whole


def _make_tables(host: Host, database: str, schema: str) -> None:
    """Makes the tables of all sharded models in one schema, as Django makes those of models that
    are not sharded."""
    quoted = quote_name(schema)
    params = {key: value for key, value in host.server.items() if key != "dbname"}
    params |= {key: value for key, value in host.connect_args().items() if key == "password"}
    options = f"{params.get('options', '')} -c search_path={escape_option(quoted)}".strip()
    made: Any = DatabaseWrapper(
        {
            **connections.settings[alias(0)],
            "NAME": database,
            "OPTIONS": {**params, "options": options},
        },
        "pgshard tests",
    )
    try:
        with made.cursor() as cursor:
            cursor.execute(f"CREATE SCHEMA {quoted}")
        with made.schema_editor(atomic=False) as editor:
            for model in apps.get_models():
                if is_sharded(model) and model._meta.managed and not model._meta.proxy:
                    editor.create_model(model)
        more = getattr(settings, SQL, "")
        if more:
            with made.cursor() as cursor:
                cursor.execute(more)
    finally:
        made.close()


def _shards_of(host: Host, database: str) -> int | None:
    """How many shards a test database of an earlier run has; None if there is none, or it was not
    finished."""
    try:
        with _connect(host, database) as connection:
            row = connection.execute("SELECT shards FROM pgshard.cluster").fetchone()
    except (psycopg.OperationalError, psycopg.errors.UndefinedTable):
        return None
    return None if row is None else int(row[0])


def _prepare(host: Host, database: str, prefix: str) -> None:
    """Makes the table of the keys' shards. Drops the constraints of `shards makesql --key-checks`,
    which are of the real number of shards."""
    names = [key_check_name(field) for field in _keys()]
    find = (
        "SELECT c.conrelid::regclass::text, c.conname FROM pg_catalog.pg_constraint c"
        " JOIN pg_catalog.pg_namespace n ON n.oid = c.connamespace"
        " WHERE c.contype = 'c' AND c.conname = ANY (%s) AND starts_with(n.nspname, %s)"
    )
    with _connect(host, database) as connection:
        connection.execute(MAKE)
        for table, name in connection.execute(find, [names, prefix]).fetchall():
            drop = sql.SQL("ALTER TABLE {} DROP CONSTRAINT {}")
            connection.execute(drop.format(sql.SQL(table), sql.Identifier(name)))


def _keys() -> Iterator[Any]:
    for model in apps.get_models():
        if is_sharded(model):
            yield from (one for one in model._meta.local_concrete_fields if isinstance(one, KEYS))


def _drop(server: psycopg.Connection[Any], names: list[str]) -> None:
    # DROP … WITH (FORCE) fails while autovacuum works there, because only a superuser may end that.
    # Without FORCE the server ends it by itself, and waits five seconds for all sessions to end.
    ours = (
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s AND usename ="
        " current_user"
    )
    for name in names:
        server.execute(ours, [name])
        server.execute(sql.SQL("DROP DATABASE IF EXISTS {}").format(sql.Identifier(name)))


class ShardedRunnerMixin:
    """What a test runner needs for shards, for projects that have a runner of their own."""

    keepdb: bool
    parallel: int
    _shards: TestShards

    def get_databases(self, suite: Any) -> dict[str, bool]:
        """The databases that the tests use. A shard is among them, so that each process of
        `--parallel` goes to its own copy: `DatabaseCreation.setup_worker_connection`."""
        found: dict[str, bool] = super().get_databases(suite)  # type: ignore[misc]
        return {**found, alias(0): False}

    def setup_databases(self, **kwargs: Any) -> Any:
        """Makes Django's databases, and the shards."""
        old = super().setup_databases(**kwargs)  # type: ignore[misc]
        try:
            self._shards = begin(parallel=self.parallel, keepdb=self.keepdb)
        except BaseException:
            super().teardown_databases(old)  # type: ignore[misc]
            raise
        return old

    def teardown_databases(self, old_config: Any, **kwargs: Any) -> None:
        """Drops them."""
        end(self._shards)
        super().teardown_databases(old_config, **kwargs)  # type: ignore[misc]


class ShardedTestRunner(ShardedRunnerMixin, DiscoverRunner):
    """Django's test runner with shards."""
