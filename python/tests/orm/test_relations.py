"""Related rows are looked for on the shards where they are, whichever way the relation is
followed."""

import pytest

pytestmark = pytest.mark.usefixtures("db")

U, V = 3, 12


@pytest.fixture
def ledger(world):
    from ledger import models

    yield models
    models.Bill.objects.across_shards().run(lambda rows: rows.delete()).all()
    models.Pointer.objects.all().delete()
    models.Account.objects.all().delete()


@pytest.fixture
def users(world):
    """Four users, whose rows are on as many shards."""
    from django.contrib.auth.models import User

    yield [User.objects.create(username=f"relations {n}") for n in range(4)]
    User.objects.filter(username__startswith="relations ").delete()


# ------------------------------------------------------------------------------
# prefetch


def test_rows_of_several_shards_are_prefetched(m, users):
    from django.contrib.auth.models import User
    from django.db.models import Prefetch, prefetch_related_objects

    for user in users:
        m.Note.objects.create(user=user, text=f"of {user.pk}")
        m.Note.objects.create(user=user, text="another")
    found = User.objects.filter(username__startswith="relations ").order_by("pk")
    assert [len(user.notes.all()) for user in found.prefetch_related("notes")] == [2] * 4
    some = Prefetch("notes", m.Note.objects.exclude(text="another"))
    assert [[note.text for note in user.notes.all()] for user in found.prefetch_related(some)] == [
        [f"of {user.pk}"] for user in users
    ]
    some = Prefetch("notes", m.Note.objects.exclude(text="another"), to_attr="some")
    assert [len(user.some) for user in found.prefetch_related(some)] == [1] * 4
    assert all(
        note.user == user for user in found.prefetch_related("notes") for note in user.notes.all()
    )

    keys = [user.pk for user in users]
    photos = [
        m.Photo.objects.create(
            user_id=key, title="x", album=m.Album.objects.create(user_id=key, name=f"of {key}")
        )
        for key in keys
    ]
    photos.append(m.Photo.objects.create(user_id=keys[0], title="without an album"))
    for photo in photos:
        photo.tags.add(m.Tag.objects.get_or_create(user_id=photo.user_id, word="w")[0])
    photos = m.Photo.objects.by_ids([photo.pk for photo in photos])
    prefetch_related_objects(photos, "album__photos", "tags__photos")
    assert [photo.album and photo.album.name for photo in photos] == [
        f"of {key}" for key in keys
    ] + [None]
    assert [len(photo.album.photos.all()) for photo in photos[:4]] == [1] * 4
    assert [[tag.word for tag in photo.tags.all()] for photo in photos] == [["w"]] * 5
    assert [len(photo.tags.all()[0].photos.all()) for photo in photos] == [2, 1, 1, 1, 2]


def test_prefetching_asks_each_shard_once(m, users):
    from django.contrib.auth.models import User
    from django.db import connections
    from django.test.utils import CaptureQueriesContext

    for user in users:
        m.Note.objects.create(user=user)
    found = User.objects.filter(username__startswith="relations ").order_by("pk")
    with CaptureQueriesContext(connections[f"shard-{users[1].pk % 16}"]) as one:
        assert len(found.prefetch_related("notes")[1].notes.all()) == 1
    assert len(one) == 1


def test_references_from_rows_elsewhere_are_prefetched(ledger, p):
    from django.db.models import prefetch_related_objects

    accounts = [ledger.Account.objects.create(number=number) for number in (U, V)]
    bills = [ledger.Bill.objects.create(account=account) for account in accounts]
    pointers = [ledger.Pointer.objects.create(bill=bill) for bill in (*bills, None)]
    found = list(ledger.Pointer.objects.order_by("pk"))
    prefetch_related_objects(found, "bill")
    assert found == pointers
    assert [one.bill for one in found] == [*bills, None]
    # By a relation that is not the key, nobody knows where the rows are.
    with pytest.raises(p.NoShard):
        prefetch_related_objects(accounts, "checked_bills")


# ------------------------------------------------------------------------------------- relations
# that are not the key


def test_a_relation_that_is_not_the_key_names_no_shard(ledger, m, p, users):
    from pgshard.django.routing import following

    account = ledger.Account.objects.create(number=V)
    other = ledger.Account.objects.create(number=U)
    bill = ledger.Bill.objects.create(account=account, checker=other)
    for wrong in (
        lambda: other.checked_bills.count(),
        lambda: list(other.checked_bills.all()),
        lambda: other.checked_bills.update(text="x"),
        lambda: other.checked_bills.filter(text="").exists(),
    ):
        with pytest.raises(p.NoShard, match="Bill"):
            wrong()
    with p.shard_of(V):
        assert other.checked_bills.get() == bill
    assert ledger.Bill.objects.filter(checker=other).across_shards().count() == 1
    assert ledger.Bill.objects.filter(account=account, checker=other).get() == bill
    # The relation that is the key still names it.
    assert account.bills.get() == bill
    assert account.bills.create(checker=other)._state.db == "shard-12"
    user = users[0]
    note = user.notes.create(text="x")
    assert note._state.db == f"shard-{user.pk % 16}"
    category = m.Category(pk=user.pk + 1)
    with following(m.Note._meta.get_field("user")):
        # Django asks this for each reference of an object that it makes for `user.notes`.
        assert p.ShardRouter().db_for_write(m.Note, instance=category) is None
    account.bills.add(ledger.Bill(text="added"), bulk=False)
    assert account.bills.get_or_create(text="added")[1] is False
    assert account.bills.update_or_create(text="added", defaults={"text": "changed"})[1] is False
    assert account.bills.update(text="all") == 3
    assert account.bills.all().delete()[0] == 3


def test_a_key_may_refer_to_another_column_than_the_primary_key(ledger, p):
    account = ledger.Account.objects.create(pk=5_000_000 + U, number=V)
    bill = ledger.Bill.objects.create(account=account, text="x")
    assert bill._state.db == "shard-12"
    assert account.bills.get() == bill
    for found in (
        ledger.Bill.objects.filter(account=account),
        ledger.Bill.objects.filter(account=V),
        ledger.Bill.objects.filter(account_id=V),
        ledger.Bill.objects.filter(account__number=V),
        ledger.Bill.objects.filter(account__in=[account]),
        ledger.Bill.objects.for_key(account),
        ledger.Bill.objects.for_key(V),
    ):
        assert found.get() == bill
    assert ledger.Bill.objects.get_or_create(account=account, text="x") == (bill, False)
    assert ledger.Bill.objects.filter(account=account).update(account=account) == 1
    with pytest.raises(p.WrongShard):
        ledger.Bill.objects.filter(account=account).update(
            account=ledger.Account.objects.create(number=U)
        )
    # Not the key: it is another column of a table that is not there.
    with pytest.raises((p.NoShard, p.WrongShard)):
        ledger.Bill.objects.get(account__pk=account.pk)


# ------------------------------------------------------------------------------
# lazy objects


def test_the_user_of_a_request_is_a_user(m, p, users):
    from django.contrib.admin.models import LogEntry
    from django.utils.functional import SimpleLazyObject

    def lazy():
        return SimpleLazyObject(lambda: type(users[0]).objects.get(pk=users[0].pk))

    note = m.Note.objects.create(user=lazy(), text="a")
    assert note._state.db == f"shard-{users[0].pk % 16}"
    made = m.Note(user=lazy(), text="b")
    made.save()
    made.user = lazy()
    made.save()
    assert (
        m.Note.objects.filter(user=lazy()).count()
        == m.Note.objects.filter(user__in=[lazy()]).count()
        == 2
    )
    assert m.Note.objects.get_or_create(user=lazy(), text="a") == (note, False)
    assert m.Note.objects.for_key(lazy()).count() == 2
    assert lazy().notes.count() == 2
    assert lazy().notes.create(text="c").user == users[0]
    assert LogEntry(user=lazy()).user == users[0]
    found = SimpleLazyObject(lambda: m.Photo.objects.create(user_id=U, title="x"))
    assert found.tags.count() == 0
    assert p.routing.alias_of_instance(found) == "shard-3"


# ---------------------------------------------------------------------------------------- related
# managers in a query


def test_related_rows_of_another_shard_are_no_part_of_a_query(m, p):
    from django.db.models import Exists

    mine = m.Album.objects.create(user_id=U, name="mine")
    others = m.Album.objects.create(user_id=V, name="others")
    photo = m.Photo.objects.create(user_id=U, title="x", album=mine)
    tag = m.Tag.objects.create(user_id=U, word="w")
    photo.tags.add(tag)
    for wrong in (
        lambda: list(m.Album.objects.for_key(V).filter(~Exists(mine.photos.all()))),
        lambda: list(m.Album.objects.for_key(V).filter(pk__in=mine.photos.values("album_id"))),
        lambda: list(m.Tag.objects.for_key(V).filter(~Exists(photo.tags.all()))),
        lambda: list(mine.photos.all() | others.photos.all()),
        lambda: list(mine.photos.all() & others.photos.all()),
        lambda: list(mine.photos.all().union(others.photos.all())),
    ):
        with pytest.raises((p.WrongShard, ValueError), match=r"shard-|across different databases"):
            wrong()
    assert not m.Album.objects.for_key(U).filter(~Exists(mine.photos.all())).exists()
    assert (mine.photos.all() | m.Photo.objects.filter(user_id=U)).get() == photo
    assert mine.photos.across_shards().count() == 1
    assert mine.photos.by_ids([photo.pk]) == [photo]


# ------------------------------------------------------------------------------
# other routers


def test_other_routers_say_where_rows_elsewhere_are(m, p, monkeypatch, users):
    from django.contrib.auth.models import User
    from django.db import router

    asked = []

    class Users:
        def db_for_read(self, model, **hints):
            asked.append((model, hints))
            return "default" if model is User else None

        db_for_write = db_for_read

    note = m.Note.objects.create(user=users[0])
    monkeypatch.setattr(router, "routers", [p.ShardRouter(), Users()])
    note = m.Note.objects.get(pk=note.pk)
    assert note.user == users[0]
    assert asked == [(User, {})]
    asked.clear()
    (note,) = m.Note.objects.for_key(users[0]).prefetch_related("user")
    assert note.user == users[0]
    assert (User, {}) in asked


# ------------------------------------------------------------------------- from a table that is not
# sharded to one that is


def test_rows_of_shards_are_no_part_of_a_query_of_another_database(ledger, m, p, users):
    from django.contrib.auth.models import User
    from django.db.models import Count, Exists, OuterRef, Prefetch

    note = m.Note.objects.create(user=users[0], text="x")
    bill = ledger.Bill.objects.create(account=ledger.Account.objects.create(number=V), text="x")
    pointer = ledger.Pointer.objects.create(bill=bill)
    others = User.objects.filter(username__startswith="relations ")

    def check():
        for wrong in (
            others.filter(notes__text="x"),
            others.filter(notes=note),
            others.filter(notes__isnull=True),
            others.annotate(n=Count("notes")),
            others.order_by("notes__text"),
            others.values("notes__text"),
            User.objects.filter(pk=users[0].pk, notes__text="x"),
        ):
            with pytest.raises(p.NoShard, match=r"User\.notes.*Note.*across_shards"):
                list(wrong)
        for wrong in (
            others.filter(notes__text="x").count,
            lambda: others.exclude(notes__text="x"),
            lambda: others.aggregate(Count("notes")),
            lambda: others.filter(notes__text="x").update(first_name="x"),
            lambda: others.filter(notes__text="x").delete(),
        ):
            with pytest.raises(p.NoShard, match=r"User\.notes"):
                wrong()
        for wrong in (
            ledger.Pointer.objects.filter(bill__text="x"),
            ledger.Pointer.objects.select_related("bill"),
            ledger.Pointer.objects.filter(bill__account__number=V),
        ):
            with pytest.raises(p.NoShard, match=r"Pointer\.bill.*Bill"):
                list(wrong)
        for wrong in (
            others.filter(pk__in=m.Note.objects.filter(text="x").values("user")),
            others.filter(pk__in=m.Note.objects.for_key(users[0]).values("user")),
            others.filter(Exists(m.Note.objects.filter(user=OuterRef("pk")))),
        ):
            with pytest.raises(
                (p.NoShard, ValueError),
                match=r"Note is in shards.*'default'|across different databases",
            ):
                list(wrong)

    check()
    with p.shard_of(users[0]):
        check()
    # A shard that is not known, and one that is.
    album = m.Album.objects.create(user_id=U, name="a")
    m.Photo.objects.create(user_id=U, title="x", album=album)
    with pytest.raises(p.NoShard, match="Album"):
        m.Album.objects.filter(photos__title="x").count()
    assert m.Album.objects.filter(user_id=U, photos__title="x").get() == album
    assert m.Album.objects.filter(photos__title="x").across_shards().count() == 1
    # What the remedy says, and what needs no table of shards.
    found = m.Note.objects.filter(text="x").values_list("user_id", flat=True)
    assert list(others.filter(pk__in=found.across_shards().list(limit=100))) == [users[0]]
    assert list(
        others.filter(pk__in=list(m.Note.objects.for_key(users[0]).values_list("user", flat=True)))
    ) == [users[0]]
    assert (
        ledger.Pointer.objects.filter(bill=bill).get()
        == ledger.Pointer.objects.get(bill__pk=bill.pk)
        == pointer
    )
    assert ledger.Pointer.objects.filter(bill__isnull=False).count() == 1
    assert (
        len(
            others.prefetch_related(Prefetch("notes", m.Note.objects.filter(text="x")))
            .get(pk=users[0].pk)
            .notes.all()
        )
        == 1
    )


def test_rows_of_shards_are_not_combined_with_those_of_another_database(m, p):
    album = m.Album.objects.create(user_id=U, name="of both")
    m.Category.objects.create(name="of both")
    names, albums = m.Category.objects.values("name"), m.Album.objects.order_by().values("name")

    def check():
        for wrong in (
            names.union(albums),
            names.union(albums, all=True),
            names.intersection(albums.for_key(U)),
            names.difference(albums.filter(user_id=U)),
            names.union(names.union(albums)),
            m.Category.objects.filter(name__in=names.union(albums)),
            m.Category.objects.exclude(name__in=names.difference(albums)),
        ):
            for refused in (wrong.count, lambda wrong=wrong: list(wrong), wrong.exists):
                with pytest.raises(
                    p.NoShard, match=r"Album is in shards.*'default'.*first ask Album"
                ):
                    refused()
        for wrong in (
            lambda: list(albums.union(names)),
            lambda: albums.for_key(U).intersection(names),
        ):
            with pytest.raises(
                (p.NoShard, p.WrongShard), match=r"Album(:| is sharded)|Category is not sharded"
            ):
                wrong()
        assert list(names.union(albums.none())) == list(names.union(names)) == [{"name": "of both"}]
        assert albums.filter(user_id=U).union(m.Photo.objects.for_key(U).values("title")).get() == {
            "name": "of both"
        }

    try:
        check()
        with p.shard_of(U):
            check()
    finally:
        m.Category.objects.all().delete()
        album.delete()
