"""One database from before the shards, as an unsharded host: db1 serves all shards from the schema
`app`, and db2 has none."""

from __future__ import annotations

from world import World

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
