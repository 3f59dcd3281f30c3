"""What projects that had one database bring along: none of it gives a part of the answer, or writes where nobody looks."""

import pytest

pytestmark = pytest.mark.usefixtures("db")

U, V = 3, 12


@pytest.fixture
def forum(world):
    from django.contrib.auth.models import User
    from forum import models

    for pk in (U, V):
        User.objects.get_or_create(pk=pk, defaults={"username": f"forum {pk}"})
    yield models
    models.Pin.objects.all().delete()
    for model in (models.Remark, models.Post, models.Thread, models.Label, models.Member, models.Choice):
        model.objects.across_shards().run(lambda rows: rows.delete()).all()
    User.objects.filter(username__startswith="forum ").delete()


@pytest.fixture
def threads(forum):
    """A thread of each of two users, on two shards."""
    return [forum.Thread.objects.create(user_id=user, title="t") for user in (U, V)]


# ------------------------------------------------------------------------------------------------------------- relations


def test_generic_relations_of_several_shards_are_prefetched(forum, threads):
    from django.db.models import Prefetch, prefetch_related_objects

    for thread in threads:
        thread.remarks.create(user_id=thread.user_id, text=f"of {thread.user_id}")
        thread.remarks.add(forum.Remark(user_id=thread.user_id, text="another"), bulk=False)
    for given in (threads, threads[::-1]):
        found = forum.Thread.objects.by_ids([thread.pk for thread in given])
        prefetch_related_objects(found, "remarks")
        assert [len(thread.remarks.all()) for thread in found] == [2, 2]
        some = Prefetch("remarks", forum.Remark.objects.exclude(text="another"), to_attr="some")
        prefetch_related_objects(found, some)
        assert [[one.text for one in thread.some] for thread in found] == [[f"of {one.user_id}"] for one in given]
    threads[0].remarks.all().delete()
    assert [thread.remarks.count() for thread in threads] == [0, 2]
