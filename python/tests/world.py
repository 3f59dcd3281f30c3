"""Servers for tests: two hosts that `pgshard dev up` starts, of the PostgreSQL version in PGSHARD_TEST_PG."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import psycopg

ROOT = Path(__file__).parents[2]
VERSION = os.environ.get("PGSHARD_TEST_PG", "15")
COMMAND = os.environ.get("PGSHARD", str(ROOT / "target" / "debug" / "pgshard"))


def programs(version: str) -> str:
    """The folder of a PostgreSQL version's programs."""
    for folder in (f"/usr/lib/postgresql/{version}/bin", str(ROOT / "target" / "postgres" / version / "bin")):
        if Path(folder, "postgres").exists():
            return folder
    raise RuntimeError(f"PostgreSQL {version} is not here: script/setup installs it")


class World:
    """Two servers, a config and a folder for migrations, below a temporary folder; gone with `close`."""

    def __init__(self, shards: int = 16) -> None:
        # Not pytest's: that is nobody's but ours, and the servers run as another user.
        self.folder = Path(tempfile.mkdtemp(prefix="pgshard-python-"))
        self.folder.chmod(0o755)
        self.path = self.folder / "pgshard.toml"
        self.run("dev", "up", "--dir", str(self.folder), "--shards", str(shards))
        for file in (self.folder / "migrations").iterdir():
            file.unlink()
        for host in ("db1", "db2"):
            with self.superuser(host) as connection:
                connection.execute("ALTER ROLE app CREATEDB")

    def command(self, *args: str) -> tuple[list[str], dict[str, str]]:
        """A command line of pgshard and its environment."""
        env = {**os.environ, "PGSHARD_PG_BIN": programs(VERSION), "PGSHARD_CONFIG": str(self.path)}
        return [COMMAND, "-q", *args], env

    def run(self, *args: str, may_fail: bool = False, **more: str) -> subprocess.CompletedProcess[str]:
        """Runs the command to its end; `more` is for its environment."""
        line, env = self.command(*args)
        done = subprocess.run(line, env={**env, **more}, capture_output=True, text=True)
        if done.returncode and not may_fail:
            raise AssertionError(f"{' '.join(args)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
        return done

    def url(self, host: str) -> str:
        """The address of a host, as the config says it."""
        if not hasattr(self, "_urls"):
            from pgshard import Config

            self._urls = {name: host.server_conninfo() for name, host in Config.load(self.path).hosts.items()}
        return self._urls[host]

    def connect(self, host: str) -> psycopg.Connection:
        """A connection to a host as the application's role."""
        return psycopg.connect(self.url(host), autocommit=True)

    def superuser(self, host: str) -> psycopg.Connection:
        """A connection to a host as the superuser."""
        return psycopg.connect(self.url(host), user="postgres", autocommit=True)

    def migrate(self, *files: str) -> None:
        """Writes these migrations and runs them, with all else that the hosts lack."""
        for number, text in enumerate(files, 1):
            (self.folder / "migrations" / f"{number:04d}_test.sql").write_text(text)
        self.run("bootstrap")

    def host_of(self, shard: int) -> str:
        """Who serves a shard, by the command's word."""
        said = json.loads(self.run("locate", "--key", str(shard), "--json").stdout)
        return said["host"]

    def move(self, shard: int, to: str | None = None, complete: bool = True, **more: str) -> str:
        """Moves a shard to the other host, or to the one named. Gives back which."""
        to = to or {"db1": "db2", "db2": "db1"}[self.host_of(shard)]
        self.run("move", str(shard), "--to", to, "--yes", **more)
        if complete:
            self.run("moves", "complete", "--yes")
        return to

    def close(self) -> None:
        """Stops the servers and removes everything."""
        self.run("dev", "down", "--dir", str(self.folder), "--yes", may_fail=True)
        shutil.rmtree(self.folder, ignore_errors=True)
