"""Subqueries that name no shard: those that would have the rows of one shard for those of all are
refused."""

import pytest

pytestmark = pytest.mark.usefixtures("db")

U, V, W = 3, 12, 19  # The last one's rows are on the first one's shard.


@pytest.fixture
def rows(m):
    """An album with two photos and a tag of each user."""
    for user in (U, V, W):
        album = m.Album.objects.create(user_id=user, name=f"a{user}")
        photos = [
            m.Photo.objects.create(user_id=user, album=album, title=title, likes=user)
            for title in ("same", str(user))
        ]
        photos[0].tags.add(m.Tag.objects.create(user_id=user, word="x"))


def test_a_part_that_sees_one_shard_for_all_is_refused(m, p, rows):
    from django.db.models import Count, Exists, F, Max, OuterRef, Q, Subquery, Window
    from django.db.models.functions import RowNumber

    mine, photos, albums = (
        m.Photo.objects.filter(user_id=U),
        m.Photo.objects.order_by(),
        m.Album.objects.order_by(),
    )
    first = photos.order_by("-likes").values("pk")[:1]
    numbered = photos.annotate(n=Window(RowNumber(), order_by="-likes"))

    def wrong(given):
        return (
            given.filter(title__in=albums.values("name")),
            given.exclude(title__in=albums.values("name")),
            given.filter(likes=Subquery(photos.values("likes")[:1])),
            given.filter(likes__gte=photos.values(n=Max("likes")).values("n")),
            given.annotate(n=Subquery(photos.order_by("-likes").values("likes")[:1])),
            given.order_by(Subquery(photos.values("likes")[:1])),
            given.filter(Exists(albums.filter(name="a12"))),
            given.filter(~Exists(albums.filter(name=OuterRef("title")))),
            given.filter(Exists(photos.filter(title=OuterRef("title")).exclude(pk=OuterRef("pk")))),
            # Which of the rows it gives depends on those of all shards.
            given.filter(pk=Subquery(first)),
            given.filter(pk__in=photos.order_by("title").distinct("title")),
            given.filter(pk__in=numbered.filter(n=1).values("pk")),
            given.filter(pk__in=photos.values("title").annotate(n=Max("pk")).values("n")),
            # What is tied in part, or by something else.
            given.filter(
                Exists(photos.filter(Q(album=OuterRef("album")) | Q(title=OuterRef("title"))))
            ),
            given.filter(Exists(photos.exclude(album=OuterRef("album")))),
            given.filter(Exists(photos.filter(album__gte=OuterRef("album")))),
            given.filter(Exists(photos.filter(likes=OuterRef("user_id")))),
            given.filter(Exists(photos.filter(user_id=OuterRef("album")))),
            given.filter(Exists(photos.filter(user_id=F("album__user_id")))),
            given.filter(pk__in=photos.filter(title__in=albums.values("name"))),
        )

    for query in wrong(mine):
        with pytest.raises(p.NoShard, match="this part of a query names no shard"):
            list(query)
        if query.query.where.children[1:]:
            for refused in (query.count, query.delete):
                with pytest.raises(p.NoShard, match="this part of a query names no shard"):
                    refused()
    for query in wrong(m.Photo.objects.all()):
        for refused in (
            lambda query=query: query.across_shards().list(limit=9),
            lambda query=query: query.by_ids([row.pk for row in mine]),
        ):
            with pytest.raises(
                (p.NoShard, ValueError),
                match=r"this part of a query names no shard|cannot be merged",
            ):
                refused()
    with pytest.raises(p.NoShard, match="this part of a query names no shard"):
        mine.update(likes=Subquery(albums.annotate(n=Count("photos")).values("n")[:1]))
    with p.shard_of(V), pytest.raises(p.NoShard, match="this part of a query names no shard"):
        mine.filter(Exists(albums.filter(name="a12"))).count()
    assert mine.count() == 2


def test_a_part_that_is_tied_to_its_querys_row_sees_enough(m, p, rows):
    from django.db.models import Count, Exists, F, Max, OuterRef, Q, Subquery

    mine, photos, albums = (
        m.Photo.objects.filter(user_id=U),
        m.Photo.objects.order_by(),
        m.Album.objects.order_by(),
    )

    def right(given):
        return (
            (given.filter(album__in=albums.filter(name__startswith="a")), 2),
            (given.exclude(album__in=albums.filter(name="a5")), 2),
            (given.filter(user_id__in=albums.filter(name__startswith="a").values("user_id")), 2),
            (given.filter(pk__in=photos.filter(title="same").values("pk")), 1),
            (
                given.filter(
                    pk__in=photos.filter(title="same")
                    .values("pk")
                    .union(photos.filter(title="y").values("pk"))
                ),
                1,
            ),
            (
                given.filter(
                    album__in=photos.values("album")
                    .annotate(n=Count("pk"))
                    .filter(n=2)
                    .values("album")
                ),
                2,
            ),
            (given.filter(pk__in=photos.filter(album__in=albums.filter(name__startswith="a"))), 2),
            (given.exclude(tags__word="x"), 1),
            (given.exclude(album__photos__title="same"), 0),
            (given.filter(Exists(photos.filter(album=OuterRef("album"), title="same"))), 2),
            (
                given.filter(
                    Exists(photos.filter(user_id=OuterRef("user_id"), likes__gt=OuterRef("likes")))
                ),
                0,
            ),
            (given.filter(Exists(albums.filter(photos=OuterRef("pk")))), 2),
            (
                given.filter(
                    Exists(albums.filter(Q(pk=OuterRef("album")) | Q(photos=OuterRef("pk"))))
                ),
                2,
            ),
            (given.filter(Exists(m.Photo.tags.through.objects.filter(photo=OuterRef("pk")))), 1),
            (
                given.filter(
                    likes=Subquery(photos.filter(album=OuterRef("album")).values("likes")[:1])
                ),
                2,
            ),
            (
                given.filter(
                    Exists(
                        albums.filter(
                            Exists(photos.filter(pk=OuterRef(OuterRef("pk")))), pk=OuterRef("album")
                        )
                    )
                ),
                2,
            ),
        )

    for number, (query, count) in enumerate(right(mine)):
        assert (query.count(), len(query)) == (count, count), number
    for number, (query, count) in enumerate(right(m.Photo.objects.all())):
        assert query.across_shards().count() == count * 3, number
        assert len(query.by_ids([row.pk for row in mine])) == count, number
    most = photos.filter(user_id=OuterRef("user_id")).order_by("-likes").values("likes")[:1]
    assert mine.update(likes=Subquery(most), title=F("title")) == 2
    assert albums.filter(photos__in=photos.filter(user_id=U)).aggregate(n=Max("photos__likes")) == {
        "n": U
    }


def test_a_part_may_name_the_shard_otherwise(m, p, rows):
    from django.db.models import Exists

    mine, albums = m.Photo.objects.filter(user_id=U), m.Album.objects.all()
    for named in (albums.for_key(U), albums.using("shard-3"), albums.filter(user_id__in=[U, W])):
        assert mine.filter(Exists(named.filter(name="a19"))).count() == 2
    with p.shard_of(U):
        assert mine.filter(Exists(albums.filter(name="a19"))).count() == 2
    assert p.run_in_shard(U, lambda: mine.filter(title__in=albums.values("name")).count()) == 0
    whole = m.Photo.objects.across_shards().run(
        lambda photos: photos.filter(Exists(albums.using(photos.db).filter(name="a19"))).count()
    )
    assert sum(whole.all().values()) == 4


def test_the_parts_of_a_union_say_the_shard_in_the_same_column(m, rows):
    from django.db.models import F

    photos, albums = m.Photo.objects.order_by(), m.Album.objects.order_by()
    one, other = photos.values_list("user_id", "likes"), photos.values_list("likes", "user_id")
    for wrong in (
        one.union(other),
        one.difference(other),
        one.union(one.union(other), all=True).union(one),
        photos.values_list("user_id", "pk").union(photos.values_list("pk", "user_id")),
        photos.values_list("title", F("user_id")).union(photos.values_list("user_id", F("title"))),
    ):
        for refused in (
            wrong.across_shards().count,
            lambda wrong=wrong: wrong.across_shards().list(limit=10),
        ):
            with pytest.raises(ValueError, match="in the same column of each part"):
                refused()
    for right, count in (
        (one.union(one), 3),
        (one.union(other, all=True), 12),
        (photos.values_list("title", "user_id").union(albums.values_list("name", "user_id")), 9),
        (
            photos.values_list("title", F("user_id")).union(
                albums.values_list("name", F("user_id"))
            ),
            9,
        ),
        (
            photos.filter(album__isnull=False).values_list("album").union(albums.values_list("pk")),
            3,
        ),
        (photos.filter(title="same").union(photos.filter(likes=U)), 4),
    ):
        assert right.across_shards().count() == count


def test_a_reference_that_is_asked_for_does_in_place_of_the_key(m, rows):
    from django.db.models import Count, Q

    m.Photo.objects.create(user_id=U, title="alone")
    photos = m.Photo.objects.order_by()
    for given in (
        photos.filter(album__isnull=False),
        photos.exclude(album=None),
        photos.exclude(album__isnull=True).filter(likes__gt=0),
        photos.filter(Q(Q(album__isnull=False), likes__gt=0)),
    ):
        assert given.values("album").distinct().across_shards().count() == 3
        groups = (
            given.values_list("album")
            .annotate(n=Count("pk"))
            .order_by("album_id")
            .across_shards()
            .list(limit=10)
        )
        assert [count for _, count in groups] == [2, 2, 2]
    for given in (
        photos.filter(album__isnull=True),
        photos.exclude(album__isnull=False),
        photos.filter(Q(album__isnull=False) | Q(likes=0)),
        photos.exclude(album=None, likes=0),
        photos.filter(Q(album__isnull=False) ^ Q(likes=0)),
    ):
        with pytest.raises(ValueError, match="compares its own rows only"):
            given.values("album").distinct().across_shards().count()


def test_an_order_that_was_not_selected_is_refused(m, rows):
    from django.db.models import F

    with pytest.raises(ValueError, match="cannot be merged"):
        m.Photo.objects.alias(n=F("likes") + 1).order_by("n").across_shards().list(limit=10)
    found = (
        m.Photo.objects.annotate(n=F("likes") + 1)
        .order_by("-n", "title")
        .across_shards()
        .list(limit=3)
    )
    assert [photo.title for photo in found] == ["19", "same", "12"]


def test_an_order_by_what_python_has_otherwise_is_refused(m, world):
    """JSON's null comes before its numbers, its true after them, and a missing one is null."""
    from django.db.models import F, IntegerField
    from django.db.models.functions import Cast
    from shop.models import Product

    goods = [
        Product.objects.create(user_id=user, label=str(user), words={"n": n})
        for user, n in ((U, 2), (V, 1), (W, 3))
    ]
    try:
        rows = Product.objects.annotate(n=F("words__n"))
        for wrong in (rows.order_by("n"), rows.order_by("-n").values("n"), rows.order_by("words")):
            with pytest.raises(ValueError, match="cannot be merged"):
                wrong.across_shards().list(limit=5)
        sure = Product.objects.annotate(n=Cast("words__n", IntegerField())).order_by("-n")
        assert [one.label for one in sure.across_shards().list(limit=2)] == [str(W), str(U)]
    finally:
        for one in goods:
            one.delete()
