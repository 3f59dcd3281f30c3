"""The servers that the core's tests share."""

import pytest
from world import World

TABLE = """CREATE TABLE {shard}.photos (
    id bigint PRIMARY KEY DEFAULT {shard}.next_id(), user_id bigint NOT NULL, title text NOT NULL UNIQUE
);
"""


@pytest.fixture(scope="session")
def world():
    made = World()
    try:
        made.migrate(TABLE)
        yield made
    finally:
        made.close()
