"""Rows of all shards come in the order that one database would give them."""

import pytest

pytestmark = pytest.mark.usefixtures("db")


@pytest.fixture
def ledger(world):
    from ledger import models

    yield models
    models.Bill.objects.across_shards().run(lambda rows: rows.delete()).all()


@pytest.fixture
def photos(m):
    return [
        m.Photo.objects.create(user_id=user, title=f"p{user}", likes=user) for user in (5, 1, 4, 2)
    ]


def test_numbers_are_merged_in_both_directions(m, photos):
    def likes(rows, limit=3):
        return [photo.likes for photo in rows.across_shards().list(limit=limit)]

    by = m.Photo.objects.order_by("likes")
    assert likes(by) == [1, 2, 4]
    assert likes(by.reverse()) == likes(m.Photo.objects.order_by("-likes")) == [5, 4, 2]
    assert likes(m.Photo.objects.order_by("-likes").reverse()) == [1, 2, 4]
    assert likes(m.Photo.objects.order_by("pk"), 9) == [5, 1, 4, 2]
    m.Photo.objects.create(user_id=1, title="p0", likes=5)
    found = m.Photo.objects.order_by("-likes", "title").across_shards().list(limit=2)
    assert [(photo.likes, photo.title) for photo in found] == [(5, "p0"), (5, "p5")]


def test_rows_of_one_shard_stay_in_their_order(m):
    """Their texts are not compared with others."""
    for title in ("b", "a", "c", "a"):
        m.Photo.objects.create(user_id=5, title=title)
    rows = m.Photo.objects.order_by("-title", "id").across_shards()
    for found in (rows.list(9), list(rows.iterator()), list(rows.iterator(chunk_size=1))):
        assert [one.title for one in found] == ["c", "b", "a", "a"]
        assert found[2].pk < found[3].pk


def test_values_and_references_are_merged(m, photos):
    by = m.Photo.objects.order_by("-likes")
    assert by.values("title", "likes").across_shards().list(limit=1) == [
        {"title": "p5", "likes": 5}
    ]
    assert by.values_list("title", "likes").across_shards().list(limit=2) == [("p5", 5), ("p4", 4)]
    assert by.values_list("likes", flat=True).across_shards().list(limit=2) == [5, 4]
    assert [
        row.likes
        for row in by.values_list("title", "likes", named=True).across_shards().list(limit=2)
    ] == [5, 4]
    assert by.values().across_shards().list(limit=1)[0]["title"] == "p5"
    assert by.values_list().across_shards().list(limit=1)[0][0] == photos[0].pk
    doubled = m.Photo.objects.annotate(doubled=m.models.F("likes") * 2).order_by("-doubled")
    assert doubled.values_list("doubled", flat=True).across_shards().list(limit=2) == [10, 8]
    assert doubled.across_shards().list(limit=1) == [photos[0]]
    for photo in photos:
        photo.album = m.Album.objects.create(user_id=photo.user_id, name=f"a{9 - photo.user_id}")
        photo.save()
    assert m.Photo.objects.order_by("album_id").across_shards().list(limit=9) == photos
    assert [tag.user_id for tag in m.Album.objects.across_shards().list(limit=9)] == [
        5,
        4,
        2,
        1,
    ], "by Meta.ordering"
    grouped = m.Album.objects.values("user_id").annotate(n=m.models.Count("pk"))
    assert len(grouped.across_shards().list(limit=9)) == 4, "where Django leaves Meta.ordering out"


@pytest.mark.parametrize(
    "order",
    ["album", "album__name", "?", "lower_title", "extra", "not_there"],
    ids=lambda name: name.strip("?") or "random",
)
def test_an_order_that_cannot_be_merged_is_refused(m, photos, order):
    from django.db.models.functions import Lower

    rows = m.Photo.objects.annotate(lower_title=Lower("title"))
    rows = (
        rows.extra(order_by=["title"])
        if order == "extra"
        else rows.order_by("likes" if order == "not_there" else order)
    )
    if order == "not_there":
        rows = rows.values("title")
    with pytest.raises(ValueError, match="cannot be merged across shards"):
        rows.across_shards().list(limit=2)


def test_texts_are_in_the_order_of_their_column(world, ledger):
    """An address sorts as an address, and not as the text that it is in Python."""
    from django.db import connections

    for account, address in ((1, "9.0.0.1"), (2, "10.0.0.1"), (3, None), (4, "100.0.0.1")):
        ledger.Bill.objects.create(account_id=account, sent_from=address, text=f"{account}")

    def sent_from(*order):
        return [
            bill.sent_from
            for bill in ledger.Bill.objects.order_by(*order).across_shards().list(limit=9)
        ]

    assert sent_from("sent_from") == ["9.0.0.1", "10.0.0.1", "100.0.0.1", None]
    assert sent_from("-sent_from") == [None, "100.0.0.1", "10.0.0.1", "9.0.0.1"]
    with connections["default"].cursor() as cursor:
        cursor.execute("SELECT 1 FROM pg_collation WHERE collname = 'en-x-icu'")
        if not cursor.fetchone():
            return
    # Whatever the migrations say: the column's own collation counts.
    for shard in range(16):
        with world.superuser(world.host_of(shard)) as connection:
            connection.execute(
                f'ALTER TABLE shard_{shard:04d}.ledger_bill ALTER COLUMN "text" TYPE varchar(50)'
                ' COLLATE "en-x-icu"'
            )
    try:
        for account, text in ((5, "a"), (6, "B"), (7, "ä"), (8, "A")):
            ledger.Bill.objects.create(account_id=account, text=text)
        some = ledger.Bill.objects.filter(account_id__gte=5)
        assert [bill.text for bill in some.order_by("text").across_shards().list(limit=3)] == [
            "a",
            "A",
            "ä",
        ]
        assert some.order_by("-text").values_list("text", flat=True).across_shards().list(
            limit=9
        ) == [
            "B",
            "ä",
            "A",
            "a",
        ]
    finally:
        for shard in range(16):
            with world.superuser(world.host_of(shard)) as connection:
                connection.execute(
                    f'ALTER TABLE shard_{shard:04d}.ledger_bill ALTER COLUMN "text" TYPE'
                    ' varchar(50) COLLATE "default"'
                )


def test_a_partial_result_can_be_pickled_and_copied():
    import copy
    import pickle

    from pgshard.django import InDoubt, Partial
    from pgshard.django.gather import Gathered

    error = Partial(Gathered({0: 1}, {1: InDoubt("x")}))
    for other in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        assert (str(other), other.gathered.values) == (str(error), {0: 1})
        assert str(other.gathered.errors[1]) == "x"


def test_one_row_of_all_shards_is_found(m, photos):
    across = m.Photo.objects.across_shards()
    assert across.first() == photos[0]  # The lowest ID.
    assert m.Photo.objects.order_by("likes").across_shards().first() == photos[1]
    assert m.Photo.objects.filter(title="none").across_shards().first() is None
    assert across.get(title="p4") == photos[2]
    with pytest.raises(m.Photo.DoesNotExist):
        across.get(title="none")
    with pytest.raises(m.Photo.MultipleObjectsReturned):
        across.get(likes__gt=1)


async def _one(m):
    across = m.Photo.objects.across_shards()
    return await across.afirst(), await across.aget(title="p4")


def test_one_row_of_all_shards_is_found_asynchronously(m, photos):
    from asgiref.sync import async_to_sync

    assert async_to_sync(_one)(m) == (photos[0], photos[2])
