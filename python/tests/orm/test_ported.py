"""What projects that had one database bring along: none of it gives a part of the answer, or writes
where nobody looks."""

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
    for model in (
        models.Remark,
        models.Post,
        models.Vote,
        models.Thread,
        models.Label,
        models.Member,
        models.Choice,
        models.Seat,
    ):
        model.objects.across_shards().run(lambda rows: rows.delete()).all()
    User.objects.filter(username__startswith="forum ").delete()


@pytest.fixture
def threads(forum):
    """A thread of each of two users, on two shards."""
    return [forum.Thread.objects.create(user_id=user, title="t") for user in (U, V)]


# ------------------------------------------------------------------------------
# relations


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
        assert [[one.text for one in thread.some] for thread in found] == [
            [f"of {one.user_id}"] for one in given
        ]
    threads[0].remarks.all().delete()
    assert [thread.remarks.count() for thread in threads] == [0, 2]


# ------------------------------------------------------------------------------
# many shards


def test_what_each_shard_would_count_for_itself_is_refused(m):
    from django.db.models import Count, F, Window
    from django.db.models.functions import RowNumber

    for user, title in ((U, "a"), (U, "b"), (V, "a")):
        m.Photo.objects.create(user_id=user, title=title)
    rows = m.Photo.objects.order_by()
    titles = rows.order_by("title").values("title")
    for wrong in (
        titles.annotate(n=Count("pk")),
        titles.distinct(),
        rows.order_by("title").distinct("title"),
        rows.values(odd=F("user_id") % 2).annotate(n=Count("pk")).order_by("odd"),
        titles.union(titles.filter(likes=0)),
        rows.annotate(n=Window(RowNumber(), order_by="title")),
    ):
        with pytest.raises(ValueError, match=r"take \.run\(\)"):
            wrong.across_shards().list(limit=10)
        assert wrong.across_shards().exists()
        assert len(wrong.across_shards().run(list).all()) == 16
    for wrong in (titles.annotate(n=Count("pk")), titles.distinct()):
        with pytest.raises(ValueError, match="user_id"):
            wrong.across_shards().count()
    ids = list(rows.values_list("pk", flat=True).across_shards().list(limit=10))
    for wrong in (
        rows.annotate(n=Window(RowNumber(), order_by="title")),
        rows.order_by("title").distinct("title"),
    ):
        with pytest.raises(ValueError, match="user_id"):
            wrong.by_ids(ids)
    ranked = rows.annotate(n=Window(RowNumber(), order_by="title", partition_by=["user_id"]))
    assert sorted(one.n for one in ranked.by_ids(ids)) == [1, 1, 2]
    for right, count in (
        (titles, 3),
        (titles.annotate(tags_count=Count("tags")).values("pk", "title", "tags_count"), 3),
        (rows.annotate(tags_count=Count("tags")).order_by("title"), 3),
        (rows.values("user_id").annotate(n=Count("pk")).order_by("user_id"), 2),
        (rows.values("user_id", "title").distinct().order_by("title"), 3),
        (rows.values_list("pk", flat=True).distinct().order_by("pk"), 3),
        (rows.order_by("title").distinct(), 3),
        (rows.order_by("user_id", "pk").distinct("user_id"), 2),
        (
            rows.annotate(
                n=Window(RowNumber(), order_by="title", partition_by=["user_id"])
            ).order_by("title"),
            3,
        ),
    ):
        across = right.across_shards()
        assert (across.count(), len(across.list(limit=10))) == (count, count)
    assert m.Photo.objects.values("user_id").annotate(n=Count("pk")).order_by(
        "-n"
    ).across_shards().list(limit=1) == [{"user_id": U, "n": 2}]


def test_a_slice_is_of_all_shards_together(m):
    photos = [
        m.Photo.objects.create(user_id=user, title=title)
        for user, title in ((U, "b"), (V, "a"), (U, "c"))
    ]
    two = m.Photo.objects.order_by("title")[:2].across_shards()
    assert (two.count(), two.list(limit=9), two.list(limit=1)) == (
        2,
        [photos[1], photos[0]],
        [photos[1]],
    )
    assert m.Photo.objects.order_by("title")[:9].across_shards().count() == 3


def test_a_key_that_is_an_expression_is_refused(m, p, threads, forum):
    from django.db.models import F, Value
    from ledger.models import Account, Bill

    with p.shard_of(U):
        for wrong in (
            lambda: m.Photo.objects.create(user_id=Value(V), title="x"),
            lambda: m.Photo(user_id=Value(V), title="x").save(),
            lambda: m.Photo.objects.bulk_create([m.Photo(user_id=F("likes"), title="x")]),
            lambda: m.Photo.objects.create(user_id=U, id=Value(threads[1].pk), title="x"),
            lambda: m.Photo.tags.through._base_manager.create(
                photo_id=Value(threads[1].pk), tag_id=5
            ),
        ):
            with pytest.raises(p.WrongShard):
                wrong()
    assert m.Photo.objects.across_shards().count() == 0
    Account.objects.create(number=V)
    ours, theirs = (Bill.objects.create(account_id=account) for account in (U, V))
    with pytest.raises(p.WrongShard, match=r"Bill\.previous"):
        Bill.objects.filter(pk=ours.pk).update(previous=Value(theirs.pk))
    assert Bill.objects.filter(pk=ours.pk).update(previous=Value(ours.pk)) == 1
    assert Bill.objects.filter(pk=ours.pk).update(previous=Value(None)) == 1
    for bill in (ours, theirs):
        bill.delete()
    Account.objects.all().delete()


def test_what_a_row_belongs_to_names_its_shard(m, p, forum, threads):
    from django.db.models import Q

    ours, theirs = threads
    for thread in threads:
        forum.Post.objects.create(thread=thread, text="a")
        forum.Post.objects.create(thread_id=thread.pk, text="b")
        forum.Post(thread_id=thread.pk, text="c").save()
        forum.Post.objects.bulk_create([forum.Post(thread=thread, text="d")])
        assert forum.Post.objects.get_or_create(thread=thread, text="e")[1]
        thread.labels.add(forum.Label.objects.create(user_id=thread.user_id, word="w"))
    label = theirs.labels.get()
    post = theirs.posts.order_by("pk").first()

    def check():
        for rows, count in (
            (forum.Post.objects.filter(thread=theirs), 5),
            (forum.Post.objects.filter(thread_id=str(theirs.pk)), 5),
            (forum.Post.objects.filter(thread__pk__in=[theirs.pk]).exclude(text="a"), 4),
            (forum.Post.objects.filter(thread__user=V), 5),
            (forum.Post.objects.filter(thread__in=forum.Thread.objects.filter(user=V)), 5),
            (
                forum.Thread.objects.filter(
                    pk__in=forum.Post.objects.filter(thread=theirs).values("thread")
                ),
                1,
            ),
            (forum.Thread.objects.filter(labels=label), 1),
            (forum.Thread.objects.filter(posts=post), 1),
            (forum.Label.objects.filter(threads__in=[theirs]), 1),
            (forum.Thread.labels.through.objects.filter(thread=theirs), 1),
            (forum.Thread.labels.through.objects.filter(label_id=label.pk), 1),
            # Further away.
            (forum.Post.objects.filter(thread__labels=label), 5),
            (forum.Post.objects.filter(thread__labels__in=[label.pk], text="a"), 1),
            (forum.Post.objects.filter(thread__labels__user_id=V), 5),
            (forum.Label.objects.filter(threads__posts=post), 1),
            (
                forum.Label.objects.filter(
                    Q(threads__posts=post) | Q(threads__posts__thread__user=V)
                ).distinct(),
                1,
            ),
            (
                forum.Label.objects.filter(
                    threads__posts__in=forum.Post.objects.filter(thread=theirs, text="b")
                ),
                1,
            ),
            (
                forum.Thread.labels.through.objects.filter(
                    thread__posts__thread_id=theirs.pk, thread__posts=post
                ),
                1,
            ),
        ):
            assert (rows.count(), rows.db) == (count, "shard-12")
        with pytest.raises(p.NoShard, match="of several shards"):
            forum.Post.objects.filter(thread__in=threads).count()
        with pytest.raises(ValueError, match="expected a number"):
            forum.Post.objects.filter(thread="x").count()

    check()
    with p.shard_of(U):
        check()
        # What names no shard goes to this one.
        assert forum.Post.objects.filter(text="a").get().thread == ours
        assert forum.Post.objects.filter(thread=None).count() == 0
        with pytest.raises(p.WrongShard):
            forum.Post(thread_id=theirs.pk).save(using="shard-3")
    assert forum.Post.objects.filter(thread=theirs, text="a").update(text="z") == 1
    through = forum.Thread.labels.through
    other = forum.Label.objects.create(user_id=V, word="other")
    through.objects.bulk_create([through(thread_id=theirs.pk, label_id=other.pk)])
    assert theirs.labels.count() == 2
    assert forum.Post.objects.filter(thread=ours).delete()[0] == 5
    assert forum.Post.objects.across_shards().count() == 5


def test_a_part_of_a_query_does_not_look_on_one_shard_for_several(m, p):
    from django.db.models import Exists, OuterRef, Subquery

    for user in (U, V):
        m.Photo.objects.create(user_id=user, title="x")
    ours, both = m.Photo.objects.filter(user_id=U), m.Photo.objects.filter(user_id__in=[U, V])
    same = both.filter(title=OuterRef("title"))
    with p.shard_of(U):
        for wrong in (
            lambda: list(ours.union(both)),
            lambda: list(ours.union(m.Photo.objects.all())),
            lambda: list(ours.difference(m.Photo.objects.filter(title="x"))),
            lambda: ours.filter(title__in=both.values("title")).count(),
            lambda: ours.filter(Exists(same)).count(),
            lambda: ours.annotate(other=Subquery(same.values("pk")[:1])).first(),
            lambda: (m.Photo.objects.all() & both).count(),
        ):
            with pytest.raises((p.NoShard, p.WrongShard), match="no shard"):
                wrong()
    assert ours.filter(Exists(m.Photo.objects.filter(user_id=OuterRef("user_id")))).count() == 1
    assert ours.filter(Exists(same.using("shard-3"))).count() == 1
    assert ours.union(both.using("shard-3"), m.Photo.objects.none()).count() == 1
    assert (
        both.filter(Exists(m.Photo.objects.filter(pk=OuterRef("pk")))).across_shards().count() == 2
    )


def test_a_database_that_is_no_shard_is_not_asked_for_sharded_rows(m, p, monkeypatch):
    from django.db import connection, router

    m.Photo.objects.create(user_id=U, title="x")
    # A table that was there before the rows went to shards.
    with connection.cursor() as cursor:
        cursor.execute(
            "CREATE TABLE photos_photo AS SELECT 1::bigint AS id, 3::bigint AS user_id, 'old' AS"
            " title"
        )
    try:
        for wrong in (
            lambda: m.Photo.objects.db_manager("default").filter(user_id=U).values("title").first(),
            lambda: m.Photo.objects.db_manager("default").filter(user_id=U).count(),
        ):
            with pytest.raises(p.NoShard, match="'default' is no shard"):
                wrong()

        class Reads:
            def db_for_read(self, model, **hints):
                return "default"

        monkeypatch.setattr(router, "routers", [Reads(), p.ShardRouter()])
        with pytest.raises(p.NoShard, match="'default' is no shard"):
            m.Photo.objects.count()
        assert m.Photo.objects.filter(user_id=U).get().title == "x"
    finally:
        with connection.cursor() as cursor:
            cursor.execute("DROP TABLE photos_photo")


def test_a_reference_from_elsewhere_is_checked_where_the_row_is(forum, threads, p):
    from django.core.exceptions import ValidationError
    from django.forms import NumberInput, modelform_factory

    form = modelform_factory(forum.Pin, fields=["thread"], widgets={"thread": NumberInput})
    gone = forum.Thread.objects.create(user_id=V, title="gone")
    gone_id = gone.pk
    gone.delete()

    def check():
        for thread in threads:
            forum.Pin(thread=thread).full_clean()
            assert form({"thread": str(thread.pk)}).is_valid()
        for wrong in (gone_id, 5000 << 10):
            with pytest.raises(ValidationError, match=r"not a valid choice|does not exist"):
                forum.Pin(thread_id=wrong).full_clean()
            assert list(form({"thread": wrong}).errors) == ["thread"]

    check()
    with p.shard_of(U):
        check()


# ------------------------------------------------------------------------------
# primary keys


def test_a_key_that_is_the_primary_key_is_asked_for_by_that(forum, p):
    for user in (U, V):
        forum.Member.objects.create(user_id=user, nick=f"of {user}")
    assert forum.Member.objects.get(pk=V).nick == f"of {V}"
    assert forum.Member.objects.filter(pk__in=[U, U + 16]).count() == 1
    assert forum.Member.objects.get_or_create(pk=V, defaults={"nick": "x"})[1] is False
    assert forum.Member.objects.in_bulk([V])[V].nick == f"of {V}"
    member = forum.Member.objects.only("nick").get(pk=U)
    member.refresh_from_db()
    with pytest.raises(p.NoShard, match="of several shards"):
        forum.Member.objects.filter(pk__in=[U, V]).count()
    with pytest.raises(p.WrongShard):
        forum.Member.objects.filter(pk=U).update(pk=V)
    with pytest.raises(ValueError, match="no ID of a shard"):
        forum.Member.objects.by_ids([U])


def test_a_key_that_was_not_loaded_is_not_needed(forum, m):
    for user in (U, V):
        forum.Choice.objects.create(code="colour", user_id=user, value="red")
    choice = forum.Choice.objects.filter(user_id=V).only("value").get()
    choice.value = "blue"
    choice.save()
    assert "user_id" in choice.get_deferred_fields()
    assert choice.user_id == V
    rows = {user: forum.Choice.objects.for_key(user).get() for user in (U, V)}
    assert [(one.value, one.user_id) for one in rows.values()] == [("red", U), ("blue", V)]
    forum.Choice.objects.filter(user_id=V).defer("user_id").get().delete()
    assert forum.Choice.objects.across_shards().count() == 1
    m.Photo.objects.create(user_id=V, title="x")
    photo = m.Photo.objects.filter(user_id=V).only("title").get()
    photo.title = "y"
    photo.save()
    assert (m.Photo.objects.get(pk=photo.pk).title, photo.user_id) == ("y", V)


def test_values_are_found_by_ids(m):
    photos = [m.Photo.objects.create(user_id=user, title=f"of {user}") for user in (U, V)]
    ids = [photo.pk for photo in photos[::-1]]
    assert m.Photo.objects.values("pk", "title").by_ids(ids) == [
        {"pk": one.pk, "title": one.title} for one in photos[::-1]
    ]
    assert m.Photo.objects.values_list("title", "id").by_ids(ids) == [
        (one.title, one.pk) for one in photos[::-1]
    ]
    with pytest.raises(ValueError, match="add id to values"):
        m.Photo.objects.values("title").by_ids(ids)


def test_a_new_object_refers_to_its_owner_and_to_rows_of_a_shard(forum, p):
    from django.contrib.auth.models import User

    users = {pk: User.objects.get(pk=pk) for pk in (U, V)}
    threads = {pk: forum.Thread.objects.create(user=user, title="t") for pk, user in users.items()}
    for pk, user in users.items():
        for made in (
            forum.Vote.objects.create(user=user, thread=threads[pk], by=users[U]),
            forum.Vote(thread=threads[pk], by=users[V], user=user),
            threads[pk].votes.create(user=user, by=users[V]),
            forum.Vote.objects.get_or_create(user=user, thread=threads[pk], by=users[V])[0],
        ):
            made.save()
            assert (made._state.db, made.thread, made.user) == (f"shard-{pk}", threads[pk], user)
    with pytest.raises(p.WrongShard, match="refers to a row on shard-12"):
        forum.Vote.objects.create(user=users[U], by=users[U], thread=threads[V])
    with pytest.raises(p.WrongShard, match="cannot be related"):
        forum.Vote.objects.filter(thread=threads[U]).first().thread = threads[V]
    vote = forum.Vote(thread=threads[V])
    vote.user = users[U]
    with pytest.raises(p.WrongShard):
        vote.save()
    vote.thread = threads[U]
    vote.by = users[V]
    vote.save()
    assert forum.Vote.objects.across_shards().count() == 7


# ------------------------------------------------------------------------------
# one row or another


def test_what_get_or_create_looks_for_must_name_the_shard(m, p):
    theirs = m.Tag.objects.create(user_id=V, word="w")
    for wrong in (
        lambda: m.Tag.objects.get_or_create(word="w", defaults={"user_id": U}),
        lambda: m.Tag.objects.update_or_create(word="w", defaults={"user_id": U}),
        lambda: m.Tag.objects.update_or_create(
            word="w", create_defaults={"user_id": U, "word": "w"}, defaults={}
        ),
    ):
        with pytest.raises(p.NoShard):
            wrong()
    assert m.Tag.objects.across_shards().list(limit=9) == [theirs]
    assert m.Tag.objects.for_key(V).get_or_create(word="w", defaults={"user_id": V}) == (
        theirs,
        False,
    )
    with p.shard_of(U):
        made, new = m.Tag.objects.get_or_create(word="w", defaults={"user_id": U})
    assert (new, made._state.db) == (True, "shard-3")


def test_a_model_that_extends_one_that_extends_a_sharded_one_is_sharded(p):
    from django.db import models
    from django.test.utils import isolate_apps

    from pgshard.django.checks import _check_sharded
    from pgshard.django.sharded import has_shard_id, is_sharded

    with isolate_apps("forum"):

        class Book(p.ShardedModel):
            user_id = p.ShardKeyField()

            class Meta:
                app_label = "forum"

        class Novel(Book):
            class Meta:
                app_label = "forum"

        class Saga(Novel):
            parts = models.IntegerField(default=1)

            class Meta:
                app_label = "forum"

    for model in (Book, Novel, Saga):
        assert (is_sharded(model), has_shard_id(model), _check_sharded(model)) == (True, True, [])


def test_a_primary_key_of_two_columns_names_the_shard_by_its_key(forum, p):
    for user in (U, V):
        forum.Seat.objects.bulk_create(
            [forum.Seat(user_id=user, number=number) for number in range(2)]
        )

    def check():
        assert forum.Seat.objects.get(pk=(V, 1)).user_id == V
        assert forum.Seat.objects.filter(pk__in=[(V, 0), (V, 1), (V, 2)]).count() == 2
        assert list(forum.Seat.objects.in_bulk([(V, 1)])) == [(V, 1)]
        with pytest.raises(p.NoShard, match="of several shards"):
            forum.Seat.objects.filter(pk__in=[(U, 1), (V, 1)]).count()

    check()
    with p.shard_of(U):
        check()
    seat = forum.Seat.objects.get(pk=(V, 1))
    seat.name = "front"
    seat.save()
    seat.refresh_from_db()
    assert seat.name == "front"
    seat.delete()
    with pytest.raises(p.WrongShard):
        forum.Seat.objects.filter(pk=(V, 0)).update(user_id=U)
    assert forum.Seat.objects.across_shards().count() == 3


# ------------------------------------------------------------------------------
# somebody else's, and nothing


def test_what_is_somebody_elses_is_not_found(m, forum, threads, p):
    from django.db.models import Exists, Q, Sum
    from django.http import Http404
    from django.shortcuts import get_object_or_404

    theirs = m.Photo.objects.create(user_id=V, title="x")
    ours, photos = m.Photo.objects.create(user_id=U, title="x"), m.Photo.objects
    for pk, user in ((threads[1].pk, U), (str(threads[1].pk), threads[0].user)):
        with pytest.raises(Http404):
            get_object_or_404(forum.Thread, pk=pk, user=user)
    with pytest.raises(m.Photo.DoesNotExist):
        photos.get(pk=theirs.pk, user_id=U)

    def check():
        for none in (
            photos.filter(pk=theirs.pk, user_id=U),
            photos.filter(Q(pk=theirs.pk), Q(user_id__exact=U), title="x"),
            photos.filter(Q(Q(id=theirs.pk) & Q(user_id__in=[U, U + 16]))),
            photos.filter(pk__in=[theirs.pk], user_id=str(U)),
            photos.filter(user_id=U, user_id__exact=V),
            photos.filter(pk=5000 << 10, user_id=U),
            photos.filter(title="x")
            .exclude(likes=7)
            .filter(pk=theirs.pk, user_id=U)
            .exclude(title="y"),
            forum.Thread.objects.filter(user=U, pk=threads[1].pk),
            forum.Thread.objects.filter(user__pk=U, pk=threads[1].pk),
            forum.Seat.objects.filter(pk=(V, 1), user_id=U),
        ):
            assert (list(none), none.first(), none.exists(), none.count()) == ([], None, False, 0)
            assert (none.across_shards().count(), none.delete()) == (0, (0, {}))
        nothing = photos.filter(pk=theirs.pk, user_id=U)
        assert (nothing.update(title="z"), nothing.aggregate(n=Sum("likes"))) == (0, {"n": None})

    check()
    with p.shard_of(U):
        check()
    # As a part of a query it is empty, too, and its contrary is all.
    nothing = photos.filter(pk=theirs.pk, user_id=U)
    mine = photos.filter(user_id=U)
    assert mine.filter(pk__in=nothing).count() == mine.filter(Exists(nothing)).count() == 0
    assert (
        mine.exclude(pk__in=nothing.values("pk")).get()
        == mine.filter(~Exists(nothing)).get()
        == ours
    )
    assert (nothing | mine).get() == mine.union(nothing).get() == ours
    assert photos.across_shards().count() == 2


def test_what_contradicts_itself_otherwise_is_refused(m, forum, threads, p):
    from django.db.models import Q

    theirs = m.Photo.objects.create(user_id=V, title="x")
    photos = m.Photo.objects
    mine = m.Album.objects.create(user_id=U, name="mine").photos
    both = {"pk": theirs.pk, "user_id": U}
    for wrong in (
        lambda: photos.get_or_create(**both, defaults={"title": "y"}),
        lambda: photos.get_or_create(pk__exact=theirs.pk, user_id=U, defaults={"title": "y"}),
        lambda: photos.update_or_create(**both, defaults={"title": "y"}),
        lambda: mine.get_or_create(pk__exact=theirs.pk, user_id=U, defaults={"title": "y"}),
        lambda: photos.create(**both, title="y"),
        lambda: m.Photo(**both, title="y").save(),
        lambda: photos.bulk_create([m.Photo(**both, title="y")]),
        lambda: photos.filter(user_id=V) & photos.filter(user_id=U),
        lambda: photos.filter(user_id=U, pk__in=photos.for_key(V).values("pk")).count(),
    ):
        with pytest.raises(p.WrongShard):
            wrong()
    for nowhere in (
        lambda: photos.filter(Q(pk=theirs.pk) | Q(user_id=U)).count(),
        lambda: photos.filter(~Q(**both)).count(),
        lambda: photos.exclude(**both).count(),
        lambda: photos.filter(Q(pk=theirs.pk) ^ Q(user_id=U)).count(),
        lambda: photos.filter(**both).get_or_create(title="y"),
    ):
        with pytest.raises(p.NoShard):
            nowhere()
    for other, found in (
        (photos.filter(~Q(user_id=U), pk=theirs.pk), [theirs]),
        (photos.filter(pk=theirs.pk).exclude(user_id=U), [theirs]),
        (photos.filter(Q(user_id=U) | Q(user_id=V), pk=theirs.pk), [theirs]),
        (photos.filter(pk__in=[theirs.pk, theirs.pk - (V - U << 10)], user_id=V), [theirs]),
        (photos.filter(pk=theirs.pk, user_id=None), []),
        (photos.filter(pk=theirs.pk, category=U), []),
        (photos.filter(user_id=V, album__user_id=U), []),
        (forum.Vote.objects.filter(user=V, by=U), []),
        (forum.Choice.objects.filter(pk=str(U), user_id=V), []),
        (photos.using("shard-3").filter(user_id=V), []),
    ):
        assert list(other) == found
    assert m.Photo.objects.across_shards().count() == 1


def test_a_list_that_is_a_query_names_a_shard_by_keys_and_ids_of_its_own(m, forum, threads, p):
    from django.contrib.contenttypes.models import ContentType
    from django.db.models import F, Q, Subquery

    ours, theirs = threads
    kind = ContentType.objects.get_for_model(forum.Thread)
    forum.Vote.objects.create(user_id=U, thread=ours, by_id=V)
    forum.Remark.objects.create(user_id=U, content_type=kind, object_id=theirs.pk)
    votes, remarks = forum.Vote.objects.filter(user=U), forum.Remark.objects.filter(user_id=U)
    rows, ids = forum.Thread.objects, remarks.values("object_id")

    def check():
        for wrong in (
            # The threads of whoever has voted here are anywhere, and so is what a remark is about.
            rows.filter(user__in=votes.values("by")),
            rows.filter(user_id__in=votes.values_list("by_id", flat=True).distinct()),
            rows.filter(user__in=Subquery(votes.values("by"))),
            rows.filter(pk__in=ids),
            rows.filter(pk__in=votes.values("thread").union(ids)),
            rows.filter(pk__in=votes.values(n=F("pk") + 1)),
            rows.filter(Q(pk__in=ids) | Q(user=U)),
            rows.filter(labels__in=ids),
            forum.Post.objects.filter(thread__in=ids),
            # A key in the place of an ID, and the other way round.
            rows.filter(pk__in=votes.values("user")),
            rows.filter(user__in=votes.values("pk")),
        ):
            for refused in (wrong.count, wrong.delete):
                with pytest.raises(p.NoShard, match="of several shards"):
                    refused()
        for right in (
            rows.filter(user__in=votes.values("user")),
            rows.filter(user_id__in=votes.values("thread__user")),
            rows.filter(pk__in=votes.values("thread")),
            rows.filter(pk__in=Subquery(votes.values_list("thread_id", flat=True).distinct())),
            rows.filter(pk__in=votes.values(t=F("thread"))),
            rows.filter(votes__in=votes.annotate(n=F("by"))),
        ):
            assert right.get() == ours
        assert not rows.filter(pk__in=ids, user=U).exists()
        assert not rows.filter(pk__in=ids).for_key(U).exists()
        assert not rows.filter(pk__in=ids.none()).exists()

    check()
    with p.shard_of(U):
        check()
    # What the remedy comes to.
    assert rows.by_ids(ids.values_list("object_id", flat=True)) == [theirs]
    with pytest.raises((p.WrongShard, ValueError), match=r"shard-3|across different databases"):
        rows.filter(user=V, pk__in=ids).count()


def test_a_part_of_a_query_by_ids_is_of_no_shard(m, p):
    """The shards of these two are on one host, so one statement asks both, in whatever order the
    IDs are."""
    from django.db.models import Exists, OuterRef, Q

    photos = [m.Photo.objects.create(user_id=user, title="x") for user in (U, U + 1)]
    for user in (U, U + 1):
        m.Album.objects.create(user_id=user, name="a")
    ids = [photo.pk for photo in photos]
    for given in (ids, ids[::-1]):
        for user in (U, U + 1):
            key = Q(user_id=user)
            for wrong in (
                m.Photo.objects.filter(title__in=m.Photo.objects.filter(key).values("title")),
                m.Photo.objects.filter(Exists(m.Album.objects.filter(key))),
                m.Photo.objects.filter(Exists(m.Album.objects.filter(key | Q(name="b")))),
            ):
                # Django itself says so of a list that is a query.
                with pytest.raises(
                    (p.WrongShard, p.NoShard, ValueError),
                    match=rf"shard-{user}|different databases",
                ):
                    wrong.by_ids(given)
        own = m.Album.objects.filter(user_id=OuterRef("user_id"), name="a")
        for right in (m.Photo.objects.filter(Exists(own)), m.Photo.objects.for_key(U)):
            assert [photo.pk for photo in right.by_ids(given)] == given


def test_a_list_of_what_a_key_holds_is_read_where_a_shard_is_chosen(m, forum, threads, p):
    from django.db.models import Q

    ours, theirs = threads
    for thread in threads:
        forum.Post.objects.create(thread=thread)
    rows, posts = forum.Thread.objects, forum.Post.objects
    with p.shard_of(U):
        for wrong in (
            rows.filter(user__pk__in=[U, V]),
            rows.filter(user__id__in=[U, V]),
            rows.filter(Q(user__id__in=[U, V])),
            posts.filter(thread__user__pk__in=[U, V]),
            posts.filter(thread__user__id__in=[U, V]),
            posts.filter(thread__id__in=[ours.pk, theirs.pk]),
        ):
            with pytest.raises(p.NoShard, match="of several shards"):
                wrong.count()
    for where in (U, V):
        with p.shard_of(where):
            assert (
                rows.filter(user__pk__in=[V]).get()
                == rows.filter(user__id__in=[V, V + 16]).get()
                == theirs
            )
            assert (
                posts.filter(thread__user__pk__in=[V]).get()
                == posts.filter(thread__user__id__in=[V]).get()
            )
            assert posts.filter(thread__user__id__in=[V]).get().thread_id == theirs.pk


def test_a_single_value_that_is_a_query_is_as_a_list_that_is_one(m, forum, threads, p):
    from django.db.models import F, OuterRef, Q, Subquery, Value

    ours, theirs = threads
    forum.Vote.objects.create(user_id=U, thread=ours, by_id=V)
    votes, rows = forum.Vote.objects.filter(user=U), forum.Thread.objects
    by, liked = votes.values("by_id")[:1], m.Photo.objects.create(user_id=V, title="x", likes=U)

    def check():
        for wrong in (
            rows.filter(user_id=by),
            rows.filter(user=Subquery(by)),
            rows.filter(Q(user_id=by) | Q(user_id=U)),
            m.Photo.objects.filter(user_id__in=[Subquery(by)]),
            m.Photo.objects.filter(user_id__in=[U, Subquery(by)]),
            rows.filter(pk=votes.values("by_id")[:1]),
            rows.filter(
                user_id=Subquery(
                    forum.Vote.objects.filter(thread=OuterRef("pk")).values("by_id")[:1]
                )
            ),
            m.Photo.objects.filter(user_id__in=[V, F("likes")]),
            m.Photo.objects.filter(user_id__in=[F("likes"), Value(V)]),
        ):
            for refused in (wrong.count, wrong.delete):
                with pytest.raises(p.NoShard, match="of several shards"):
                    refused()
        for right in (
            rows.filter(user_id=votes.values("user_id")[:1]),
            rows.filter(pk=Subquery(votes.values("thread")[:1])),
            rows.filter(pk__in=[Subquery(votes.values("thread")[:1])]),
            rows.filter(user_id=Value(U)),
            rows.filter(pk=Value(ours.pk)),
        ):
            assert right.get() == ours
        assert (
            rows.filter(user_id=Value(V)).get()
            == rows.filter(pk__in=[Value(theirs.pk)]).get()
            == theirs
        )
        assert forum.Vote.objects.filter(thread=Value(ours.pk)).count() == 1
        assert m.Photo.objects.filter(user_id__in=[Value(V), V + 16]).get() == liked
        assert not rows.filter(user_id=Value(U), pk=theirs.pk).exists()
        assert m.Photo.objects.filter(user_id__in=[V, F("likes")], pk=liked.pk).get() == liked
        assert not rows.filter(user_id=by, user=U).exists()

    check()
    with p.shard_of(U):
        check()
        assert m.Photo.objects.filter(user_id=F("likes")).count() == 0
    with p.shard_of(V):
        assert m.Photo.objects.filter(user_id__in=[F("likes"), F("likes") + V - U]).get() == liked


def test_a_value_that_the_server_computes_is_of_any_shard(m, forum, threads, p):
    from django.db.models import BigIntegerField, ExpressionWrapper, F, Q, Value
    from django.db.models.functions import Abs, Cast, Coalesce

    kind = BigIntegerField()
    rows, theirs = forum.Thread.objects, threads[1]

    def check():
        for right in (
            rows.filter(user=Cast(Value(V), kind)),
            m.Photo.objects.filter(user_id__in=[Cast(Value(V), kind)]),
            rows.filter(pk=ExpressionWrapper(Value(theirs.pk), kind)),
            rows.filter(votes__thread=Cast(Cast(Value(theirs.pk), kind), kind)),
        ):
            assert right.db == "shard-12"
        assert rows.get(user_id=Cast(Value(V), kind)) == theirs
        for wrong in (
            rows.filter(user=Value(V - 1) + Value(1)),
            rows.filter(user_id=Abs(Value(-V))),
            m.Photo.objects.filter(user_id__in=[V, Cast(Value(V - 0.4), kind)]),
            rows.filter(
                Q(pk=Coalesce(Value(None), Value(theirs.pk), output_field=kind)) | Q(title="x")
            ),
        ):
            for refused in (wrong.count, wrong.delete):
                with pytest.raises(p.NoShard, match="of several shards"):
                    refused()

    check()
    with p.shard_of(U):
        check()
        # A column names no shard.
        assert rows.filter(user_id=Coalesce(F("user_id"), Value(V))).get() == threads[0]


def test_the_next_row_is_looked_for_by_key(m, p):
    from datetime import datetime, timezone

    def made(user, day):
        made_at = datetime(2026, 1, day, tzinfo=timezone.utc)
        return m.Photo.objects.create(user_id=user, title=f"{day}", made_at=made_at)

    ours, theirs = [made(U, day) for day in (1, 3, 5)], [made(V, day) for day in (2, 4)]
    for wrong in (
        ours[0].get_next_by_made_at,
        ours[2].get_previous_by_made_at,
        lambda: ours[0].get_next_by_made_at(title="3"),
        lambda: ours[0].get_next_by_made_at(user_id__in=[U, V]),
    ):
        with pytest.raises(p.NoShard, match=r"Photo\.get_(next|previous)_by_made_at.*user_id="):
            wrong()
    assert ours[0].get_next_by_made_at(user_id=U) == ours[1]
    assert ours[2].get_previous_by_made_at(user_id=U, title="1") == ours[0]
    assert ours[0].get_next_by_made_at(user_id=V) == theirs[0]
    assert theirs[1].get_previous_by_made_at(user_id=U) == ours[1]
    assert ours[0]._state.db == "shard-3"
    for end in (
        lambda: ours[2].get_next_by_made_at(user_id=U),
        lambda: ours[2].get_next_by_made_at(user_id=V),
        lambda: ours[0].get_next_by_made_at(user_id=U, pk__in=[]),
    ):
        with pytest.raises(m.Photo.DoesNotExist):
            end()
    with p.shard_of(V):
        assert ours[0].get_next_by_made_at() == theirs[0]


def test_an_annotation_that_is_called_as_the_key_is_not_the_key(m, p):
    from django.db.models import Max, Q

    for user in (U, V):
        m.Photo.objects.create(user_id=user, title="x", likes=5)
        m.Photo.objects.create(user_id=user, title="y", likes=16384)
    most = m.Photo.objects.values("title").annotate(user_id=Max("likes"), id=Max("likes"))
    found = [{"title": "x", "user_id": 5, "id": 5}]
    with p.shard_of(U):
        for rows in (
            most.filter(user_id=5),
            most.filter(Q(id=5) | Q(user_id__in=[6, 7])),
            most.filter(id__in=[5]),
        ):
            assert list(rows) == found
        # It would be of no shard if it were an ID.
        assert [row["title"] for row in most.filter(id=16384)] == ["y"]
        assert list(most.filter(user_id=V)) == []
    with pytest.raises(p.NoShard):
        most.filter(user_id=5).count()
    assert list(most.using("shard-3").filter(user_id=5)) == found
    with pytest.raises(ValueError, match="each shard has groups of its own"):
        most.filter(user_id=5).across_shards().list(limit=9)


def test_what_is_empty_stays_as_it_was(m, p):
    photo = m.Photo.objects.create(user_id=U, title="x")
    mine, nothing = m.Photo.objects.filter(user_id=U), m.Photo.objects.none()
    theirs = m.Photo.objects.filter(user_id=V, pk=photo.pk)
    for made in (mine & nothing, nothing & mine, mine & theirs.using("shard-12"), theirs & mine):
        assert (list(made), made.count()) == ([], 0)
    assert (nothing._db, theirs._db, mine._db) == (None, None, "shard-3")
    assert (nothing | mine).get() == (mine & m.Photo.objects.all()).get() == photo
