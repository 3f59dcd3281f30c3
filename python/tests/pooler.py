"""A PgBouncer in transaction mode before one server."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

import psycopg
from world import World, as_owner


class Pooler:
    """A pooler in front of a host of a world; its log and settings are in the world's folder."""

    def __init__(self, world: World, host: str) -> None:
        program = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
        if program is None:
            raise RuntimeError(
                "PgBouncer is missing: script/setup installs it (Debian: apt-get install pgbouncer)"
            )
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        with world.connect(host) as connection:
            port = connection.info.port
        settings = world.folder / f"pgbouncer-{host}.ini"
        settings.write_text(
            f"[databases]\napp = host=127.0.0.1 port={port} dbname=app"
            " user=app\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port ="
            f" {self.port}\nunix_socket_dir =\nauth_type = any\npool_mode ="
            " transaction\ndefault_pool_size = 3\nmax_client_conn = 500\n"
        )
        with Path(world.folder, f"pgbouncer-{host}.log").open("w") as log:
            line = [program, "-q", str(settings)]
            self._process = subprocess.Popen(
                line, cwd="/", stdout=log, stderr=log, **as_owner(world.server(host))
            )
        end = time.monotonic() + 30
        while time.monotonic() < end:
            with contextlib.suppress(psycopg.OperationalError), self.connect():
                return
            time.sleep(0.02)
        self.close()
        raise RuntimeError(
            f"PgBouncer does not start: {Path(world.folder, f'pgbouncer-{host}.log').read_text()}"
        )

    def connect(self) -> psycopg.Connection:
        """A connection through the pooler."""
        return psycopg.connect(
            f"host=127.0.0.1 port={self.port} user=app dbname=app sslmode=disable", autocommit=True
        )

    def close(self) -> None:
        """Stops the pooler."""
        self._process.kill()
        self._process.wait()
