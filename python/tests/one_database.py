"""One database from before the shards, as an unsharded host: db1 serves all shards from the schema
`app`, and db2 has none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from world import ROOT, World

LEGACY = 1_000_000
"""IDs below are from before the shards."""


def unsharded(text: str, more: str = "", legacy_below: int = LEGACY, schema: str = "app") -> str:
    """The text of a config of two hosts with all shards on db1, which is unsharded. `more`: other
    lines of db1."""
    last = text.split('db2 = "')[1].split("-")[1].split('"')[0]
    first = text.split('db1 = "0-')[1].split('"')[0]
    of_host = f'[hosts.db1]\nlayout = "unsharded"\nschema = "{schema}"\n{more}'
    of_cluster = f"[cluster]\nlegacy_below = {legacy_below}\n" if legacy_below else "[cluster]\n"
    text = text.replace("[cluster]\n", of_cluster).replace("[hosts.db1]\n", of_host)
    text = text.replace(f'db1 = "0-{first}"', f'db1 = "0-{last}"')
    return text.replace(f'db2 = "{int(first) + 1}-{last}"\n', "")


class OneDatabase(World):
    """Two servers, of which the first one has the tables of an application in `app`."""

    def __init__(self, tables: str, more: str = "", legacy_below: int = LEGACY) -> None:
        super().__init__()
        try:
            self.sharded = self.path.read_text()
            """The config of a cluster with shards on both hosts."""
            self.path.write_text(unsharded(self.sharded, more, legacy_below))
            with self.connect("db1") as connection:
                connection.execute("CREATE SCHEMA app")
                if tables:
                    connection.execute(tables)
            self.run("bootstrap")
        except BaseException:
            self.close()
            raise

    def configure(self, more: str = "", legacy_below: int = LEGACY, schema: str = "app") -> None:
        """Writes another config for the same servers."""
        self.path.write_text(unsharded(self.sharded, more, legacy_below, schema))

    def wide_ids(self, *tables: str, key: str = "user_id", of: str | None = None) -> None:
        """Makes the tables' new IDs those of the key's shard, as an application does long before
        the shards. `of`: in the place of the key, a reference to a row of the same shard."""
        sql = (ROOT / "python" / "tests" / "wide_ids.sql").read_text()
        with self.connect("db1") as connection:
            if connection.execute("SELECT to_regproc('app.wide')").fetchone() == (None,):
                connection.execute(sql)
            named = f"'{key}'" if of is None else f"'{of}', 'of'"
            for table in tables:
                connection.execute(
                    f"CREATE TRIGGER wide BEFORE INSERT ON app.{table} FOR EACH ROW EXECUTE"
                    f" FUNCTION app.wide({named})"
                )


PLAIN = "one"
"""The alias of the database itself, as Django uses it without shards."""


@contextmanager
def used(world: OneDatabase) -> Iterator[None]:
    """Within it, the shards of this process are those of another config."""
    from django.db import connections

    from pgshard import Config
    from pgshard.django.backend import pools
    from pgshard.django.cluster import Cluster, state

    before = state.cluster
    pools.close_all()
    state.cluster = Cluster(Config.load(world.path), before.options)
    try:
        yield
    finally:
        pools.close_all()
        state.cluster.recovery_context.close()
        state.cluster = before
        if hasattr(connections._connections, PLAIN):
            connections[PLAIN].close()


def register(world: OneDatabase) -> None:
    """Makes `PLAIN` the alias of the database."""
    from django.db import connections

    if hasattr(connections._connections, PLAIN):
        # Of another database, before.
        connections[PLAIN].close()
        delattr(connections._connections, PLAIN)
    with world.connect("db1") as connection:
        port = connection.info.port
    dict.__setitem__(
        connections.settings,
        PLAIN,
        {
            **connections.settings["default"],
            "NAME": "app",
            "USER": "app",
            "HOST": "127.0.0.1",
            "PORT": port,
            "OPTIONS": {"options": "-c search_path=app"},
        },
    )


def make_tables(*models: type) -> None:
    """Makes the tables of sharded models as Django made them before the shards."""
    from django.db import connections

    with connections[PLAIN].schema_editor() as editor:
        for model in models:
            editor.create_model(model)
