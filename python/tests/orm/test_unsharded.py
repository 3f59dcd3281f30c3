"""Django on an unsharded host: the models of an application on its one database. Queries for a key
are as on shards, one for all shards is sent once, and what would mean the rows of all keys
is refused."""

import logging
import re
from contextlib import contextmanager

import pytest
from one_database import PLAIN, OneDatabase, make_tables, register, used

U, V, W = 3, 12, 19  # The last one's rows are on the first one's shard.


@pytest.fixture(scope="module")
def old(world):
    """The database with the tables of the models of photos. New IDs are wide ones."""
    from forum import models as forum
    from photos import models as m

    made = OneDatabase("")
    try:
        register(made)
        make_tables(m.Album, m.Tag, m.Photo, m.Note)
        make_tables(forum.Label, forum.Thread, forum.Remark, forum.Vote, forum.Post)
        made.wide_ids("photos_album", "photos_tag", "photos_photo", "photos_note")
        made.wide_ids("forum_thread", "forum_remark")
        yield made
    finally:
        from django.db import connections

        connections[PLAIN].close()
        made.close()


@pytest.fixture
def one(old, m):
    """Empty tables on the unsharded host, which refuses queries without a key."""
    yield from begun(old, "")


@pytest.fixture
def logs(old, m):
    """The same, on a host that runs and counts them."""
    yield from begun(old, 'unrouted = "log"\n')


def begun(old, more):
    from pgshard.django import unrouted
    from pgshard.django.backend import pools

    old.configure(more)
    sql("TRUNCATE app.photos_album, app.photos_tag, app.photos_photo, app.photos_note CASCADE")
    sql("TRUNCATE app.forum_thread, app.forum_remark CASCADE")
    unrouted.calls = unrouted.UnroutedCalls()
    with used(old):
        yield old
        pools.release()
        assert [pool.in_use for pool in pools._pools.by_host.values()] == [0] * len(
            pools._pools.by_host
        )


@pytest.fixture
def client(world):
    """A client of a member of the staff, and nobody else."""
    from django.contrib.auth.models import User
    from django.test import Client

    User.objects.filter(username="unsharded")._raw_delete("default")
    made = Client()
    made.force_login(User.objects.create_superuser("unsharded"))
    yield made
    User.objects.filter(username="unsharded")._raw_delete("default")


def sql(text, params=None):
    from django.db import connections

    with connections[PLAIN].cursor() as cursor:
        cursor.execute(text, params)
        return cursor.fetchall() if cursor.description else None


@pytest.fixture
def sent():
    """Statements on any connection to the unsharded host, by their text."""
    import psycopg

    from pgshard.django import shard_connection_created
    from pgshard.django.backend import pools

    pools.close_all()
    found = []

    def watch(connection, **_):
        plain = connection.cursor_factory

        class Watched(plain):
            def execute(self, query, *args, **kwargs):
                if isinstance(query, str) and "photos_" in query:
                    found.append(query)
                return super().execute(query, *args, **kwargs)

        connection.cursor_factory = Watched

    assert psycopg
    shard_connection_created.connect(watch)
    yield found
    shard_connection_created.disconnect(watch)
    pools.close_all()


def fill(m, *users):
    """Two photos, an album and a tag of each of these users."""
    for user in users:
        album = m.Album.objects.create(user_id=user, name=f"a{user}")
        tag = m.Tag.objects.create(user_id=user, word=f"w{user}")
        for n in range(2):
            photo = m.Photo.objects.create(
                user_id=user, album=album if n else None, title=f"p{user} {n}", likes=user + n
            )
            photo.tags.add(tag)


def test_rows_of_a_key_are_as_on_shards(one, m, p):
    fill(m, U, V)
    assert sql("SELECT count(*) FROM app.photos_photo") == [(4,)]
    photo = m.Photo.objects.get(user_id=U, title="p3 1")
    assert (photo._state.db, p.alias_of_id(photo.id)) == ("shard-3", "shard-3")
    assert m.Photo.objects.get(id=photo.id) == photo
    assert photo.album.name == "a3"
    assert photo.album._state.db == "shard-3"
    assert [one.title for one in photo.album.photos.all()] == ["p3 1"]
    assert [tag.word for tag in photo.tags.all()] == ["w3"]
    assert m.Photo.objects.for_key(U).filter(user_id=U).count() == 2
    photo.title = "new"
    photo.save()
    photo.refresh_from_db()
    assert m.Photo.objects.filter(user_id=U, title="new").update(likes=9) == 1
    assert p.run_in_shard(V, lambda: m.Photo.objects.filter(user_id=V).delete())[0] == 4
    assert [row for row in sql("SELECT title, likes FROM app.photos_photo ORDER BY 1")] == [
        ("new", 9),
        ("p3 0", 3),
    ]
    with pytest.raises(p.WrongShard):
        m.Photo.objects.create(user_id=V, album=photo.album, title="x")
    photo.album.delete()
    assert m.Photo.objects.filter(user_id=U).count() == 1


def test_a_query_for_all_shards_is_sent_once(one, m, sent):
    fill(m, U, V, W)
    rows = m.Photo.objects.all()
    del sent[:]
    assert rows.across_shards().count() == 6
    assert rows.across_shards().exists()
    assert rows.across_shards().aggregate(n=m.models.Count("id"), a=m.models.Avg("likes")) == {
        "n": 6,
        "a": sum((3, 4, 12, 13, 19, 20)) / 6,
    }
    assert len(sent) == 3
    by = rows.order_by("-likes").across_shards()
    assert [one.likes for one in by.list(4)] == [20, 19, 13, 12]
    assert by.first().likes == 20
    assert by.get(title="p12 1").user_id == V
    assert [one.likes for one in by[1:3]] == [19, 13]
    assert [one.likes for one in by.iterator(chunk_size=2)] == [20, 19, 13, 12, 4, 3]
    found = list(rows.across_shards().iterator(chunk_size=4))
    assert [one.pk for one in found] == sorted(one.pk for one in found)
    assert len(found) == 6
    del sent[:]
    gathered = rows.across_shards().run(lambda some: some.update(likes=m.models.F("likes") + 1))
    assert (gathered.values, gathered.errors, len(sent)) == ({0: 6}, {}, 1)
    assert sql("SELECT sum(likes) FROM app.photos_photo") == [(3 + 4 + 12 + 13 + 19 + 20 + 6,)]
    assert rows.across_shards().run(lambda some: some.delete()).values == {
        0: (12, {"photos.Photo": 6, "photos.Photo_tags": 6})
    }


def test_rows_know_the_shard_of_their_own_key(one, m):
    fill(m, U, V)
    where = {U: "shard-3", V: "shard-12"}
    rows = m.Photo.objects.select_related("album").order_by("likes")
    for photo in rows.across_shards().list(9):
        assert photo._state.db == where[photo.user_id]
        assert photo.album is None or photo.album._state.db == where[photo.user_id]
        photo.likes += 100
        photo.save()
    assert m.Photo.objects.filter(user_id=V, likes__gt=100).count() == 2
    # Without the key, by the ID.
    for photo in m.Photo.objects.only("title").across_shards().list(9):
        assert photo._state.db == where[int(photo.title[1:3])]
    # Without both, where it was read; and the key says it when it is there.
    sql("INSERT INTO app.photos_album (id, user_id, name) VALUES (1, %s, 'x')", [V])
    sql("UPDATE app.photos_album SET id = 7 WHERE name = 'x'")
    (album,) = m.Album.objects.filter(name="x").only("name").across_shards().list(2)
    assert album._state.db == "shard-0"
    album.name = "y"
    album.save()
    assert sql("SELECT name FROM app.photos_album WHERE id = 7") == [("y",)]
    assert (album.user_id, album._state.db) == (V, "shard-12")
    album.delete()
    assert sql("SELECT count(*) FROM app.photos_album WHERE id = 7") == [(0,)]


def test_prefetches_and_ids_of_many_shards_are_one_statement(one, m, sent):
    fill(m, U, V, W)
    ids = [one.pk for one in m.Photo.objects.order_by("-likes").across_shards().list(9)]
    del sent[:]
    found = m.Photo.objects.by_ids([*ids, ids[0] + 1])
    assert ([one.pk for one in found], len(sent)) == (ids, 1)
    assert [one._state.db for one in found[:3]] == ["shard-3", "shard-3", "shard-12"]
    del sent[:]
    rows = m.Photo.objects.prefetch_related("tags", "album").order_by("likes")
    found = rows.across_shards().list(9)
    assert len(sent) == 3
    assert [one.tags.all()[0].word for one in found] == ["w3", "w3", "w12", "w12", "w19", "w19"]
    assert [one.album and one.album.name for one in found][1::2] == ["a3", "a12", "a19"]
    del sent[:]
    albums = m.Album.objects.prefetch_related("photos__tags").order_by("id").across_shards().list(9)
    assert len(sent) == 3
    assert [[one.title for one in album.photos.all()] for album in albums] == [
        ["p3 1"],
        ["p12 1"],
        ["p19 1"],
    ]
    assert [one.tags.all()[0]._state.db for one in albums[1].photos.all()] == ["shard-12"]
    found = m.Photo.objects.prefetch_related("tags").by_ids(ids[:4])
    assert [len(one.tags.all()) for one in found] == [1] * 4


def test_a_statement_names_its_rows_or_is_not_sent(one, m, p, sent):
    from django.core.exceptions import ValidationError
    from django.db.models import Count, Exists, F, OuterRef, Q

    fill(m, U, V)
    photo = m.Photo.objects.get(user_id=V, likes=12)
    del sent[:]
    rows = m.Photo.objects.using("shard-3")
    for refused in (
        lambda: rows.count(),
        lambda: list(rows),
        lambda: rows.exists(),
        lambda: rows.aggregate(n=Count("id")),
        lambda: rows.distinct().aggregate(n=Count("id")),
        lambda: rows.update(likes=1),
        lambda: rows.delete(),
        lambda: list(rows.iterator()),
        lambda: list(rows.values("title")),
        lambda: rows.filter(title="x").first(),
        lambda: rows.exclude(user_id=U).count(),
        lambda: rows.filter(~Q(user_id=U)).count(),
        lambda: rows.filter(user_id__gt=U).count(),
        lambda: rows.filter(user_id=F("likes")).count(),
        lambda: rows.filter(Q(user_id=U) | Q(title="x")).count(),
        lambda: rows.filter(album__name="x").update(likes=1),
        lambda: rows.filter(user_id=U).union(rows).count(),
        lambda: m.Photo.objects.for_key(U).update(likes=1),
        lambda: m.Photo.objects.for_key(photo).count(),
        lambda: m.Album.objects.filter(user_id=U).annotate(
            n=Exists(m.Photo.objects.using("shard-3").filter(title="x"))
        )[0],
    ):
        with pytest.raises(p.Unsharded, match=r"filter by the key"):
            refused()
    with p.shard_of(U):
        for refused in (
            lambda: m.Photo.objects.count(),
            lambda: m.Photo.objects.update(likes=1),
            lambda: m.Photo.objects.filter(user_id=U, title__in=m.Album.objects.values("name"))[0],
        ):
            with pytest.raises(p.Unsharded):
                refused()
        assert m.Photo.objects.filter(user_id=U).count() == 2
    for refused in (
        lambda: m.Photo.objects.count(),
        lambda: m.Photo.objects.filter(user_id__in=[U, V]).count(),
        lambda: m.Photo.objects.filter(Q(user_id=U) | Q(user_id=V)).count(),
        lambda: m.Photo.objects.update(likes=1),
        lambda: m.Photo.objects.create(title="x"),
        lambda: m.Photo.objects.filter(user_id=U, title__in=m.Album.objects.values("name"))[0],
    ):
        with pytest.raises(p.NoShard):
            refused()
    assert [one for one in sent if 'WHERE "photos_photo"."user_id" = %s' not in one] == []
    assert sql("SELECT sum(likes) FROM app.photos_photo") == [(3 + 4 + 12 + 13,)]
    tied = m.Photo.objects.filter(album=OuterRef("pk"))
    assert m.Album.objects.filter(user_id=U).annotate(has=Exists(tied))[0].has
    assert m.Photo.objects.filter(user_id=U, album__in=m.Album.objects.values("id")).count() == 1
    assert rows.filter(Q(user_id=U, likes=3) | Q(id=photo.id)).count() == 1
    m.Photo(user_id=U, title="x").full_clean(exclude=["album", "category"])
    with pytest.raises(ValidationError, match="already exists"):
        m.Album(user_id=U, name="a3").full_clean()


def test_queries_without_a_key_run_and_are_counted(logs, m, p, caplog):
    from django.db.models import Q

    fill(m, U, V)
    photo = m.Photo.objects.get(user_id=V, likes=12)
    caplog.clear()
    with caplog.at_level(logging.WARNING, "pgshard"):
        for _ in range(3):
            assert m.Photo.objects.count() == 4
    assert len(caplog.records) == 1
    assert f"{__file__}:" in caplog.text
    (place, calls), *rest = p.unrouted_calls()
    assert (place.startswith(f"{__file__}:"), calls, rest) == (True, 3, [])
    count = lambda: sum(calls for _, calls in p.unrouted_calls())  # noqa: E731
    found = m.Photo.objects.filter(user_id__in=[U, V]).order_by("-likes")
    assert [one._state.db for one in found] == ["shard-12"] * 2 + ["shard-3"] * 2
    assert m.Photo.objects.filter(Q(user_id=U) | Q(user_id=V)).count() == 4
    assert m.Photo.objects.filter(album__name="a3").count() == 1
    assert (
        m.Photo.objects.filter(title__in=m.Photo.objects.filter(user_id=U).values("title")).count()
        == 2
    )
    assert count() == 7
    # A part of a query that names its key.
    assert m.Photo.objects.filter(user_id=U, title__in=m.Photo.objects.values("title")).count() == 2
    assert count() == 8
    assert m.Photo.objects.filter(likes__gt=12).update(likes=50) == 1
    assert m.Photo.objects.get(title="p12 1").likes == 50
    assert m.Photo.objects.filter(title="p12 1").delete()[1] == {
        "photos.Photo": 1,
        "photos.Photo_tags": 1,
    }
    with pytest.raises(p.NoShard):
        m.Photo.objects.create(title="x")
    with pytest.raises(p.NoShard):
        m.Photo.objects.bulk_create([m.Photo(title="x")])
    with pytest.raises(p.Unsharded):
        m.Photo.objects.for_key(U).count()
    with pytest.raises(p.WrongShard):
        m.Photo.objects.update(album=m.Album.objects.get(user_id=V))
    with pytest.raises(p.WrongShard):
        m.Photo.objects.update(user_id=V)
    made, new = m.Photo.objects.get_or_create(title="n", defaults={"user_id": V})
    assert (made._state.db, new) == ("shard-12", True)
    made, new = m.Photo.objects.update_or_create(title="n", defaults={"likes": 8})
    assert (made.likes, new, made._state.db) == (8, False, "shard-12")
    photo.delete()
    assert sql("SELECT title, likes FROM app.photos_photo ORDER BY 1") == [
        ("n", 8),
        ("p3 0", 3),
        ("p3 1", 4),
    ]


def test_places_are_counted_separately_up_to_a_bound():
    from pgshard.django.unrouted import OTHERS, PLACES_MAX, UnroutedCalls

    calls = UnroutedCalls()
    for number in range(PLACES_MAX + 3):
        calls.count(f"file:{number}")
    for _ in range(2):
        calls.count("file:7")
    found = calls.all()
    assert len(found) == PLACES_MAX + 1
    assert sorted(found[:2]) == [("file:7", 3), (OTHERS, 3)]


def test_a_row_with_an_id_of_another_shard_is_its_keys(one, m, p):
    fill(m, U)
    sql("UPDATE app.photos_photo SET user_id = %s WHERE likes = 3", [V])
    (photo,) = m.Photo.objects.filter(likes=3).across_shards().list(2)
    assert photo._state.db == "shard-12"
    with pytest.raises(p.WrongShard):
        photo.save()


def legacy(m):
    """Rows with IDs from before the shards: of each of two users an album, a photo and a tag."""
    for at, user in enumerate((U, V)):
        for table, more in (("album", "name"), ("tag", "word")):
            sql(
                f"INSERT INTO app.photos_{table} (user_id, {more}) VALUES (%s, %s)",
                [user, f"l{user}"],
            )
            sql(f"UPDATE app.photos_{table} SET id = %s WHERE {more} = %s", [100 + at, f"l{user}"])
        sql(
            "INSERT INTO app.photos_photo (user_id, title, likes, album_id) VALUES (%s, %s, 1, %s)",
            [user, f"l{user}", 100 + at],
        )
        sql("UPDATE app.photos_photo SET id = %s WHERE title = %s", [200 + at, f"l{user}"])
        sql(
            "INSERT INTO app.photos_photo_tags (photo_id, tag_id) VALUES (%s, %s)",
            [200 + at, 100 + at],
        )


def test_objects_with_legacy_ids_are_where_their_key_says(one, m, p):
    from pgshard import LegacyId

    legacy(m)
    photo = m.Photo.objects.get(user_id=V, id=201)
    assert (photo._state.db, photo.album.pk, photo.album._state.db) == ("shard-12", 101, "shard-12")
    photo.title = "new"
    photo.save()
    photo.refresh_from_db()
    assert [one.pk for one in photo.album.photos.all()] == [201]
    assert [one.word for one in photo.tags.all()] == ["l12"]
    made = m.Photo.objects.create(user_id=V, album=photo.album, title="m")
    made.tags.add(101)
    assert {one.pk for one in photo.album.photos.all()} == {201, made.pk}
    assert m.Photo.objects.filter(user_id=V, album_id=101).update(album_id=101) == 2
    with pytest.raises(p.WrongShard):
        m.Photo.objects.create(user_id=U, album=photo.album, title="m")
    for refused in (
        lambda: m.Photo.objects.get(pk=201),
        lambda: m.Photo.objects.filter(id__in=[200, 201]).count(),
        lambda: m.Photo.objects.filter(album=101).count(),
        lambda: m.Photo.objects.filter(album__id=101).count(),
        lambda: m.Photo.objects.filter(pk="201").update(title="x"),
        lambda: m.Photo.objects.by_ids([made.pk, 201]),
        lambda: m.Photo.objects.in_bulk([201]),
        lambda: p.alias_of_id(201),
    ):
        with pytest.raises(LegacyId, match="made before there were shards"):
            refused()
    with pytest.raises(p.NoShard):
        m.Photo.objects.filter(id__in=[made.pk, 201]).count()
    rows = m.Photo.objects.prefetch_related("tags", "album").order_by("id").across_shards().list(9)
    assert [(one.pk, one.album.name, [tag.word for tag in one.tags.all()]) for one in rows] == [
        (200, "l3", ["l3"]),
        (201, "l12", ["l12"]),
        (made.pk, "l12", ["l12"]),
    ]
    rows[0].delete()
    photo.album.delete()
    assert sql("SELECT count(*) FROM app.photos_photo") == [(0,)]


def test_legacy_ids_alone_run_and_are_counted(logs, m, p):
    legacy(m)
    photo = m.Photo.objects.get(pk=201)
    assert (photo.user_id, photo._state.db) == (V, "shard-12")
    assert m.Photo.objects.filter(album=100).count() == 1
    assert [one.pk for one in m.Photo.objects.by_ids([201, 200])] == [201, 200]
    assert m.Photo.objects.filter(pk=200).update(likes=7) == 1
    assert sum(calls for _, calls in p.unrouted_calls()) == 4


def test_a_statement_of_another_layout_is_not_sent(one, m, p, sent):
    """The map says that the shard has left; and so does a host when a statement fails."""
    from django.db import connections, transaction

    from pgshard import Placement
    from pgshard.django.cluster import ALL_ROWS, cluster

    fill(m, U)
    rows = m.Photo.objects.filter(user_id=U)
    whole = m.Photo.objects.across_shards()
    compiled, params = rows.query.get_compiler(using="shard-3").as_sql()
    raw = connections["shard-3"]
    with raw.cursor() as cursor:
        cursor.execute("SELECT 1 FROM {shard}.photos_photo LIMIT 1")
    del sent[:]
    cluster().directory.learn(3, Placement("db2", 2))
    with pytest.raises(p.LayoutChanged, match="in the schema shard_0003"):
        raw.cursor().execute(compiled, params)
    assert sent == []
    # A statement that is made now is made for that host.
    with pytest.raises(Exception, match=r"shard 3|shard_0003"):
        list(rows)
    assert not any('"app"' in one for one in sent)
    places = whole._places()
    assert not places.is_whole
    with pytest.raises(p.LayoutChanged, match="make it again"):
        m.Photo.objects.all()._on(ALL_ROWS).count()
    tries = []

    def work():
        tries.append(1)
        with transaction.atomic(using="shard-3"):
            if len(tries) == 1:
                raise p.LayoutChanged("other layout", 3)
        return len(tries)

    from pgshard.django.routing import run_on

    assert run_on("shard-3", work) == 2


MOVED = """INSERT INTO pgshard.shard (shard_id, schema_name, state, epoch, peer) VALUES
    (3, 'shard_0003', '{state}', 2, '{peer}'), (12, 'shard_0012', '{state}', 2, '{peer}')"""
TABLE = """CREATE SCHEMA {schema};
CREATE TABLE {schema}.photos_photo (id bigint, user_id bigint, album_id bigint, category_id integer,
    title text, likes integer, made_at timestamptz, lower text);
INSERT INTO {schema}.photos_photo (id, user_id, title) VALUES (1, {user}, 'there');
GRANT ALL ON SCHEMA {schema} TO app;
GRANT ALL ON {schema}.photos_photo TO app"""


def test_a_call_that_meets_the_switch_is_made_again(one, m, p):
    """The hosts say that two shards have left, and the schema that they had is gone."""
    from pgshard.django.cluster import cluster

    fill(m, U, V)
    rows = {user: m.Photo.objects.filter(user_id=user) for user in (U, V)}
    assert [rows[user].count() for user in (U, V)] == [2, 2]
    with one.superuser("db1") as old, one.superuser("db2") as new:
        old.execute(MOVED.format(state="moved", peer="db2"))
        new.execute(MOVED.format(state="serving", peer="db1"))
        for schema, user in (("shard_0003", U), ("shard_0012", V)):
            new.execute(TABLE.format(schema=schema, user=user))
        old.execute("ALTER SCHEMA app RENAME TO gone")
        try:
            with pytest.raises(p.LayoutChanged, match="on host db2 by now, in the schema"):
                rows[U].count()
            assert [one.title for one in rows[U]] == ["there"]
            titles = lambda: [one.title for one in rows[V].only("title")]  # noqa: E731
            assert p.run_in_shard(V, titles) == ["there"]
            assert cluster().directory.unsharded is None
            assert not m.Photo.objects.across_shards()._places().is_whole
        finally:
            old.execute("ALTER SCHEMA gone RENAME TO app")
            old.execute("DELETE FROM pgshard.shard")
            new.execute("DELETE FROM pgshard.shard")
            new.execute("DROP SCHEMA shard_0003, shard_0012 CASCADE")


def test_the_admin_shows_the_rows_of_a_key(logs, m, p, client):
    legacy(m)
    fill(m, U)
    page = client.get("/admin/photos/photo/", {"q": str(V)}).content.decode()
    assert re.search(r"/admin/photos/photo/201/change/\?\S*shard=shard-12", page)
    assert "/admin/photos/photo/200/" not in page
    page = client.get("/admin/photos/photo/", {"shard": "shard-12"}).content.decode()
    assert "Name a" in page
    for address in ("201/change/?shard=shard-12", "201/change/"):
        page = client.get(f"/admin/photos/photo/{address}").content.decode()
        # The choices are those of the photo's key.
        assert ">l12<" in page or "Album object (101)" in page
        assert "Album object (100)" not in page


def test_commands_report_what_is_true(one, m, tmp_path):
    legacy(m)
    fill(m, U)

    def run(*args):
        from io import StringIO

        from django.core.management import call_command

        out = StringIO()
        call_command(*args, stdout=out)
        return out.getvalue()

    assert "db1  0-15  unsharded, in the schema app" in run("shards", "list")
    assert run("shards", "where", "--key", "7") == "shard-7 app db1\n"
    assert len(run("shards", "dumpdata", "photos.Photo").splitlines()) == 4
    assert "All rows of 4 tables" in run(
        "shards", "check", "photos.Photo", "photos.Album", "photos.Tag", "photos.Photo_tags"
    )
    job = tmp_path / "job.py"
    job.write_text(
        "from photos.models import Photo\n\n\ndef run(alias):\n"
        "    Photo.objects.using(alias).filter(likes__gte=0).update(likes=50)\n"
    )
    assert run("shards", "run", str(job)) == "1 unsharded host done, 0 failed\n"
    assert sql("SELECT DISTINCT likes FROM app.photos_photo") == [(50,)]
    sql("UPDATE app.photos_photo SET user_id = 5 WHERE title = 'p3 1'")
    from django.core.management.base import CommandError

    with pytest.raises(CommandError, match="values are of another shard"):
        run("shards", "check", "photos.Photo")
    from pgshard.django import Unsharded

    with pytest.raises((CommandError, Unsharded), match="rows of all keys"):
        run("flush", "--database", "shard-3", "--noinput")
    assert sql("SELECT count(*) FROM app.photos_photo") == [(4,)]


def test_a_query_for_all_shards_sees_the_transaction_of_its_thread(one, m, p):
    from django.db import connections, transaction

    def check():
        album = m.Album.objects.create(user_id=U, name="new")
        photo = m.Photo.objects.create(user_id=U, album=album, title="t")
        photo.tags.add(m.Tag.objects.create(user_id=U, word="w"))
        rows = m.Photo.objects.prefetch_related("album", "tags")
        everywhere = m.Photo.objects.across_shards()
        for found in (
            rows.filter(user_id=U)[0],
            rows.by_ids([photo.pk])[0],
            rows.by_ids([photo.pk], timeout=60)[0],
            rows.across_shards(timeout=60).list(2)[0],
        ):
            assert found.album == album
            assert [tag.word for tag in found.tags.all()] == ["w"]
        albums = m.Album.objects.filter(user_id=U).prefetch_related("photos")
        assert [list(one.photos.all()) for one in albums] == [[photo]]
        assert (everywhere.count(), list(everywhere)) == (1, [photo])
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), transaction.atomic(using="shard-3"):
        check()
    with pytest.raises(ZeroDivisionError):
        p.run_in_shard(U, check)
    with transaction.atomic(using="shard-3"):
        rows = m.Photo.objects.filter(user_id=U).prefetch_related("album")
        m.Album.objects.create(user_id=U, name="new")
        with connections["shard-3"].cursor() as cursor:
            cursor.execute("UPDATE {shard}.photos_album SET id = 150")
        album = m.Album.objects.get(user_id=U, id=150)
        m.Photo.objects.create(user_id=U, album=album, title="t")
        assert [one.album for one in rows] == [album]


def test_a_query_without_a_key_sees_the_transaction_of_its_thread(logs, m, p):
    from django.db import transaction

    with transaction.atomic(using="shard-3"):
        fill(m, U)
        assert m.Photo.objects.count() == 2
        assert m.Photo.objects.update(likes=9) == 2


def test_each_shard_is_read_in_its_own_transaction_if_there_are_several(one, m, p):
    from django.db import transaction
    from django.db.models import prefetch_related_objects

    with transaction.atomic(using="shard-3"), transaction.atomic(using="shard-12"):
        # One that only reads is not in the way.
        assert m.Photo.objects.filter(user_id=V).count() == 0
        fill(m, U)
        assert m.Photo.objects.across_shards().count() == 2
        fill(m, V)
        photos = [m.Photo.objects.get(user_id=user, likes=user + 1) for user in (U, V)]
        prefetch_related_objects(photos, "album", "tags")
        assert [one.album.name for one in photos] == ["a3", "a12"]
        assert [[tag.word for tag in one.tags.all()] for one in photos] == [["w3"], ["w12"]]
        assert m.Photo.objects.by_ids([photos[1].pk, photos[0].pk]) == photos[::-1]
        for refused in (
            lambda: m.Photo.objects.across_shards().count(),
            lambda: list(m.Photo.objects.across_shards()),
        ):
            with pytest.raises(p.Unsharded, match="shard-12 and shard-3, which do not see"):
                refused()


def test_a_call_that_chose_shards_before_they_came_together_is_not_made(one, m, p, monkeypatch):
    from pgshard.django import across

    fill(m, U)
    whole = m.Photo.objects.filter(user_id=U).across_shards(width=2)
    monkeypatch.setattr(across, "unsharded_host", lambda: None)
    for refused in (
        lambda: whole.count(),
        lambda: whole.list(9, partial=True),
        lambda: list(whole),
        lambda: whole.run(lambda rows: rows.update(likes=m.models.F("likes") + 1)),
        lambda: whole.run(lambda rows: rows.delete()),
    ):
        with pytest.raises(p.LayoutChanged, match="make the call again"):
            refused()
    assert sql("SELECT sum(likes) FROM app.photos_photo") == [(3 + 4,)]


def test_values_of_another_shard_find_nothing(one, m, p):
    from django.db.models import Q

    fill(m, U, V)
    mine, other = (m.Album.objects.get(user_id=user) for user in (U, V))
    albums, photos = m.Album.objects.for_key(U), m.Photo.objects.for_key(U)
    for empty in (
        albums.filter(pk=other.pk),
        albums.filter(user_id=V),
        albums.filter(user_id__in=[V]),
        albums.filter(pk__in=[other.pk, V]),
        albums.filter(photos__in=m.Photo.objects.for_key(U).filter(user_id=V)),
        photos.filter(album=other),
        photos.filter(album_id=other.pk),
        photos.filter(album__user_id=V),
        photos.filter(Q(user_id=V) | Q(album_id=other.pk)),
        mine.photos.filter(user_id=V),
        other.photos.using("shard-3"),
    ):
        assert (list(empty), empty.count(), empty.exists()) == ([], 0, False)
        word = "name" if empty.model is m.Album else "title"
        assert (empty.order_by().update(**{word: "x"}), empty.delete()[0]) == (0, 0)
    with p.shard_of(U):
        assert m.Album.objects.for_key(U).filter(pk=other.pk).update(name="x") == 0
    assert list(albums.filter(pk__in=[mine.pk, other.pk])) == [mine]
    assert list(albums.filter(pk__in=[mine.pk, other.pk], name="a3")) == [mine]
    assert list(albums.filter(Q(pk=other.pk) | Q(user_id=U))) == [mine]
    assert list(albums.filter(user_id=U).exclude(pk=other.pk)) == [mine]
    assert albums.in_bulk([mine.pk, other.pk]) == {mine.pk: mine}
    assert albums.filter(pk__in=[mine.pk, other.pk]).aggregate(n=m.models.Count("pk")) == {"n": 1}
    both = albums.filter(pk__in=[mine.pk, other.pk])
    assert both.union(albums.filter(user_id=V)).count() == 1
    assert both.delete()[1] == {"photos.Album": 1, "photos.Photo": 1, "photos.Photo_tags": 1}
    assert sql("SELECT user_id FROM app.photos_album") == [(V,)]


@contextmanager
def keeps_ids(model):
    """Within it, new rows of a model have the IDs that they are given."""
    table = f"app.{model._meta.db_table}"
    sql(f"ALTER TABLE {table} DISABLE TRIGGER wide")
    try:
        yield
    finally:
        sql(f"ALTER TABLE {table} ENABLE TRIGGER wide")


def test_a_legacy_id_needs_its_key_on_a_shard_too(one, m, p):
    from django.db import DatabaseError, IntegrityError

    from pgshard import LegacyId

    legacy(m)
    rows = m.Photo.objects.for_key(U)

    def in_shard(work):
        return lambda: p.run_in_shard(U, work)

    for refused in (
        lambda: rows.get(pk=201),
        lambda: rows.filter(pk__in=[200, 201]).update(title="x"),
        lambda: rows.filter(pk=201).delete(),
        lambda: rows.filter(album_id=101).count(),
        lambda: rows.in_bulk([201]),
        lambda: m.Photo.objects.using("shard-3").filter(tags=101).exists(),
        in_shard(lambda: m.Photo.objects.filter(pk=201).first()),
        in_shard(lambda: m.Photo.objects.filter(pk=201).delete()),
        in_shard(lambda: m.Photo.objects.filter(album=101).update(title="x")),
    ):
        with pytest.raises(LegacyId, match="made before there were shards"):
            refused()
    assert rows.filter(user_id=U, pk__in=[200, 201]).count() == 1
    assert m.Album.objects.get(user_id=V, pk=101).photos.using("shard-12").count() == 1
    with pytest.raises(LegacyId):
        m.Album.objects.get(user_id=V, pk=101).photos.using("shard-3").count()
    for wrong in (m.Photo(id=201, user_id=U, title="x"), m.Album(id=101, user_id=U, name="x")):
        with keeps_ids(type(wrong)), pytest.raises(IntegrityError):
            wrong.save()
        with pytest.raises(DatabaseError, match="did not affect any rows"):
            wrong.save(force_update=True)
        with pytest.raises(p.Unsharded, match="name the key in unique_fields"):
            type(wrong).objects.bulk_create(
                [wrong], update_conflicts=True, unique_fields=["id"], update_fields=["user_id"]
            )
    wrong = m.Photo(id=201, user_id=U, title="x")
    assert m.Photo.objects.bulk_update([wrong], ["title"]) == 0
    assert sql("SELECT user_id, title FROM app.photos_photo ORDER BY id") == [(U, "l3"), (V, "l12")]
    assert sql("SELECT user_id, name FROM app.photos_album ORDER BY id") == [(U, "l3"), (V, "l12")]
    right = m.Photo.objects.get(user_id=V, pk=201)
    right.title = "new"
    assert m.Photo.objects.bulk_update([right], ["title"]) == 1
    right.save(force_update=True)
    made = m.Album.objects.bulk_create(
        [m.Album(user_id=V, name="l12")],
        update_conflicts=True,
        unique_fields=["user_id", "name"],
        update_fields=["name"],
    )
    assert len(made) == 1
    right.tags.clear()
    right.tags.set([m.Tag.objects.get(user_id=V)])
    assert right.tags.get().pk == 101


def test_a_generic_reference_names_rows_of_its_shard_only(one, m, p):
    from django.contrib.contenttypes.models import ContentType
    from forum.models import Remark, Thread

    category = ContentType.objects.get_for_model(m.Category)
    thread = ContentType.objects.get_for_model(Thread)
    for user in (U, V):
        Remark.objects.create(user_id=user, content_type=category, object_id=7)
        about = Thread.objects.create(user_id=user, title="t")
        Remark.objects.create(user_id=user, content_type=thread, object_id=about.pk)
    mine, other = (Thread.objects.get(user_id=user) for user in (U, V))
    for refused in (
        lambda: Remark.objects.filter(content_type=category, object_id=7).delete(),
        lambda: Remark.objects.filter(object_id=mine.pk).update(text="x"),
        lambda: Remark.objects.filter(content_type=thread, object_id=other.pk).update(text="x"),
        lambda: Remark.objects.filter(content_type=thread, object_id__in=[7, mine.pk]).count(),
    ):
        with pytest.raises(p.Unsharded, match="filter by the key"):
            p.run_in_shard(U, refused)
    rows = Remark.objects.for_key(U).filter(content_type=thread, object_id=mine.pk)
    assert rows.update(text="x") == 1
    assert [one.text for one in mine.remarks.all()] == ["x"]
    assert rows[0].about == mine
    assert mine.delete()[1] == {"forum.Remark": 1, "forum.Thread": 1}
    assert Remark.objects.across_shards().count() == 3
