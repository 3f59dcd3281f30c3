"""Tests as users of pytest-django write them."""

import pytest
from django.db import connections, transaction

from pgshard.django import NoShard, alias_of_key, run_in_shard, shard_of_key
from photos.models import Category, Photo


@pytest.mark.parametrize("turn", [1, 2])
def test_rows_of_a_test_are_gone_in_the_next(db, turn):
    Photo.objects.create(user_id=1, title="x")
    Category.objects.create(name="x")
    assert Photo.objects.across_shards().count() == Category.objects.count() == 1


def test_each_key_has_its_own_shard(db):
    keys = [1, 9, 17, 1025, -7]
    assert len({shard_of_key(key) for key in keys}) == len(keys)
    for key in keys:
        Photo.objects.create(user_id=key, title=str(key))
        assert Photo.objects.get(user_id=key).pk
    with pytest.raises(NoShard):
        list(Photo.objects.filter(user_id__in=[1, 9]))
    assert len(Photo.objects.across_shards().list(10)) == len(keys)


def test_the_client_reaches_shards(db, client):
    photo = Photo.objects.create(user_id=9, title="seen")
    for _ in range(2):
        assert client.get(f"/photos/{photo.pk}").json()["title"] == "seen"


def test_a_savepoint_rolls_back_in_a_test(db):
    where = alias_of_key(3)
    Photo.objects.create(user_id=3, title="kept")

    def work():
        try:
            with transaction.atomic():
                Photo.objects.create(user_id=3, title="gone")
                raise ValueError
        except ValueError:
            pass

    run_in_shard(3, work)
    for title in ("first", "second"):
        with pytest.raises(ValueError, match=title), transaction.atomic(using=where):
            Photo.objects.create(user_id=3, title=title)
            raise ValueError(title)
    assert [photo.title for photo in Photo.objects.filter(user_id=3)] == ["kept"]


def test_a_transaction_begins_with_its_first_statement(db):
    where = alias_of_key(5)
    with pytest.raises(ValueError, match="x"), transaction.atomic(using=where):
        assert not connections[where].connection
        Photo.objects.create(user_id=5, title="gone")
        raise ValueError("x")
    assert Photo.objects.filter(user_id=5).count() == 0
    with transaction.atomic(using=where):
        Photo.objects.create(user_id=5, title="kept")
    assert Photo.objects.filter(user_id=5).count() == 1


def test_statements_are_counted_as_usual(db, django_assert_num_queries):
    where = alias_of_key(6)
    with (
        django_assert_num_queries(3, connection=connections[where]),
        transaction.atomic(using=where),
    ):
        Photo.objects.create(user_id=6, title="x")


def test_hooks_run_after_the_commit(transactional_db):
    done = []
    where = alias_of_key(2)
    with transaction.atomic(using=where):
        transaction.on_commit(lambda: done.append("without a statement"), using=where)
    with transaction.atomic(using=where):
        Photo.objects.create(user_id=2, title="x")
        transaction.on_commit(lambda: done.append("with one"), using=where)
    assert done == ["without a statement", "with one"]
    assert Photo.objects.across_shards().count() == 1


@pytest.mark.parametrize("turn", [1, 2])
def test_tables_are_emptied(transactional_db, turn):
    photo = Photo.objects.create(user_id=4, title="x")
    photo.tags.create(user_id=4, word="w")
    assert Photo.objects.across_shards().count() == 1


def test_a_live_server_reaches_shards(live_server):
    from urllib.request import urlopen

    photo = Photo.objects.create(user_id=17, title="live")
    with urlopen(f"{live_server.url}/photos/{photo.pk}") as answer:
        assert b'"live"' in answer.read()


@pytest.mark.django_db(databases=["default"])
def test_a_test_may_forbid_shards():
    with pytest.raises(AssertionError, match="not allowed"):
        Photo.objects.create(user_id=1, title="x")


def test_without_the_mark_no_shard_is_reached():
    with pytest.raises(RuntimeError, match="Database access not allowed"):
        Photo.objects.for_key(1).count()
