"""What Django projects ask and write most, on shards and on the same models in one plain database:
the answers are the same."""

from types import SimpleNamespace

import pytest

pytestmark = pytest.mark.usefixtures("db")

U, V, W = 3, 12, 19  # The last one's rows are on the first one's shard.
X = 4  # The shard of this one's rows is on the first one's host.


@pytest.fixture
def plain(world):
    """The models of photos as they were before they were sharded, with tables in the default
    database."""
    from django.db import connection, models
    from django.db.models.functions import Lower, Now
    from django.test.utils import isolate_apps

    with isolate_apps("photos"):

        class Category(models.Model):
            name = models.CharField(max_length=50, unique=True)

            class Meta:
                app_label, db_table = "photos", "plain_category"

        class Album(models.Model):
            user_id = models.BigIntegerField(db_index=True)
            name = models.CharField(max_length=100)

            class Meta:
                app_label, db_table = "photos", "plain_album"
                ordering = ["name"]
                constraints = [
                    models.UniqueConstraint(fields=["user_id", "name"], name="plain_album_of_user")
                ]

        class Tag(models.Model):
            user_id = models.BigIntegerField(db_index=True)
            word = models.CharField(max_length=50)

            class Meta:
                app_label, db_table = "photos", "plain_tag"
                constraints = [
                    models.UniqueConstraint(fields=["user_id", "word"], name="plain_tag_of_user")
                ]

        class Photo(models.Model):
            user_id = models.BigIntegerField(db_index=True)
            album = models.ForeignKey(Album, models.CASCADE, null=True, related_name="photos")
            category = models.ForeignKey(
                Category, models.DO_NOTHING, null=True, related_name="photos"
            )
            tags = models.ManyToManyField(Tag, related_name="photos")
            title = models.CharField(max_length=100)
            likes = models.IntegerField(default=0, db_default=0)
            made_at = models.DateTimeField(db_default=Now())
            lower = models.GeneratedField(
                expression=Lower("title"),
                output_field=models.CharField(max_length=100),
                db_persist=True,
            )

            class Meta:
                app_label, db_table = "photos", "plain_photo"
                constraints = [
                    models.CheckConstraint(
                        condition=models.Q(likes__gte=0), name="plain_likes_positive"
                    )
                ]

    made = [Category, Album, Tag, Photo]
    with connection.schema_editor() as editor:
        for model in made:
            editor.create_model(model)
    yield SimpleNamespace(Category=Category, Album=Album, Tag=Tag, Photo=Photo)
    with connection.schema_editor() as editor:
        for model in made[::-1]:
            editor.delete_model(model)


@pytest.fixture
def both(m, plain):
    """The models on shards and the plain ones, with the same rows of four users on three shards."""
    for models in (m, plain):
        fill(models)
    yield m, plain
    m.Photo.objects.across_shards().run(lambda rows: rows.delete()).all()
    m.Category.objects.all().delete()


def fill(m):
    categories = [m.Category.objects.create(name=name) for name in ("city", "sea")]
    for user in (U, V, W, X):
        albums = [
            m.Album.objects.create(user_id=user, name=f"{name} {user}")
            for name in ("b", "a", "empty")
        ]
        tags = [m.Tag.objects.create(user_id=user, word=word) for word in ("x", "y", "z")]
        for n, (album, category) in enumerate(
            zip((*albums[:2], None, albums[0]), (*categories, None, None))
        ):
            made = {
                "title": f"P{n} of {user}",
                "likes": n * user,
                "album": album,
                "category": category,
            }
            m.Photo.objects.create(user_id=user, **made).tags.add(*tags[: n % 3])
    for user in (U, V, X):
        m.Photo.objects.create(user_id=user, title="same", likes=1)


def seen(value):
    """An answer without IDs, which are not the same in both."""
    from django.db.models import Model

    if isinstance(value, Model):
        names = ("user_id", "title", "name", "word", "likes")
        return [value.__dict__[name] for name in names if name in value.__dict__]
    if isinstance(value, dict):
        return {name: seen(one) for name, one in value.items()}
    if hasattr(value, "__iter__") and not isinstance(value, str):
        return [seen(one) for one in value]
    return value


def everywhere(rows, limit=100):
    """The rows of all shards, in the query's order."""
    return (
        rows.across_shards().list(limit=limit) if hasattr(rows, "across_shards") else rows[:limit]
    )


def count(rows):
    return (rows.across_shards() if hasattr(rows, "across_shards") else rows).count()


def exists(rows):
    return (rows.across_shards() if hasattr(rows, "across_shards") else rows).exists()


def by_ids(rows, ids):
    """The rows with these IDs, in their order."""
    if hasattr(rows, "by_ids"):
        return rows.by_ids(ids)
    found = {row.pk: row for row in rows.filter(pk__in=ids)}
    return [found[id] for id in ids if id in found]


def answer(work, models):
    from django.core.exceptions import MultipleObjectsReturned, ObjectDoesNotExist
    from django.db import IntegrityError

    try:
        return seen(work(models))
    except (MultipleObjectsReturned, ObjectDoesNotExist, IntegrityError) as error:
        return type(error).__name__


def photo(m, n=1, user=U):
    return m.Photo.objects.get(title=f"P{n} of {user}", user_id=user)


def album(m, name="b", user=U):
    return m.Album.objects.get(name=f"{name} {user}", user_id=user)


def mine(m):
    return m.Photo.objects.filter(user_id=U).order_by("title")


def reads():
    """What is asked by key, by ID or by what a row belongs to."""
    from django.contrib.postgres.aggregates import ArrayAgg
    from django.core.paginator import Paginator
    from django.db.models import (
        Avg,
        Count,
        Exists,
        F,
        FilteredRelation,
        Max,
        OuterRef,
        Prefetch,
        Q,
        Subquery,
        Sum,
        Window,
    )
    from django.db.models.functions import RowNumber

    def albums(m):
        return m.Album.objects.filter(user_id=U)

    def tag(m, word, user=U):
        return m.Tag.objects.get(word=word, user_id=user)

    own = Q(user_id=U)
    return (
        lambda m: [one.album and one.album.name for one in mine(m).select_related("album")],
        lambda m: [
            one.category and one.category.name for one in mine(m).prefetch_related("category")
        ],
        lambda m: mine(m).filter(category=m.Category.objects.get(name="city")),
        lambda m: mine(m).filter(category__in=list(m.Category.objects.filter(name="city"))),
        lambda m: (
            mine(m)
            .values_list("title", "album__name", "tags__word")
            .order_by("title", "tags__word")
        ),
        lambda m: mine(m).values_list("album__name", flat=True),
        lambda m: mine(m).aggregate(
            n=Count("pk"), s=Sum("likes"), a=Avg("likes"), max=Max("likes")
        ),
        lambda m: mine(m).aggregate(
            n=Count("tags"), d=Count("tags", distinct=True), f=Count("pk", filter=Q(likes=3))
        ),
        lambda m: (
            albums(m)
            .annotate(n=Count("photos", filter=Q(photos__likes__gt=0)))
            .values_list("name", "n")
        ),
        lambda m: (
            mine(m)
            .order_by("album__name")
            .values("album__name")
            .annotate(n=Count("pk"), s=Sum("likes"))
        ),
        lambda m: mine(m).order_by().aggregate(all=ArrayAgg("title", order_by="title")),
        lambda m: m.Photo.objects.in_bulk([photo(m).pk]).values(),
        lambda m: mine(m).in_bulk([photo(m).pk, photo(m, user=V).pk]).values(),
        lambda m: [
            sorted(tag.word for tag in one.tags.all())
            for one in mine(m).prefetch_related("tags").iterator(chunk_size=2)
        ],
        lambda m: mine(m).filter(user_id=F("album__user_id"), likes__gt=F("user_id")),
        lambda m: (
            albums(m)
            .annotate(
                newest=Subquery(
                    m.Photo.objects.filter(album=OuterRef("pk"))
                    .order_by("-likes")
                    .values("title")[:1]
                )
            )
            .values_list("name", "newest")
        ),
        lambda m: albums(m).filter(Exists(m.Photo.objects.filter(album=OuterRef("pk")))),
        lambda m: albums(m).filter(
            ~Exists(m.Photo.objects.filter(album=OuterRef("pk"), user_id=OuterRef("user_id")))
        ),
        lambda m: mine(m).exclude(tags__word="x"),
        lambda m: mine(m).exclude(album__name=f"b {U}"),
        lambda m: mine(m).exclude(pk__in=[photo(m).pk, photo(m, user=V).pk]),
        lambda m: mine(m).filter(Q(likes=0) | Q(album__name__startswith="a")),
        lambda m: m.Photo.objects.filter(own | Q(user_id=W)).order_by("title"),
        lambda m: m.Photo.objects.filter(user_id__in=[str(U), W]).order_by("title"),
        lambda m: m.Photo.objects.filter(
            Q(album=album(m)) | Q(tags=tag(m, "y")), likes__gt=0
        ).order_by("title"),
        lambda m: [[page, page.paginator.count] for page in Paginator(mine(m), 3)],
        lambda m: [
            mine(m)[1:3],
            mine(m)[::2],
            mine(m)[:3][1:],
            mine(m).last(),
            mine(m).latest("likes"),
        ],
        lambda m: mine(m).order_by("album__name").values_list("album__name").distinct(),
        lambda m: (
            mine(m).filter(likes=0).union(m.Photo.objects.filter(user_id=W)).order_by("title")
        ),
        lambda m: mine(m).difference(mine(m).filter(likes=0)).order_by("title"),
        lambda m: mine(m).filter(likes=0) | mine(m).filter(likes=3),
        lambda m: [mine(m).contains(photo(m)), mine(m).contains(photo(m, user=V))],
        lambda m: [album(m).photos.order_by("title"), photo(m, 2).tags.order_by("word")],
        lambda m: albums(m).filter(photos__likes__gt=0).distinct(),
        lambda m: m.Album.objects.filter(photos=photo(m)),
        lambda m: m.Photo.objects.filter(tags=tag(m, "x")).filter(tags=tag(m, "y")),
        lambda m: m.Photo.objects.filter(tags=tag(m, "x")).filter(tags=tag(m, "y", V)),
        lambda m: m.Photo.objects.filter(album__in=albums(m)).order_by("title"),
        lambda m: m.Photo.objects.filter(user_id__in=albums(m).values("user_id")).order_by("title"),
        lambda m: (
            m.Photo.objects.filter(tags__in=m.Tag.objects.filter(user_id=U))
            .distinct()
            .order_by("title")
        ),
        lambda m: [
            [one.album.name for one in found.photos.all()]
            for found in albums(m).prefetch_related(
                Prefetch("photos", m.Photo.objects.select_related("album"))
            )
        ],
        lambda m: (
            mine(m).annotate(n=Window(RowNumber(), order_by="title")).values_list("title", "n")
        ),
        lambda m: (
            albums(m)
            .alias(liked=FilteredRelation("photos", condition=Q(photos__likes__gt=0)))
            .filter(liked__isnull=True)
        ),
        lambda m: [one.likes for one in mine(m).only("title")],
        lambda m: m.Photo.objects.get(pk=str(photo(m).pk)),
        lambda m: m.Photo.objects.get(pk=photo(m).pk, user_id=V),
        lambda m: m.Photo.objects.get(pk=photo(m).pk, user_id=W),
        lambda m: mine(m).get(),
        lambda m: mine(m).get(title="no"),
        lambda m: m.Photo.objects.complex_filter({"user_id": str(U), "title__icontains": "p1"}),
        lambda m: m.Photo.objects.filter(pk__in=[photo(m).pk, photo(m, user=V).pk], user_id=U),
    )


def writes():
    """What is written to the shard of two users."""
    from django.db.models import Exists, F, OuterRef, Subquery, Value
    from django.db.models.functions import Concat

    def bulk_update(m):
        rows = [photo(m), photo(m, user=W)]
        for row in rows:
            row.title += "!"
        return m.Photo.objects.bulk_update(rows, ["title"])

    def save(m):
        for one in mine(m):
            one.likes = F("likes") + 1
            one.save(update_fields=["likes"])

    def copy(m):
        one = photo(m)
        one.pk, one._state.adding = None, True
        one.save()

    def locked(m):
        (one,) = (
            mine(m)
            .select_related("album")
            .select_for_update(of=("self",))
            .filter(album__name=f"a {U}")
        )
        one.album = album(m)
        one.save()

    def owner(m):
        one = photo(m)
        one.user_id = W
        one.save()

    def first(m):
        return m.Album.objects.filter(pk=OuterRef("album")).values("name")[:1]

    tags, both = {"user_id": U, "word": "x"}, [("x", U), ("new", W)]
    on_conflict = {
        "update_conflicts": True,
        "unique_fields": ["user_id", "word"],
        "update_fields": ["word"],
    }
    return (
        bulk_update,
        save,
        copy,
        locked,
        owner,
        lambda m: m.Photo.objects.bulk_create(
            [m.Photo(user_id=user, title="new") for user in (U, W)]
        ),
        lambda m: (
            m.Tag.objects.bulk_create(
                [m.Tag(word=w, user_id=u) for w, u in both], ignore_conflicts=True
            )
            and None
        ),
        lambda m: (
            m.Tag.objects.bulk_create([m.Tag(word=w, user_id=u) for w, u in both], **on_conflict)
            and None
        ),
        lambda m: mine(m).update(likes=F("likes") + 1, title=Concat("title", Value("!"))),
        lambda m: mine(m).filter(album__isnull=False).update(title=Subquery(first(m))),
        lambda m: mine(m).filter(album__name=f"b {U}").update(likes=9),
        lambda m: (
            mine(m)
            .filter(Exists(m.Tag.objects.filter(photos=OuterRef("pk"), word="x")))
            .update(likes=5)
        ),
        lambda m: m.Photo.objects.filter(pk=photo(m).pk, user_id=V).update(likes=9),
        lambda m: m.Photo.objects.filter(pk=photo(m).pk, user_id=V).delete()[0],
        lambda m: m.Photo.objects.filter(pk__in=mine(m).values("pk")[:2]).delete()[0],
        lambda m: [album(m).delete()[0], m.Album.objects.filter(user_id=U).delete()[0]],
        lambda m: [
            m.Tag.objects.get_or_create(**tags),
            m.Tag.objects.get_or_create(user_id=U, word="new"),
        ],
        lambda m: m.Album.objects.get_or_create(
            user_id=U, name__iexact=f"B {U}", defaults={"name": "new"}
        ),
        lambda m: m.Album.objects.update_or_create(
            user_id=U, name=f"b {U}", defaults={"name": "new"}
        ),
        lambda m: m.Album.objects.update_or_create(
            user_id=U, name="x", defaults={}, create_defaults={"name": "new"}
        ),
        lambda m: m.Photo.objects.update_or_create(
            pk=photo(m).pk, defaults={"title": "new", "user_id": U}
        ),
        lambda m: album(m).photos.get_or_create(title="new", defaults={"user_id": U}),
        lambda m: [
            album(m).photos.set([photo(m), photo(m, 2)]),
            album(m).photos.remove(photo(m, 2)),
        ],
        lambda m: [
            photo(m).tags.set(m.Tag.objects.filter(user_id=U, word="z")),
            photo(m, 2).tags.clear(),
        ],
        lambda m: m.Photo.tags.through.objects.filter(photo=photo(m, 2)).delete()[0],
        lambda m: m.Tag(user_id=U, word="x").save(),
    )


def across():
    """What is asked of all shards together, and by IDs of several."""
    from django.db.models import Count, Exists, F, Max, Window
    from django.db.models.functions import RowNumber

    def rows(m):
        return m.Photo.objects.order_by("user_id", "title")

    def ids(m, *users):
        return [photo(m, n, user).pk for n in range(3) for user in users]

    def ranked(m, *by):
        return rows(m).alias(n=Window(RowNumber(), partition_by=by, order_by="title")).filter(n=2)

    tuples = ("user_id", "title")
    return (
        lambda m: everywhere(rows(m)),
        lambda m: everywhere(rows(m).filter(album=None)),
        lambda m: [
            everywhere(rows(m)[:3]),
            count(rows(m)[:3]),
            count(rows(m)),
            exists(rows(m)[:1]),
        ],
        lambda m: everywhere(rows(m).values("user_id").annotate(n=Count("pk")).order_by("user_id")),
        lambda m: sorted(
            map(
                str, everywhere(rows(m).order_by().values_list("user_id", "album__name").distinct())
            )
        ),
        lambda m: count(m.Photo.objects.values("album", "user_id").distinct()),
        lambda m: count(m.Photo.objects.values("album", "pk").annotate(n=Count("tags"))),
        lambda m: count(m.Tag.objects.values("photos", "user_id").distinct()),
        lambda m: count(m.Photo.tags.through.objects.values("photo").distinct()),
        lambda m: count(m.Photo.tags.through.objects.values("photo__user_id").distinct()),
        lambda m: count(
            m.Photo.objects.filter(album__name__contains="b").values("album__user_id").distinct()
        ),
        lambda m: everywhere(
            m.Photo.objects.order_by("user_id", "album_id", "pk").distinct("user_id", "album_id")
        ),
        lambda m: everywhere(ranked(m, "user_id", "album")),
        lambda m: [count(ranked(m, "user_id")), exists(ranked(m, "user_id"))],
        lambda m: everywhere(
            rows(m)
            .order_by()
            .values(*tuples)
            .difference(rows(m).filter(likes=0).values(*tuples))
            .order_by(*tuples)
        ),
        lambda m: everywhere(
            rows(m).filter(title="same").union(rows(m).filter(likes=0)).order_by(*tuples)
        ),
        lambda m: everywhere(
            m.Album.objects.order_by()
            .values("user_id")
            .union(m.Tag.objects.values("user_id").union(m.Photo.objects.values("user_id")))
            .order_by("user_id")
        ),
        lambda m: count(
            m.Photo.objects.values("title").union(m.Photo.objects.values("title"), all=True)
        ),
        lambda m: count(m.Photo.objects.union(m.Photo.objects.all()).values("user_id", "title")),
        lambda m: exists(m.Photo.objects.filter(title="same").values("title").distinct()),
        lambda m: exists(m.Photo.objects.values("title").annotate(n=Count("pk"))),
        lambda m: exists(m.Photo.objects.values("user_id").annotate(n=Count("pk")).filter(n=6)),
        lambda m: exists(m.Photo.objects.annotate(n=Count("tags")).filter(n=3)),
        lambda m: exists(m.Photo.objects.values("title").union(m.Photo.objects.values("title"))),
        lambda m: exists(
            m.Photo.objects.filter(likes=0).difference(m.Photo.objects.filter(title__contains="P"))
        ),
        lambda m: by_ids(m.Photo.objects.all(), ids(m, U, X, V, W)),
        lambda m: by_ids(m.Photo.objects.filter(album=None), ids(m, U, X)),
        lambda m: by_ids(m.Photo.objects.filter(title__in=[]), ids(m, U, X)),
        lambda m: by_ids(m.Photo.objects.filter(title__in=[], pk__in=ids(m, U)), ids(m, U, X)),
        lambda m: by_ids(m.Photo.objects.exclude(title__in=[]), ids(m, X, U)),
        lambda m: by_ids(
            m.Photo.objects.filter(Exists(m.Photo.tags.through.objects.filter(photo=photo(m)))),
            ids(m, U),
        ),
        lambda m: by_ids(m.Photo.objects.filter(user_id=F("album__user_id")), ids(m, U, X)),
        lambda m: by_ids(m.Photo.objects.annotate(n=Max("tags__word")), ids(m, U, X)),
    )


def alone():
    """What each shard would answer for itself only: groups, duplicates and windows that several
    have, and rows that are left out for others."""
    from django.db.models import Count, Exists, Max, Window
    from django.db.models.functions import RowNumber
    from django.db.models.lookups import Exact

    def rows(m):
        return m.Photo.objects.order_by()

    def ranked(by="title"):
        return Window(RowNumber(), partition_by=by, order_by="pk")

    def values(m, *names):
        return rows(m).values_list(*names)

    return (
        # A row that refers to none says no shard.
        lambda m: everywhere(values(m, "album").distinct()),
        lambda m: count(values(m, "album").distinct()),
        lambda m: everywhere(values(m, "album").annotate(n=Count("pk"))),
        lambda m: everywhere(rows(m).order_by("album_id").distinct("album")),
        lambda m: everywhere(rows(m).order_by("album_id").distinct("album_id")),
        lambda m: everywhere(rows(m).annotate(n=ranked("album"))),
        lambda m: everywhere(
            values(m, "album").difference(rows(m).filter(likes=0).values_list("album"))
        ),
        lambda m: everywhere(values(m, "album").union(values(m, "album"))),
        lambda m: everywhere(values(m, "album__user_id").distinct()),
        lambda m: everywhere(values(m, "album__pk").distinct()),
        lambda m: everywhere(m.Tag.objects.values_list("photos").distinct()),
        lambda m: everywhere(m.Tag.objects.values_list("photos__user_id").annotate(n=Count("pk"))),
        lambda m: everywhere(rows(m).order_by("album__user_id").distinct("album__user_id")),
        lambda m: by_ids(
            rows(m).order_by("album_id").distinct("album"), [photo(m, 2).pk, photo(m, 2, X).pk]
        ),
        # Windows that are filtered by.
        lambda m: everywhere(rows(m).alias(n=ranked()).filter(n=1)),
        lambda m: count(rows(m).alias(n=ranked("likes")).filter(n__gt=1)),
        lambda m: everywhere(rows(m).filter(Exact(ranked(), 1))),
        lambda m: everywhere(rows(m).alias(n=ranked()).exclude(n=1)),
        lambda m: by_ids(rows(m).alias(n=ranked()).filter(n=1), [photo(m).pk, photo(m, user=X).pk]),
        # Parts of parts.
        lambda m: everywhere(
            values(m, "title").union(values(m, "title").union(values(m, "title"), all=True))
        ),
        lambda m: everywhere(
            values(m, "title").union(values(m, "title").union(values(m, "title")), all=True)
        ),
        lambda m: count(
            values(m, "user_id").union(
                values(m, "likes").intersection(values(m, "user_id")), all=True
            )
        ),
        lambda m: everywhere(rows(m).union(rows(m)).values_list("title")),
        lambda m: everywhere(rows(m).filter(likes=0).union(rows(m).order_by("title")[:2])),
        # Whether there are any.
        lambda m: exists(values(m, "title").annotate(n=Count("pk")).filter(n=3)),
        lambda m: exists(values(m, "title").alias(n=Max("user_id")).filter(n=U)),
        lambda m: exists(rows(m).alias(n=ranked()).filter(n=3)),
        lambda m: exists(
            values(m, "title").difference(rows(m).filter(user_id__lt=V).values_list("title"))
        ),
        lambda m: exists(
            rows(m)
            .filter(user_id__gt=U)
            .values("title")
            .intersection(rows(m).filter(user_id__lte=U).values("title"))
        ),
        lambda m: exists(
            values(m, "title")
            .filter(likes=-1)
            .union(values(m, "title").alias(n=Count("pk")).filter(n=3))
        ),
        lambda m: exists(rows(m).filter(title="no").union(rows(m).order_by("title")[1:3])),
        lambda m: exists(
            rows(m).filter(Exists(rows(m).filter(title="same"))).alias(n=ranked()).filter(n=3)
        ),
    )


def test_what_is_read_is_the_same(both, p):
    m, plain = both
    for number, work in enumerate(reads()):
        assert answer(work, m) == answer(work, plain), number
        with p.shard_of(V):
            assert answer(work, m) == answer(work, plain), number


def test_what_all_shards_answer_is_the_same(both):
    m, plain = both
    wanted = {number: answer(work, plain) for number, work in enumerate(across())}
    assert {number: answer(work, m) for number, work in enumerate(across())} == wanted


def test_what_each_shard_would_answer_for_itself_is_refused(both):
    m, plain = both
    given = {}
    for number, work in enumerate(alone()):
        answer(work, plain)
        try:
            given[number] = answer(work, m)
        except ValueError as error:
            if "take .run()" not in str(error):
                raise
    assert given == {}


def test_what_is_written_is_the_same(both):
    m, plain = both
    for number, work in enumerate(writes()):
        assert written(work, m, "shard-3", "shard-12") == written(
            work, plain, "default", "default"
        ), number


def written(work, models, using, elsewhere):
    """The answer, and the rows of the users then, those elsewhere too; all of it is rolled back."""
    from django.db import transaction

    def within(m):
        with transaction.atomic(using=using):
            return seen(work(m))

    def rows(where, *users):
        return [
            list(
                model._base_manager.using(where)
                .filter(user_id__in=users)
                .order_by(*names)
                .values_list(*names)
            )
            for model, names in (
                (models.Photo, ("user_id", "title", "likes", "album__name", "tags__word")),
                (models.Album, ("user_id", "name")),
                (models.Tag, ("user_id", "word")),
            )
        ]

    with transaction.atomic(using=using), transaction.atomic(using=elsewhere):
        given = answer(within, models)
        found = rows(using, U, W), rows(elsewhere, V)
        for where in (elsewhere, using):
            transaction.set_rollback(True, using=where)
    return given, found
