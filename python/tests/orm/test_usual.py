"""What projects usually do: empty queries, forms, one-time iterables, copies of rows, generic references."""

import pytest

pytestmark = pytest.mark.usefixtures("db")

U, V = 3, 12  # Users on shards of the two hosts.


@pytest.fixture
def m(world):
    from photos import models

    return models


@pytest.fixture
def p(world):
    import pgshard.django

    return pgshard.django


def test_an_empty_query_needs_no_shard(m, p):
    from django import forms
    from django.core.paginator import Paginator
    from django.db.models import Sum

    m.Photo.objects.create(user_id=U, title="x")
    for empty in (
        m.Photo.objects.none(),
        m.Photo.objects.all().none().order_by("title"),
        m.Photo.objects.filter(pk__in=[]),
        m.Photo.objects.filter(user_id__in=set(), title="x"),
        m.Photo.objects.filter(pk__in=[None, 2**70]),
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

    class Choice(forms.Form):
        photo = forms.ModelChoiceField(m.Photo.objects.none(), required=False)

    assert "<select" in str(Choice())
    assert [Choice({"photo": text}).is_valid() for text in ("", "7")] == [True, False]


def test_an_id_that_nobody_has_does_not_hide_others(m):
    photo = m.Photo.objects.create(user_id=U, title="x")
    assert list(m.Photo.objects.filter(pk__in=[5000 << 10, photo.pk, None])) == [photo]


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
    assert list(wanted.filter(Q(Q(pk__in=iter([photo.pk for photo in photos])), user_id__in=iter([U])))) == photos
    assert list(wanted.filter(user_id=U).exclude(pk__in=map(int, texts[:1]))) == photos[1:]


def test_the_lookups_of_get_or_create_name_the_shard(m):
    tag, made = m.Tag.objects.get_or_create(user_id__exact=U, word__iexact="a", defaults={"user_id": U, "word": "a"})
    assert made
    assert m.Tag.objects.get_or_create(user_id__exact=U, word__iexact="A") == (tag, False)
    tag, made = m.Tag.objects.get_or_create(user_id=U, word="b", defaults={"word": lambda: "b"})
    assert made
    assert m.Tag.objects.in_bulk([tag.pk]) == {tag.pk: tag}
