"""Look-ups of models on an unsharded host: the tests of look-ups on shards, where what they say is
true there too, and what is different."""

import pytest
from lookup_fixtures import email, integrity, key, mm, other
from one_database import PLAIN, OneDatabase, make_tables, register, used
from orm import test_lookups, test_lookups_used
from orm.test_lookups_used import client

__all__ = ["client", "email", "key", "mm", "other"]

OTHERWISE = {
    # A claim that was rolled back is used again; here each write is checked.
    "test_a_value_that_was_rolled_back_is_written_again_at_once",
    # There is no trigger.
    "test_a_row_of_raw_sql_is_refused",
    "test_an_older_application_writes_until_the_look_up_enforces",
    # A subquery finds the rows of all shards.
    "test_a_part_of_a_query_does_not_look_on_another_shard",
    # Nothing moves.
    "test_calls_run_again_when_a_shard_moves",
}
"""Tests of what is otherwise on shards."""

for module in (test_lookups, test_lookups_used):
    for name, found in vars(module).items():
        if name.startswith("test_") and name not in OTHERWISE:
            globals()[name] = found

pytestmark = pytest.mark.usefixtures("db")


@pytest.fixture(scope="module")
def old(world):
    """The database with the tables of the models of members."""
    from django.db import connections
    from members import models as m
    from orm.conftest import LOOKUPS

    made = OneDatabase("")
    try:
        register(made)
        made.path.write_text(made.path.read_text() + "".join(LOOKUPS.values()))
        make_tables(m.Member, m.Handle, m.Subscriber, m.Coupon, m.Badge, m.Card)
        tables = ["handle", "subscriber", "coupon", "badge", "card"]
        made.wide_ids(*(f"members_{one}" for one in tables))
        with made.connect("db1") as connection:
            connection.execute(
                "CREATE UNIQUE INDEX pgshard_lookup_words ON app.members_handle"
                ' (lower(word COLLATE "C"))'
            )
        yield made
    finally:
        connections[PLAIN].close()
        made.close()


@pytest.fixture
def claims(monkeypatch):
    """The requests that were checked, one list for each call."""
    from pgshard.django import claiming

    seen, check = [], claiming._check
    monkeypatch.setattr(
        claiming,
        "_check",
        lambda requests: [seen.append(list(requests)), check(requests)][1],
    )
    return seen


@pytest.fixture
def db(old, mm):
    """At the end the thread holds nothing."""
    from pgshard.django.backend import pools

    with used(old):
        yield old
        pools.release()
        assert {pool.in_use for pool in pools._pools.by_host.values()} <= {0}


def test_a_row_that_comes_first_is_taken(db, mm, p, key, other, email):
    """An application that does not use the library writes the value between the check and the
    row."""
    from django.db import connections, transaction

    def first(execute, sql, params, many, context):
        if sql.startswith("INSERT"):
            with db.connect("db1") as plain:
                plain.execute(
                    "INSERT INTO app.members_member (id, email, name) VALUES (%s, %s, '')",
                    [other, email],
                )
        return execute(sql, params, many, context)

    using = p.alias_of_key(key)
    with connections[using].execute_wrapper(first), integrity() as taken:
        mm.Member.objects.create(id=key, email=email)
    assert (taken.value.lookup, taken.value.key) == ("emails", str(other))
    mm.Member.objects.filter(id=other).delete()
    with connections[using].execute_wrapper(first), transaction.atomic(using=using):
        with integrity(), transaction.atomic(using=using):
            mm.Member.objects.create(id=key, email=email)
        assert not mm.Member.objects.filter(id=key).exists()


def test_rows_of_open_transactions_are_found(mm, p, key, other, email):
    from django.db import transaction

    with transaction.atomic(using=p.alias_of_key(key)):
        member = mm.Member.objects.create(id=key, email=email)
        assert mm.Member.objects.get(email=email) == member
        # On another connection to the same database, which would wait for this one.
        with integrity():
            mm.Member.objects.create(id=other, email=email)
        # What the transaction gives up, it may use again.
        member.email = None
        member.save()
        mm.Member.objects.create(id=key + 16 * 1000, email=email)
        transaction.set_rollback(True, using=p.alias_of_key(key))
    assert not mm.Member.objects.filter(email=email).exists()


def test_a_transaction_that_has_failed_is_no_obstacle(mm, p, key, other, email):
    from django.db import DataError, connections, transaction

    member = mm.Member.objects.create(id=key, email=email)
    using = p.alias_of_key(other)
    with transaction.atomic(using=using):
        with pytest.raises(DataError), connections[using].cursor() as cursor:
            cursor.execute("SELECT 1 / 0")
        assert mm.Member.objects.get(email=email) == member
        transaction.set_rollback(True, using=using)


def test_a_table_without_a_unique_index_is_refused(db, mm, key):
    from pgshard import LookupUnusable
    from pgshard.django.cluster import cluster

    with db.connect("db1") as plain:
        plain.execute("DROP INDEX app.pgshard_lookup_words")
    try:
        with pytest.raises(LookupUnusable, match="CREATE UNIQUE INDEX CONCURRENTLY") as error:
            mm.Handle.objects.create(user_id=key, word="Ada")
        with pytest.raises(LookupUnusable):
            mm.Handle.objects.get(word="Ada")
        assert not mm.Handle.objects.filter(user_id=key).exists()
    finally:
        with db.connect("db1") as plain:
            statement = str(error.value).split("`")[1].replace("CONCURRENTLY ", "")
            plain.execute(statement.replace("INDEX ON", "INDEX pgshard_lookup_words ON"))
    assert cluster().lookups.find("words", "ada") is None
