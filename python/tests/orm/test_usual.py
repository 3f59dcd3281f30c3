"""What projects usually do: empty queries, forms, one-time iterables, copies of rows, generic
references."""

from functools import partial

import pytest

pytestmark = pytest.mark.usefixtures("db")

U, V = 3, 12  # Users on shards of the two hosts.


def test_an_empty_query_needs_no_shard(m, p):
    from django import forms
    from django.core.paginator import Paginator
    from django.db.models import Q, Sum

    photo = m.Photo.objects.create(user_id=U, title="x")
    assert m.Photo.objects.get(Q(user_id=None) | Q(user_id=U)) == photo
    for empty in (
        m.Photo.objects.none(),
        m.Photo.objects.all().none().order_by("title"),
        m.Photo.objects.filter(pk__in=[]),
        m.Photo.objects.filter(user_id__in=set(), title="x"),
        m.Photo.objects.filter(pk__in=[None, 2**70]),
        m.Photo.objects.filter(user_id=None),  # As of an anonymous user.
        m.Photo.objects.filter(Q(user_id=None) | Q(pk=None), title="x"),
    ):
        assert list(empty) == list(empty.iterator()) == list(empty.values_list("pk")) == []
        assert (empty.count(), empty.exists(), empty.first()) == (0, False, None)
        assert empty.aggregate(Sum("likes")) == {"likes__sum": None}
        assert empty.update(likes=1) == 0
        assert empty.delete() == (0, {})
        assert list(Paginator(empty.order_by("pk"), 5).page(1)) == []
        assert (empty | m.Photo.objects.filter(user_id=U)).count() == 1
    for refused in (m.Photo.objects.none().create, m.Photo.objects.none().get_or_create):
        with pytest.raises(p.NoShard):
            refused(title="y")
    for refused in (m.Photo.objects.get_or_create, m.Photo.objects.update_or_create):
        with pytest.raises(p.NoShard):
            refused(user_id=None, title="y")

    class Choice(forms.Form):
        photo = forms.ModelChoiceField(m.Photo.objects.none(), required=False)

    assert "<select" in str(Choice())
    assert [Choice({"photo": text}).is_valid() for text in ("", "7")] == [True, False]


def test_an_id_that_nobody_has_does_not_hide_others(m):
    photo = m.Photo.objects.create(user_id=U, title="x")
    assert list(m.Photo.objects.filter(pk__in=[5000 << 10, photo.pk, None])) == [photo]


def test_a_list_of_several_shards_is_refused_where_a_shard_is_chosen(m, p):
    from django.db.models import Q

    ours, theirs = (m.Photo.objects.create(user_id=user, title="x") for user in (U, V))
    with p.shard_of(U):
        for rows in (
            m.Photo.objects.filter(user_id__in=[U, V]),
            m.Photo.objects.order_by("pk")
            .filter(Q(pk__in=[ours.pk, theirs.pk]))
            .exclude(title="y"),
        ):
            for refused in (
                rows.__iter__,
                rows.count,
                rows.exists,
                rows.delete,
                partial(rows.update, likes=1),
            ):
                with pytest.raises(p.NoShard, match="of several shards"):
                    refused()
            assert list(rows.filter(user_id=V)) == list(rows.using("shard-12")) == [theirs]
            assert rows.across_shards().count() == 2
        with pytest.raises(p.NoShard, match="of several shards"):
            m.Photo.objects.in_bulk([ours.pk, theirs.pk])
        assert list(m.Photo.objects.filter(pk__in=[ours.pk, 5000 << 10])) == [ours]
        assert m.Photo.objects.count() == 1


def test_a_key_that_is_too_large_has_no_rows(m):
    assert m.Photo.objects.filter(user_id=2**130).first() is None
    assert not m.Photo.objects.filter(user_id__in=[2**130]).exists()
    with pytest.raises(m.Photo.DoesNotExist):
        m.Photo.objects.get(user_id=2**130, pk=5)


def test_what_can_be_read_once_is_read_once(m):
    from django.db.models import Q

    photos = [m.Photo.objects.create(user_id=U, title=f"p{n}") for n in range(2)]
    texts = [str(photo.pk) for photo in photos]
    wanted = m.Photo.objects.order_by("pk")
    assert list(wanted.filter(pk__in=map(int, texts))) == photos
    assert list(wanted.filter(Q(pk__in=(int(text) for text in texts)))) == photos
    assert (
        list(
            wanted.filter(Q(Q(pk__in=iter([photo.pk for photo in photos])), user_id__in=iter([U])))
        )
        == photos
    )
    assert list(wanted.filter(user_id=U).exclude(pk__in=map(int, texts[:1]))) == photos[1:]


def test_the_lookups_of_get_or_create_name_the_shard(m):
    tag, made = m.Tag.objects.get_or_create(
        user_id__exact=U, word__iexact="a", defaults={"user_id": U, "word": "a"}
    )
    assert made
    assert m.Tag.objects.get_or_create(user_id__exact=U, word__iexact="A") == (tag, False)
    tag, made = m.Tag.objects.get_or_create(user_id=U, word="b", defaults={"word": lambda: "b"})
    assert made
    assert m.Tag.objects.in_bulk([tag.pk]) == {tag.pk: tag}


def test_a_row_that_is_not_saved_yet_may_change_its_shard(m, p):
    from django.contrib.auth.models import User

    first, second = (
        User.objects.get_or_create(pk=pk, defaults={"username": f"u{pk}"})[0] for pk in (U, V)
    )
    note = m.Note(user=first, text="x")
    note.user = second
    note.save()
    assert (
        note._state.db,
        m.Note.objects.for_key(V).count(),
        m.Note.objects.for_key(U).count(),
    ) == ("shard-12", 1, 0)

    photo = m.Photo(title="x", album=m.Album.objects.create(user_id=V, name="a"))
    photo.album, photo.user_id = None, U
    photo.save()
    assert photo._state.db == "shard-3"

    # Copies, as Django's documents make them, and what was deleted.
    copy = m.Photo.objects.get(pk=photo.pk)
    copy.pk, copy._state.adding, copy.user_id = None, True, V
    copy.save()
    assert (copy._state.db, m.Photo.objects.get(pk=photo.pk).user_id) == ("shard-12", U)
    photo.delete()
    photo.user_id = V
    photo.save()
    assert m.Photo.objects.for_key(V).count() == 2

    # A reference to another shard is still none.
    photo = m.Photo(title="y", album=m.Album.objects.create(user_id=U, name="a"))
    photo.user_id = V
    with pytest.raises(p.WrongShard, match="refers to a row on shard-3"):
        photo.save()
    first.delete()
    second.delete()


def test_a_form_whose_key_is_missing_or_wrong_has_errors(m, p):
    from django.core.exceptions import ValidationError
    from django.forms import modelform_factory

    form = modelform_factory(m.Album, fields=["user_id", "name"])
    for text in ("", "abc", str(2**70), str(2**130)):
        assert list(form({"user_id": text, "name": "x"}).errors) == ["user_id"]
    with pytest.raises(ValidationError) as error:
        m.Album(name="x").full_clean()
    assert list(error.value.error_dict) == ["user_id"]
    with pytest.raises(ValidationError):
        m.Album(user_id="abc", name="x").full_clean()

    # The view sets the key.
    made = modelform_factory(m.Album, fields=["name"])({"name": "x"})
    assert made.is_valid()
    album = made.save(commit=False)
    album.user_id = U
    album.save()
    m.Album(user_id=U, name="y").validate_unique()
    with pytest.raises(ValidationError, match="already exists"):
        m.Album(user_id=U, name="x").full_clean()
    with p.shard_of(U), pytest.raises(ValidationError, match="cannot be null"):
        m.Album(name="x").full_clean()


def test_a_form_that_would_move_a_row_has_an_error(m, p):
    from django.core.exceptions import NON_FIELD_ERRORS
    from django.forms import inlineformset_factory, modelform_factory

    album = m.Album.objects.create(user_id=U, name="x")
    form = modelform_factory(m.Album, fields=["user_id", "name"])(
        {"user_id": V, "name": "x"}, instance=album
    )
    assert list(form.errors) == [NON_FIELD_ERRORS]
    assert "a row does not change its shard" in str(form.errors)

    # The rows of a form within a form, of an album that is there and of one that is new.
    formset = inlineformset_factory(m.Album, m.Photo, fields=["user_id", "title", "likes"], extra=1)
    data = {
        "photos-TOTAL_FORMS": 1,
        "photos-INITIAL_FORMS": 0,
        "photos-0-title": "t",
        "photos-0-likes": 1,
    }
    for parent in (m.Album.objects.get(pk=album.pk), m.Album(user_id=U, name="new")):
        for user, valid in ((U, True), (V, False)):
            assert formset({**data, "photos-0-user_id": user}, instance=parent).is_valid() == valid
    photo = m.Photo(user_id=V, title="x", album_id=album.pk)
    with pytest.raises(p.WrongShard, match="refers to a row on shard-3"):
        photo.save()


def test_a_generic_reference_leads_to_a_row_of_a_shard(m):
    from django.contrib.contenttypes.models import ContentType
    from django.contrib.contenttypes.prefetch import GenericPrefetch
    from django.db import connections
    from django.test.utils import CaptureQueriesContext
    from shop.models import Favourite

    category = m.Category.objects.create(name="generic")
    photos = [m.Photo.objects.create(user_id=user, title="x") for user in (U, V, U)]
    for target in (*photos, category):
        Favourite.objects.create(target=target)
    Favourite.objects.create(target=photos[0]).target.delete()
    found = [favourite.target for favourite in Favourite.objects.order_by("pk")]
    assert found == [None, *photos[1:], category, None]
    kind = ContentType.objects.get_for_model(m.Photo)
    with_all = Favourite.objects.order_by("pk").prefetch_related("target")
    assert [one.target for one in with_all] == found
    assert [one.target for one in with_all.filter(content_type=kind, object_id=photos[1].pk)] == [
        photos[1]
    ]
    assert kind.get_object_for_this_type(pk=photos[2].pk) == photos[2]
    asked = GenericPrefetch("target", [m.Photo.objects.order_by("title"), m.Category.objects.all()])
    with CaptureQueriesContext(connections["shard-3"]) as sent:
        prefetched = list(Favourite.objects.order_by("pk").prefetch_related(asked))
    assert [one.target for one in prefetched] == found
    assert len(sent) == 1
    theirs = GenericPrefetch("target", [m.Photo.objects.filter(user_id=V)])
    prefetched = Favourite.objects.order_by("pk").prefetch_related(theirs)
    assert [one.target for one in prefetched] == [None, photos[1], None, category, None]
    Favourite.objects.all().delete()
    category.delete()


def test_a_form_finds_choices_of_another_shard_before_it_writes(m, p):
    from django.forms import modelform_factory

    ours, theirs = (m.Tag.objects.create(user_id=user, word="w") for user in (U, V))
    photo = m.Photo.objects.create(user_id=U, title="x")
    form = modelform_factory(m.Photo, fields=["user_id", "title", "likes", "tags"])
    data = {"user_id": U, "title": "y", "likes": 1}
    with p.shard_of(U):
        for instance in (None, m.Photo.objects.get(pk=photo.pk)):
            wrong = form({**data, "tags": [theirs.pk]}, instance=instance)
            assert not wrong.is_valid()
            assert list(wrong.errors) == ["tags"]
            assert "not one of the available choices" in str(wrong.errors)
        assert m.Photo.objects.get().title == "x"
        for instance in (None, photo):
            assert form({**data, "tags": [ours.pk]}, instance=instance).save().tags.get() == ours
    # Without a key nobody knows yet.
    keyless = modelform_factory(m.Photo, fields=["title", "likes", "tags"])
    with p.shard_of(U):
        made = keyless({"title": "z", "likes": 1, "tags": [ours.pk]})
        assert made.is_valid()
        keyless.base_fields["tags"].required = False
        assert keyless({"title": "z", "likes": 1}, instance=photo).save().tags.count() == 0
    made.instance.user_id = U
    assert made.save().tags.get() == ours


def test_a_form_finds_references_to_another_shard_before_it_sets_them(m, p):
    from django.forms import ModelChoiceField, NumberInput, modelform_factory

    ours, theirs = (m.Album.objects.create(user_id=user, name="a") for user in (U, V))
    tags = [m.Tag.objects.create(user_id=user, word="w").pk for user in (U, V)]
    photo = m.Photo.objects.create(user_id=U, title="x")
    form = modelform_factory(m.Photo, fields=["user_id", "title", "likes", "album", "tags"])
    data = {"user_id": U, "title": "y", "likes": 1, "tags": tags[:1], "album": ours.pk}
    with p.shard_of(U):
        for instance in (None, m.Photo.objects.get(pk=photo.pk), m.Photo(user_id=U)):
            for wrong in ({"album": theirs.pk}, {"tags": tags}):
                made = form({**data, **wrong}, instance=instance)
                assert list(made.errors) == list(wrong)
                assert "not one of the available choices" in str(made.errors)
        assert form(data, instance=photo).save().album == ours

    class WithAnother(form):
        """What is no field of the model may be of any shard."""

        copied_from = ModelChoiceField(m.Photo.objects.all(), widget=NumberInput)

    other = m.Photo.objects.create(user_id=V, title="x")
    assert WithAnother({**data, "copied_from": other.pk}).is_valid()
    # The key is another one, and of the album's shard it is not.
    assert not form({**data, "user_id": V, "tags": tags[1:]}).is_valid()
    with pytest.raises(p.NoShard):
        form(data).fields["tags"].queryset.count()


def test_a_serializer_finds_what_is_of_another_shard_before_it_writes(m):
    from django.contrib.auth.models import User

    from pgshard.django.contrib.rest_framework import ShardedModelSerializer

    class Serializer(ShardedModelSerializer):
        class Meta:
            model = m.Photo
            fields = ["user_id", "title", "album", "tags"]

    class OfNote(ShardedModelSerializer):
        class Meta:
            model = m.Note
            fields = ["user", "text"]

    ours, theirs = (m.Album.objects.create(user_id=user, name="a") for user in (U, V))
    tags = [str(m.Tag.objects.create(user_id=user, word="w").pk) for user in (U, V)]
    photo = m.Photo.objects.create(user_id=U, title="x")
    data = {"user_id": U, "title": "y", "album": str(ours.pk), "tags": tags[:1]}
    for instance in (None, photo):
        for wrong in ({"album": str(theirs.pk)}, {"tags": tags}, {"tags": tags[1:], "album": None}):
            asked = Serializer(instance, data={**data, **wrong}, partial=instance is not None)
            assert not asked.is_valid()
            assert (list(asked.errors), "does not exist" in str(asked.errors)) == (
                list(wrong)[:1],
                True,
            )
    assert m.Photo.objects.for_key(U).get().title == "x"
    for instance in (None, photo):
        asked = Serializer(instance, data=data)
        assert asked.is_valid(), asked.errors
        assert [str(tag.pk) for tag in asked.save().tags.all()] == tags[:1]
    several = Serializer([photo], data=[data, {**data, "tags": tags[1:]}], many=True)
    assert (several.is_valid(), str(several.errors).count("does not exist")) == (False, 1)
    user, _ = User.objects.get_or_create(username="of a serializer")
    asked = OfNote(data={"user": user.pk, "text": "x"})
    assert asked.is_valid(), asked.errors
    assert asked.save().user == user


def test_alternatives_of_several_shards_are_refused_where_a_shard_is_chosen(m, p):
    from django.db.models import Exists, Q

    ours, theirs = (m.Photo.objects.create(user_id=user, title="x") for user in (U, V))
    albums = [m.Album.objects.create(user_id=user, name="a") for user in (U, V)]
    photos, key, other = m.Photo.objects, Q(user_id=U), Q(user_id=V)
    with p.shard_of(U):
        for rows in (
            photos.filter(key | other),
            photos.filter(key ^ other),
            photos.filter(Q(key | other, title="x")),
            photos.filter(Q(pk=ours.pk, user_id=U) | Q(pk=theirs.pk, title="x")),
            photos.filter(Q(album=albums[0]) | Q(album__in=albums[1:])),
            photos.filter(key | Q(user_id__in=[U, V])),
            photos.complex_filter(key | other),
            photos.filter(key | Q(other | Q(title="x"))),
            # The rows of one alternative are on another shard than the one that is chosen.
            photos.filter(other | Q(title="x")),
            photos.filter(Q(likes=1) | Q(pk=theirs.pk)),
            photos.filter(title="x") | photos.filter(user_id__in=[U, V]),
            photos.filter(title="x") ^ photos.filter(key | other),
            photos.filter(title="x") & photos.filter(other | Q(title="x")),
            photos.filter(user_id=U).filter(Exists(photos.filter(key | other))),
            photos.filter(user_id=U).filter(Exists(photos.filter(other | Q(title="x")))),
        ):
            for refused in (rows.count, partial(rows.update, likes=1)):
                with pytest.raises(p.NoShard, match=r"of several shards|shard-12"):
                    refused()
        assert photos.filter(Q(user_id=U) | Q(title="x")).get() == ours
    for rows in (
        photos.filter(key | Q(user_id=U + 16)),
        photos.filter(Q(pk=ours.pk) ^ Q(title="y", user_id=U)),
        photos.filter(Q(Q(pk=ours.pk) | Q(album=albums[0])), title="x"),
        # An alternative that no row can be.
        photos.filter(key | Q(pk=5000 << 10) | Q(pk=theirs.pk, user_id=U)),
        photos.filter(key | other, user_id=U),
        photos.complex_filter(Q(pk=ours.pk)),
        photos.filter(key | other).filter(pk=ours.pk),
        photos.filter(key | other).for_key(U),
    ):
        for where in (U, V):
            with p.shard_of(where):
                assert rows.get() == ours
        assert rows.get() == ours
    assert not photos.filter(Q(pk=5000 << 10) | Q(pk=theirs.pk, user_id=U)).exists()
    assert photos.filter(key | other).across_shards().count() == 2
    for nowhere in (
        photos.filter(key | Q(title="x")),
        photos.filter(key | other),
        photos.filter(~(key | other)),
    ):
        with pytest.raises(p.NoShard):
            nowhere.count()
