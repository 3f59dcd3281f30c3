"""New rows of related managers have the key of the object that they belong to. One-to-one keys,
and serializers."""

import pytest

pytestmark = pytest.mark.usefixtures("db")

U, V = 3, 12


@pytest.fixture
def ledger(world):
    from ledger import models

    for model in (models.PaperLabel, models.Paper, models.Label, models.Profile):
        model.objects.across_shards().run(lambda rows: rows.all().delete()).all()
    return models


def test_a_related_manager_takes_the_key_from_its_object(m):
    album = m.Album.objects.create(user_id=U, name="a")
    photo = album.photos.create(title="x")
    assert (photo.user_id, photo._state.db) == (U, album._state.db)
    assert photo.tags.create(word="w").user_id == U
    assert album.photos.get_or_create(title="x") == (photo, False)
    made, new = album.photos.get_or_create(title="y", defaults={"likes": 2})
    assert (made.user_id, made.likes, new) == (U, 2, True)
    made, new = album.photos.update_or_create(title="y", defaults={"likes": 5})
    assert (made.likes, new) == (5, False)
    made, new = album.photos.update_or_create(defaults={"likes": 6}, title="z")
    assert (made.user_id, made.likes, new) == (U, 6, True)
    made, new = album.photos.update_or_create(
        title="q", defaults={"likes": 7}, create_defaults={"likes": 8}
    )
    assert (made.user_id, made.likes, new) == (U, 8, True)
    assert photo.tags.get_or_create(word="v")[0].user_id == U
    assert m.Photo.objects.for_key(U).count() == 4


def test_a_key_that_is_given_counts(m, p):
    album = m.Album.objects.create(user_id=U, name="a")
    assert album.photos.create(title="x", user_id=U + 16).user_id == U + 16
    assert album.photos.get_or_create(title="y", defaults={"user_id": U + 16})[0].user_id == U + 16
    assert album.photos.get_or_create(title="z", user_id=U + 16)[0].user_id == U + 16
    with pytest.raises(p.WrongShard):
        album.photos.create(title="x", user_id=V)


def test_a_row_that_is_found_keeps_its_key(m):
    album = m.Album.objects.create(user_id=U, name="a")
    photo = album.photos.create(title="x", user_id=U + 16)
    assert album.photos.get_or_create(title="x") == (photo, False)
    found, new = album.photos.update_or_create(title="x", defaults={"likes": 3})
    assert (found.user_id, found.likes, new) == (U + 16, 3, False)


def test_a_table_of_ones_own_between_two_models_has_the_key(ledger):
    paper = ledger.Paper.objects.create(user_id=U, name="p")
    label = ledger.Label.objects.create(user_id=U, word="w")
    paper.labels.add(label)
    other = paper.labels.create(word="v")
    label.papers.create(name="q")
    paper.labels.set([other])
    paper.labels.set([other, label], through_defaults={"user_id": U})
    keys = ledger.PaperLabel.objects.for_key(U).values_list("user_id", flat=True)
    assert list(keys) == [U] * 3
    assert {one.word for one in paper.labels.all()} == {"w", "v"}


def test_a_one_to_one_key_leads_in_both_directions(ledger, p):
    from django.contrib.auth.models import User
    from django.db import IntegrityError

    users = [User.objects.get_or_create(username=f"one {n}")[0] for n in range(3)]
    for user in users[:2]:
        ledger.Profile.objects.create(user=user, text=user.username)
    for user in users[:2]:
        fresh = User.objects.get(pk=user.pk)
        assert fresh.profile.text == user.username
        assert fresh.profile.user == user
        assert p.alias_of_key(user.pk) == fresh.profile._state.db
    with pytest.raises(ledger.Profile.DoesNotExist):
        _ = users[2].profile
    assert not hasattr(users[2], "profile")
    with pytest.raises(IntegrityError):
        ledger.Profile.objects.create(user=users[0], text="second")
    found = User.objects.filter(pk__in=[u.pk for u in users]).prefetch_related("profile")
    assert [getattr(one, "profile", None) and one.profile.text for one in found.order_by("pk")] == [
        "one 0",
        "one 1",
        None,
    ]
    users[0].delete()
    assert ledger.Profile.objects.across_shards().count() == 1


def test_a_plain_serializer_leaves_no_half_written_row(m):
    from rest_framework import serializers

    class Serializer(serializers.ModelSerializer):
        class Meta:
            model = m.Photo
            fields = ["user_id", "title", "album", "tags"]

    album = m.Album.objects.create(user_id=U, name="a")
    own, other = (m.Tag.objects.create(user_id=user, word="w") for user in (U, V))
    data = {"user_id": U, "title": "y", "album": album.pk, "tags": [own.pk]}
    asked = Serializer(data={**data, "tags": [own.pk, other.pk]})
    assert not asked.is_valid()
    assert "tags" in asked.errors
    assert m.Photo.objects.across_shards().count() == 0
    asked = Serializer(data=data)
    assert asked.is_valid(), asked.errors
    photo = asked.save()
    assert [tag.pk for tag in photo.tags.all()] == [own.pk]

    # What goes wrong only when the relations are written takes the row with it.
    asked = Serializer(data={**data, "title": "half"})
    assert asked.is_valid(), asked.errors
    own.delete()
    asked.validated_data["tags"][0].pk = own.pk = photo.pk
    with pytest.raises(Exception, match=r"violates foreign key|not present"):
        asked.save()
    assert [one.title for one in m.Photo.objects.across_shards()] == ["y"]
    asked = Serializer(photo, data={"title": "half"}, partial=True)
    assert asked.is_valid(), asked.errors
    asked.validated_data["tags"] = [own]
    with pytest.raises(Exception, match=r"violates foreign key|not present"):
        asked.save()
    assert [one.title for one in m.Photo.objects.across_shards()] == ["y"]
