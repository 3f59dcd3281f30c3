"""Sets the project up in this process: its settings, its database, and its tables in the shards of
two servers."""

import os
import sys
from pathlib import Path

import psycopg
import pytest
from world import World

PROJECT = Path(__file__).parents[1] / "project"
LOOKUPS = {
    "emails": """
[lookups.emails]
table = "members_member"
columns = ["email"]
key = "id"
""",
    "subscribers": """
[lookups.subscribers]
table = "members_subscriber"
columns = ["email"]
key = "user_id"
""",
    "words": """
[lookups.words]
table = "members_handle"
columns = ["word"]
key = "user_id"
fold = "ascii"
""",
    "numbers": """
[lookups.numbers]
table = "members_coupon"
columns = ["number"]
key = "user_id"
""",
    "codes": """
[lookups.codes]
table = "members_coupon"
columns = ["code"]
key = "user_id"
""",
    "badges": """
[lookups.badges]
table = "members_badge"
columns = ["code"]
key = "user_id"
""",
    "cards": """
[lookups.cards]
table = "members_card"
columns = ["number", "since"]
key = "user_id"
""",
}
RECORDING = ("badges",)
"""The look-ups that begin with a trigger that records."""


@pytest.fixture(scope="session")
def world():
    made = World()
    try:
        with made.connect("db1") as connection:
            connection.execute("CREATE DATABASE website")
        with made.path.open("a") as config:
            config.write("".join(LOOKUPS.values()))
        sys.path.insert(0, str(PROJECT))
        os.environ["PGSHARD_CONFIG"] = str(made.path)
        os.environ["DJANGO_SETTINGS_MODULE"] = "settings"
        import django
        from django.core.management import call_command

        django.setup()
        call_command("migrate", verbosity=0)
        call_command("shards", "makesql", "members", verbosity=0)
        folder = made.folder / "migrations"
        last = max(int(file.name.partition("_")[0]) for file in folder.iterdir())
        for number, name in enumerate(LOOKUPS, last + 1):
            step = "create-recording" if name in RECORDING else "create"
            text = made.run("lookups", "migration", name, "--step", step).stdout
            (folder / f"{number:04d}_lookup_{name}.sql").write_text(text)
        call_command("shards", "makesql", verbosity=0)
        made.run("bootstrap")
        for name in LOOKUPS:
            made.run("lookups", "build", name)
        yield made
        from django.db import connections

        from pgshard.django.backend.pools import close_all

        close_all()
        connections.close_all()
    finally:
        made.close()


@pytest.fixture
def db(world):
    """Empty tables at the beginning; at the end the thread holds nothing."""
    from pgshard import Config

    hosts = Config.load(world.path).map.hosts
    for host in sorted(set(hosts)):
        tables = ("photo_tags", "photo", "album", "tag", "note")
        names = [
            f"shard_{shard:04d}.photos_{table}"
            for shard, on in enumerate(hosts)
            if on == host
            for table in tables
        ]
        with psycopg.connect(world.url(host), autocommit=True) as connection:
            connection.execute("; ".join(f"DELETE FROM {name}" for name in names))
    yield world
    from pgshard.django.backend import pools

    pools.release()
    assert [pool.in_use for pool in pools._pools.by_host.values()] == [0] * len(
        pools._pools.by_host
    )


@pytest.fixture
def m(world):
    """The models of the project's photos."""
    from photos import models

    return models


@pytest.fixture
def p(world):
    """The package."""
    import pgshard.django

    return pgshard.django
