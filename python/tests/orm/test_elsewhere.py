"""Many-to-many fields of sharded models to models that are not sharded, such as users."""

import pickle

import pytest

pytestmark = pytest.mark.usefixtures("db")

U, V = 3, 12


@pytest.fixture
def k(world):
    from kinds import models

    for model in (models.Liked, models.Lent):
        model.objects.across_shards().run(lambda rows: rows.all().delete()).all()
    models.Fan.objects.all().delete()
    return models


@pytest.fixture
def fans(k):
    return [k.Fan.objects.create(name=f"f{at}") for at in range(3)]


@pytest.fixture
def rows(k):
    return [k.Liked.objects.create(user_id=user, name=f"of {user}") for user in (U, V)]


def names(found):
    return sorted(one.name for one in found)


def test_rows_of_another_database_are_related(k, fans, rows):
    ours, theirs = rows
    ours.fans.add(fans[0], fans[1].pk)
    theirs.fans.set(fans)
    assert names(ours.fans.all()) == ["f0", "f1"]
    assert (ours.fans.count(), theirs.fans.count()) == (2, 3)
    ours.fans.set([fans[1], fans[2]])
    theirs.fans.remove(fans[0])
    assert [names(one.fans.all()) for one in rows] == [["f1", "f2"]] * 2
    assert ours.fans.create(name="new")._state.db == "default"
    assert ours.fans.get_or_create(name="new")[1] is False
    assert [one.name for one in ours.fans.order_by("-name")] == ["new", "f2", "f1"]
    assert names(ours.fans.exclude(name="new")) == ["f1", "f2"]
    ours.fans.clear()
    assert (ours.fans.exists(), theirs.fans.exists()) == (False, True)


def test_a_query_of_related_rows_reads_them_when_it_runs(fans, rows):
    ours = rows[0]
    asked = ours.fans.order_by("name")
    ours.fans.add(*fans)
    assert names(asked) == ["f0", "f1", "f2"]
    ours.fans.remove(fans[1])
    assert names(asked.all()) == ["f0", "f2"]


def test_a_query_can_be_put_into_a_cache(k, fans, rows):
    rows[0].fans.add(fans[0])
    asked = rows[0].fans.all()
    assert names(pickle.loads(pickle.dumps(asked))) == ["f0"]
    again = k.Fan.objects.all()
    again.query = pickle.loads(pickle.dumps(asked.query))
    rows[0].fans.add(fans[1])
    assert names(again) == ["f0", "f1"]


def test_rows_of_several_shards_are_prefetched(k, fans, rows):
    from django.db.models import Prefetch, prefetch_related_objects

    for one in rows:
        one.fans.set(fans[:2])
    found = k.Liked.objects.by_ids([one.pk for one in rows])
    prefetch = Prefetch("fans", k.Fan.objects.order_by("-name"), to_attr="sorted_fans")
    prefetch_related_objects(found, "fans", prefetch)
    assert [names(one.fans.all()) for one in found] == [["f0", "f1"]] * 2
    assert [[fan.name for fan in one.sorted_fans] for one in found] == [["f1", "f0"]] * 2
    mine = k.Liked.objects.filter(user_id=U).prefetch_related("fans").get()
    mine.fans.add(fans[2])
    assert names(mine.fans.all()) == ["f0", "f1", "f2"]


def test_rows_are_found_by_what_they_are_related_to(k, p, fans, rows):
    from django.db.models import Count

    for one in rows:
        one.fans.set(fans[:2])
    ours = k.Liked.objects.filter(user_id=U)
    assert ours.filter(fans=fans[0]).get() == rows[0]
    assert ours.filter(fans__in=fans).distinct().count() == 1
    assert ours.exclude(fans=fans[2]).count() == 1
    assert ours.annotate(n=Count("fans")).get().n == 2
    assert k.Liked.objects.filter(fans=fans[0]).across_shards().count() == 2
    for wrong in (
        lambda: ours.filter(fans__name="f0").count(),
        lambda: k.Liked.objects.filter(fans=fans[0]).count(),
        lambda: fans[0].liked.count(),
        lambda: fans[0].liked.add(rows[0]),
        lambda: k.Fan.objects.filter(liked=rows[0]).count(),
    ):
        with pytest.raises((p.NoShard, p.WrongShard)):
            wrong()


def test_a_table_of_ones_own_gets_the_key(k, fans):
    lent = k.Lent.objects.create(user_id=V, name="x")
    lent.fans.add(fans[0])
    lent.fans.set(fans, through_defaults={"name": "lent"})
    lent.fans.create(name="new")
    assert {one.user_id for one in k.Loan.objects.for_key(V)} == {V}
    assert names(lent.fans.all()) == ["f0", "f1", "f2", "new"]


def test_a_relation_to_a_deleted_row_is_not_shown(k, fans, rows):
    rows[0].fans.set(fans)
    fans[0].delete()
    k.Fan.objects.filter(pk=fans[1].pk).delete()
    assert names(rows[0].fans.all()) == ["f2"]
    rows[0].fans.set([fans[2]])
    assert rows[0].fans.through.objects.filter(liked=rows[0]).count() == 1
    rows[0].delete()
    assert names(k.Fan.objects.all()) == ["f2"]


def test_what_is_rolled_back_stays_unrelated(p, fans, rows):
    def work():
        rows[0].fans.add(fans[0])
        raise KeyError

    with pytest.raises(KeyError):
        p.run_in_shard(U, work)
    assert not rows[0].fans.exists()


def test_a_form_and_a_serializer_write_the_relation(k, fans):
    from django.forms import modelform_factory
    from rest_framework import serializers

    class Serializer(serializers.ModelSerializer):
        class Meta:
            model = k.Liked
            fields = ["user_id", "name", "fans"]

    data = {"user_id": U, "name": "x", "fans": [fans[0].pk, fans[2].pk]}
    form = modelform_factory(k.Liked, fields=["user_id", "name", "fans"])(data)
    asked = Serializer(data=data)
    assert form.is_valid(), form.errors
    assert asked.is_valid(), asked.errors
    for saved in (form.save(), asked.save()):
        assert names(saved.fans.all()) == ["f0", "f2"]
        assert Serializer(saved).data == data
    form = modelform_factory(k.Liked, fields=["fans"])({"fans": [fans[1].pk]}, instance=saved)
    assert [one.name for one in form.initial["fans"]] == ["f0", "f2"]
    assert form.save().fans.get() == fans[1]


def test_the_table_must_be_in_the_shards_without_a_constraint(k):
    from django.apps import apps
    from django.contrib.auth.models import User
    from django.db import models

    from pgshard.django import ShardedModel, ShardKeyField, checks

    before = dict(apps.all_models["kinds"])
    try:

        class Constrained(ShardedModel):
            user_id = ShardKeyField()
            likers = models.ManyToManyField(User, related_name="+")

            class Meta:
                app_label = "kinds"

        class Plain(ShardedModel):
            user_id = ShardKeyField()
            likers = models.ManyToManyField(User, through="Between", related_name="+")

            class Meta:
                app_label = "kinds"

        class Between(models.Model):
            plain = models.ForeignKey(Plain, models.DO_NOTHING, db_constraint=False)
            user = models.ForeignKey(User, models.CASCADE)

            class Meta:
                app_label = "kinds"

        found = [
            (one.obj.model.__name__, one.hint)
            for one in checks.check_models()
            if one.id == "pgshard.E009"
        ]
        assert found == [
            ("Constrained", "ManyToManyField(…, db_constraint=False)"),
            ("Plain", "derive it from ShardedModel"),
        ]
    finally:
        apps.all_models["kinds"].clear()
        apps.all_models["kinds"].update(before)
        apps.clear_cache()
