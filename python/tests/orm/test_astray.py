"""No way to write puts a row, its ID or a reference where it does not belong."""

import pytest

pytestmark = pytest.mark.usefixtures("db")

U, V = 3, 12


@pytest.fixture
def ledger(world):
    from ledger import models

    yield models
    models.Bill.objects.across_shards().run(lambda rows: rows.delete()).all()


def test_an_update_changes_no_shard(m, p, ledger):
    mine, others = (m.Photo.objects.create(user_id=user, title="x") for user in (U, V))
    photos = m.Photo.objects.filter(pk=mine.pk)
    for values in (
        {"id": others.pk + 1},
        {"pk": str(others.pk + 1)},
        {"id": m.models.F("id") + 1},
        {"id": 5000 << 10},
        {"album": m.Album.objects.create(user_id=V, name="x")},
    ):
        with pytest.raises(p.WrongShard, match="Photo"):
            photos.update(**values)
    assert photos.get() == mine
    # This reference has no constraint.
    bills = [ledger.Bill.objects.create(account_id=account) for account in (U, U, V)]
    for values in ({"previous": bills[2]}, {"previous_id": bills[2].pk}):
        with pytest.raises(p.WrongShard, match=r"Bill\.previous"):
            ledger.Bill.objects.filter(pk=bills[0].pk).update(**values)
    found = ledger.Bill.objects.filter(pk=bills[0].pk)
    assert found.update(previous=bills[1], text="y") == 1
    assert found.update(previous=m.models.F("id")) == 1
    assert found.update(previous=None) == 1
    free = mine.pk + (1 << 23)
    assert photos.update(id=free) == 1
    assert m.Photo.objects.get(pk=free).title == "x"


def test_other_managers_do_not_write_astray_either(m, p, ledger):
    photo = m.Photo.objects.create(user_id=U, title="x")
    tag = m.Tag.objects.create(user_id=V, word="w")
    plain = m.models.QuerySet(m.Photo, using="shard-3")
    bill = ledger.Bill.objects.create(account_id=V)
    with p.shard_of(U):
        for wrong in (
            lambda: plain.bulk_create([m.Photo(user_id=V, title="y")]),
            lambda: plain.create(user_id=V, title="y"),
            lambda: plain.filter(pk=photo.pk).update(user_id=V),
            lambda: plain.filter(pk=photo.pk).update(user_id=m.models.F("likes")),
            lambda: m.models.QuerySet(ledger.Bill).bulk_create(
                [ledger.Bill(account_id=U, previous=bill)]
            ),
            lambda: photo.tags.add(tag.pk),
        ):
            with pytest.raises(p.WrongShard):
                wrong()
    assert m.Photo.objects.across_shards().list(limit=9) == [photo]


def test_what_was_serialized_is_not_saved_astray(m, p):
    from django.core import serializers

    album = m.Album.objects.create(user_id=U, name="x")
    new = '[{"model": "photos.album", "fields": {"user_id": 3, "name": "y"}}]'
    changed = (
        f'[{{"model": "photos.album", "pk": {album.pk}, "fields": {{"user_id": 12, "name": "y"}}}}]'
    )
    for text, using in ((new, "shard-12"), (changed, "shard-3"), (changed, "shard-12")):
        (read,) = serializers.deserialize("json", text)
        with pytest.raises(p.WrongShard):
            read.save(using=using)
    assert m.Album.objects.across_shards().list(limit=9) == [album]
    (read,) = serializers.deserialize("json", new)
    read.save(using="shard-3")
    assert m.Album.objects.for_key(U).count() == 2


def test_each_manager_of_a_sharded_model_must_be_one_for_shards(p):
    from django.db import models
    from django.test.utils import isolate_apps

    from pgshard.django.checks import check_models

    with isolate_apps("photos") as apps:

        class Plain(p.ShardedModel):
            user_id = p.ShardKeyField()
            objects = p.ShardedManager()
            plain = models.Manager()

            class Meta:
                app_label = "photos"

        class Proxy(Plain):
            more = models.Manager()

            class Meta:
                app_label = "photos"
                proxy = True

        from unittest import mock

        with mock.patch("pgshard.django.checks.apps", apps):
            found = check_models()
    assert [(one.id, one.obj) for one in found] == [
        ("pgshard.E004", Plain),
        ("pgshard.E004", Proxy),
        ("pgshard.E004", Proxy),
    ]
    assert "plain" in found[0].msg


def test_the_manager_of_a_query_set_is_one_for_shards(p):
    from django.test.utils import isolate_apps

    from pgshard.django.checks import _check_sharded

    class Rows(p.ShardedQuerySet):
        def of(self, user_id):
            return self.filter(user_id=user_id)

    with isolate_apps("photos"):

        class Managed(p.ShardedModel):
            user_id = p.ShardKeyField()
            objects = Rows.as_manager()

            class Meta:
                app_label = "photos"

    assert isinstance(Managed.objects, p.ShardedManager)
    assert Managed.objects.of(U).db == "shard-3"
    assert list(_check_sharded(Managed)) == []
