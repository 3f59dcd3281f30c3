"""`manage.py dbshell --database shard-31`: psql on the shard's host, with the shard's schema in the
search path."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable

from django.db.backends.postgresql.client import DatabaseClient as PostgresqlClient

from ..cluster import cluster


def escape_option(value: str) -> str:
    """A value in libpq's `options`, where a backslash keeps a space and itself."""
    return re.sub(r"([\\\s])", r"\\\1", value)


class DatabaseClient(PostgresqlClient):
    """Runs psql."""

    def runshell(self, parameters: Iterable[str]) -> None:
        """Runs psql, with the password in its environment."""
        directory = cluster().directory
        host = directory.host(directory.place(self.connection.shard).host)
        env = dict(os.environ)
        password = host.password()
        if password is not None:
            env["PGPASSWORD"] = password
        self.connection.take_layout()
        path = escape_option(self.connection.quoted_schema)
        env["PGOPTIONS"] = f"{env.get('PGOPTIONS', '')} -c search_path={path}".strip()
        subprocess.run(
            [self.executable_name, *parameters, host.server_conninfo()], env=env, check=True
        )
