"""The servers that the core's tests share."""

import pytest
from world import World

TABLE = """CREATE TABLE {shard}.photos (
    id bigint PRIMARY KEY DEFAULT {shard}.next_id(), user_id bigint NOT NULL,
        title text NOT NULL UNIQUE
);
"""


@pytest.fixture(scope="module")
def made(request):
    """A cluster with the tables of a module, its TABLES."""
    made = World()
    try:
        made.migrate(request.module.TABLES)
        yield made
    finally:
        made.close()


@pytest.fixture
def shards(made):
    """What SQLAlchemy works on; in the end no connection is out."""
    # Where there is no SQLAlchemy, its tests are left out.
    from pgshard import Directory
    from pgshard.sqlalchemy import Shards

    opened = Shards(Directory.open(made.path))
    yield opened
    for engine in opened._engines.values():
        assert engine.pool.checkedout() == 0
    opened.close()


@pytest.fixture(scope="session")
def world():
    made = World()
    try:
        made.migrate(TABLE)
        yield made
    finally:
        made.close()
