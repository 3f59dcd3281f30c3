"""`manage.py dbshell --database shard-31`: psql on the shard's host, with the shard's schema in the
search path."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable

from django.db.backends.postgresql.client import DatabaseClient as PostgresqlClient

from ..cluster import cluster


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
        env["PGOPTIONS"] = (
            f"{env.get('PGOPTIONS', '')} -c search_path={self.connection.schema}".strip()
        )
        subprocess.run(
            [self.executable_name, *parameters, host.server_conninfo()], env=env, check=True
        )
