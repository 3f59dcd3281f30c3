"""IDs from before the shards, after the rows have come to shards: they name none, the key does."""

import pytest
from one_database import used
from world import World

LEGACY = 1_000_000
U, V = 3, 12


@pytest.fixture(scope="module")
def shards(world):
    """Shards with the tables of photos, and rows with IDs from before them."""
    made = World()
    try:
        text = made.path.read_text()
        made.path.write_text(text.replace("[cluster]\n", f"[cluster]\nlegacy_below = {LEGACY}\n"))
        (file,) = (world.folder / "migrations").glob("*_photos_0001_initial.sql")
        made.migrate(file.read_text())
        for user, shard, host in ((U, "shard_0003", "db1"), (V, "shard_0012", "db2")):
            with made.connect(host) as connection:
                connection.execute(
                    f"INSERT INTO {shard}.photos_album (id, user_id, name) VALUES ({user}, {user},"
                    f" 'a{user}'); INSERT INTO {shard}.photos_tag (id, user_id, word) VALUES"
                    f" ({user}, {user}, 'w{user}'); INSERT INTO {shard}.photos_photo (id, user_id,"
                    f" title, album_id) VALUES ({user}, {user}, 'p{user}', {user}); INSERT INTO"
                    f" {shard}.photos_photo_tags (photo_id, tag_id) VALUES ({user}, {user})"
                )
        with used(made):
            yield made
    finally:
        made.close()


def test_the_key_says_where_a_row_is_and_its_id_does_not(shards, m, p):
    from pgshard import LegacyId

    for refused in (
        lambda: m.Photo.objects.get(pk=U),
        lambda: m.Photo.objects.by_ids([U]),
        lambda: m.Photo.objects.filter(album=V).count(),
        lambda: p.alias_of_id(U),
    ):
        with pytest.raises(LegacyId):
            refused()
    photo = m.Photo.objects.get(user_id=V, pk=V)
    assert (photo._state.db, photo.album.name) == ("shard-12", "a12")
    assert [one.word for one in photo.tags.all()] == ["w12"]
    assert [one.pk for one in photo.album.photos.all()] == [V]
    photo.title = "new"
    photo.save()
    photo.refresh_from_db()
    made = photo.album.photos.create(title="made")
    made.tags.add(V)
    assert made._state.db == "shard-12"
    rows = m.Photo.objects.prefetch_related("album", "tags").order_by("title")
    found = rows.across_shards().list(9)
    assert [(one.title, one.album.name, [tag.word for tag in one.tags.all()]) for one in found] == [
        ("made", "a12", ["w12"]),
        ("new", "a12", ["w12"]),
        ("p3", "a3", ["w3"]),
    ]
    with pytest.raises(p.WrongShard):
        m.Photo.objects.create(user_id=U, album=photo.album, title="x")
    assert m.Photo.objects.create(user_id=U, album_id=U, title="y").album.name == "a3"
    photo.album.delete()
    assert m.Photo.objects.filter(user_id=V).count() == 0
    assert m.Photo.objects.filter(user_id=U).delete()[0] == 3
