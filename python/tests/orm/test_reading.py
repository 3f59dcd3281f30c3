"""psycopg reads a text once for all shards, and what it sends is the same."""

from __future__ import annotations

import psycopg
import pytest
from psycopg import _queries

U = 3


@pytest.fixture
def m(db):
    from photos import models

    return models


@pytest.fixture
def cursor(db):
    from django.db import connections

    with connections["shard-3"].cursor() as made:
        yield made


def test_a_statement_is_read_once_for_all_shards(m):
    from django.db import connections

    assert m.Photo.objects.across_shards(width=1).count() == 0
    _queries._query2pg_client.cache_clear()
    for user in range(16):
        assert m.Photo.objects.filter(user_id=user, title="x").count() == 0
        m.Photo.objects.create(user_id=user, title="x")
        assert m.Photo.objects.filter(user_id=user, title="x").update(likes=user) == 1
        with connections[f"shard-{user}"].cursor() as cursor:
            cursor.execute(
                "SELECT '{shard}', count(*) FROM {shard}.photos_photo WHERE user_id = %s", [user]
            )
            assert cursor.fetchone()[0] == f"shard_{user:04}"
    assert _queries._query2pg_client.cache_info().misses == 4
    assert [m.Photo.objects.get(user_id=user).likes for user in range(16)] == list(range(16))


def test_the_schemas_name_may_stand_anywhere(cursor):
    given = ['"shard_0003"', '\'"shard_0003"', None, "%s \\ {shard}"]
    cursor.execute(
        """SELECT '"shard_0003"%%', '{shard}', %s, %s, %s, %s AS "x" -- "shard_0003" """, given
    )
    assert cursor.fetchone() == ('"shard_0003"%', "shard_0003", *given)
    cursor.execute("""SELECT %(a)s, '"shard_0003"', %(b)s, %(a)s""", {"a": given[0], "b": "é"})
    assert cursor.fetchone() == (given[0], given[0], "é", given[0])
    cursor.executemany(
        """UPDATE {shard}.photos_photo SET title = %s WHERE title = '"shard_0003"'""",
        [["a"], ["b"]],
    )


def test_what_is_wrong_is_said_as_without(cursor):
    from django.db import ProgrammingError

    with pytest.raises(ProgrammingError, match="2 placeholders but 1 parameters"):
        cursor.execute("SELECT %s, %s FROM {shard}.photos_photo", [1])
    with pytest.raises(ProgrammingError, match="only '%s', '%b', '%t' are allowed"):
        cursor.execute("SELECT %x FROM {shard}.photos_photo", [1])
    with pytest.raises((ProgrammingError, psycopg.Error, ValueError)):
        cursor.execute("SELECT '\0', %s FROM {shard}.photos_photo", [1])
