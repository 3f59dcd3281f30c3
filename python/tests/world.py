"""Servers for tests: two hosts that `pgshard dev up` starts, of the PostgreSQL version in
PGSHARD_TEST_PG."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path

import psycopg

ROOT = Path(__file__).parents[2]
VERSION = os.environ.get("PGSHARD_TEST_PG", "15")
COMMAND = os.environ.get("PGSHARD", str(ROOT / "target" / "debug" / "pgshard"))


def programs(version: str) -> str:
    """The folder of a PostgreSQL version's programs."""
    for folder in (
        f"/usr/lib/postgresql/{version}/bin",
        str(ROOT / "target" / "postgres" / version / "bin"),
    ):
        if Path(folder, "postgres").exists():
            return folder
    raise RuntimeError(f"PostgreSQL {version} is not installed: script/setup installs it")


class World:
    """Two servers, a config and a folder for migrations, in a temporary folder; `close` removes
    them. If the test says so, the servers ask for a password, as `pgshard dev up` makes them."""

    def __init__(self, shards: int = 16, asks: bool = False) -> None:
        # Not in pytest's folder: only its owner may enter that, and the servers run as another
        # user.
        self.folder = Path(tempfile.mkdtemp(prefix="pgshard-python-"))
        self.folder.chmod(0o755)
        self.path = self.folder / "pgshard.toml"
        self._standbys: list[Standby] = []
        self.run("dev", "up", "--dir", str(self.folder), "--shards", str(shards))
        if not asks:
            for host in ("db1", "db2"):
                self._open(host)
            self.path.write_text(re.sub(r'\?passfile=[^"]*', "", self.path.read_text()))
        for file in (self.folder / "migrations").iterdir():
            file.unlink()
        for host in ("db1", "db2"):
            with self.superuser(host) as connection:
                connection.execute("ALTER ROLE app CREATEDB")

    def _open(self, host: str) -> None:
        """Accepts every login. With thousands of connections, checking a password each time takes
        milliseconds each, and standbys and proxies would need the password too."""
        data = self.server(host)
        line = "host all,replication all 127.0.0.1/32 trust"
        subprocess.run(
            ["sh", "-c", f"echo '{line}' > pg_hba.conf"], check=True, cwd=data, **as_owner(data)
        )
        control(data, "reload")

    def rule(self, host: str, line: str) -> None:
        """Puts a line before all others of the host's pg_hba.conf."""
        data = self.server(host)
        file = data / "pg_hba.conf"
        file.write_text(f"{line}\n{file.read_text()}")
        control(data, "reload")

    def command(self, *args: str) -> tuple[list[str], dict[str, str]]:
        """A command line of pgshard and its environment."""
        env = {**os.environ, "PGSHARD_PG_BIN": programs(VERSION), "PGSHARD_CONFIG": str(self.path)}
        return [COMMAND, "-q", *args], env

    def run(
        self, *args: str, may_fail: bool = False, **more: str
    ) -> subprocess.CompletedProcess[str]:
        """Runs the command to its end. `more` is added to its environment."""
        line, env = self.command(*args)
        done = subprocess.run(line, env={**env, **more}, capture_output=True, text=True)
        if done.returncode and not may_fail:
            raise AssertionError(
                f"{' '.join(args)}: exit code {done.returncode}\n{done.stdout}{done.stderr}"
            )
        return done

    def url(self, host: str) -> str:
        """The address of a host, as the config says it."""
        if not hasattr(self, "_urls"):
            from pgshard import Config

            self._urls = {
                name: host.server_conninfo() for name, host in Config.load(self.path).hosts.items()
            }
        return self._urls[host]

    def connect(self, host: str) -> psycopg.Connection:
        """A connection to a host as the application's role."""
        return psycopg.connect(self.url(host), autocommit=True)

    def superuser(self, host: str) -> psycopg.Connection:
        """A connection to a host as the superuser."""
        return psycopg.connect(self.url(host), user="postgres", autocommit=True)

    def migrate(self, *files: str) -> None:
        """Writes these migrations and runs them, together with everything else that the hosts
        lack."""
        for number, text in enumerate(files, 1):
            (self.folder / "migrations" / f"{number:04d}_test.sql").write_text(text)
        self.run("bootstrap")

    def host_of(self, shard: int) -> str:
        """The host of a shard, according to the command."""
        said = json.loads(self.run("locate", "--key", str(shard), "--json").stdout)
        return said["host"]

    def move(self, shard: int, to: str | None = None, complete: bool = True, **more: str) -> str:
        """Moves a shard to the other host, or to the one named. Returns the host."""
        to = to or {"db1": "db2", "db2": "db1"}[self.host_of(shard)]
        self.run("move", str(shard), "--to", to, "--yes", **more)
        if complete:
            done = self.run("moves", "complete", "--yes", may_fail=True)
            if done.returncode:
                # On a slow machine the audit may be too late to compare. The tests compare the rows
                # themselves.
                assert "not compared" in done.stderr, done.stderr
                self.run("moves", "complete", "--unaudited", "--yes")
        return to

    def server(self, host: str) -> Path:
        """The data directory of a host's server."""
        return self.folder / "servers" / host / "data"

    def standby(self, host: str) -> Standby:
        """A streaming standby of a host, on a port of its own. It ends with the world."""
        made = Standby(self, host)
        self._standbys.append(made)
        return made

    def close(self) -> None:
        """Stops the servers and removes everything."""
        for standby in self._standbys:
            standby.control("stop", "-m", "immediate", check=False)
        for host in ("db1", "db2"):
            # An orderly stop would wait for subscriptions of moves that a test left unfinished: ten
            # seconds or more.
            control(self.server(host), "stop", "-m", "immediate", check=False)
        self.run("dev", "down", "--dir", str(self.folder), "--yes", may_fail=True)
        shutil.rmtree(self.folder, ignore_errors=True)


def as_owner(folder: Path) -> dict[str, int]:
    """Arguments for `subprocess`: run as the owner of the servers' files, because PostgreSQL does
    not run as root."""
    stat = folder.stat()
    return (
        {}
        if stat.st_uid == os.getuid()
        else {"user": stat.st_uid, "group": stat.st_gid, "extra_groups": []}
    )


def control(data: Path, *args: str, check: bool = True) -> None:
    """pg_ctl for the server of this data directory."""
    log = data.parent / "pg_ctl.log"
    line = [f"{programs(VERSION)}/pg_ctl", "-D", str(data), "-w", "-l", str(log), *args]
    done = subprocess.run(
        line, cwd="/", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **as_owner(data)
    )
    if check and done.returncode:
        raise AssertionError(
            f"pg_ctl {args}: {log.read_text() if log.exists() else done.returncode}"
        )


class Standby:
    """A standby of one of the world's hosts."""

    def __init__(self, world: World, host: str) -> None:
        primary = world.server(host)
        self.data = primary.parent / "standby"
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        with world.superuser(host) as connection:
            there = connection.info.port
        line = [
            f"{programs(VERSION)}/pg_basebackup",
            "-h",
            "127.0.0.1",
            "-p",
            str(there),
            "-U",
            "postgres",
            "-X",
            "stream",
        ]
        subprocess.run(
            [*line, "-c", "fast", "-R", "--no-sync", "-D", str(self.data)],
            check=True,
            cwd="/",
            capture_output=True,
            **as_owner(primary),
        )
        settings = self.data / "pgshard.conf"
        settings.write_text(
            settings.read_text().replace(f"port = '{there}'", f"port = '{self.port}'")
        )
        self.control("start")

    def control(self, *args: str, check: bool = True) -> None:
        """pg_ctl."""
        control(self.data, *args, check=check)

    def promote(self) -> None:
        """Promotes it, and returns when it takes writes."""
        self.control("promote")
