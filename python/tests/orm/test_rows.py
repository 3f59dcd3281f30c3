"""Rows go where they belong and are found there, and a query that names no shard is refused."""

import threading
import time
from functools import partial

import pytest
from world import World

pytestmark = pytest.mark.usefixtures("db")

U, V = 3, 12  # Users on shards of the two hosts.


def test_an_object_is_saved_read_changed_and_deleted(m):
    photo = m.Photo(user_id=U, title="Prague")
    assert photo.pk is None
    photo.save()
    assert photo._state.db == "shard-3"
    assert photo.pk >> 10 & 8191 == U
    assert photo.lower == "prague"
    photo.title = "Brno"
    photo.save()
    assert m.Photo.objects.get(pk=photo.pk).title == "Brno"
    photo.refresh_from_db()
    assert photo.lower == "brno"
    assert m.Photo.objects.filter(user_id=U).count() == 1
    assert m.Photo.objects.for_key(U).filter(title__startswith="B").exists()
    photo.delete()
    assert not m.Photo.objects.filter(user_id=U).exists()


def test_objects_that_refer_to_each_other(m):
    album = m.Album.objects.create(user_id=U, name="Trips")
    photos = m.Photo.objects.bulk_create(
        [m.Photo(user_id=U, title=f"p{n}", album=album) for n in range(5)], batch_size=2
    )
    assert len({photo.pk for photo in photos}) == 5
    tags = [m.Tag.objects.create(user_id=U, word=word) for word in ("a", "b", "c")]
    photos[0].tags.add(*tags)
    photos[0].tags.set(tags[1:])
    photos[0].tags.remove(tags[1])
    assert [tag.word for tag in photos[0].tags.all()] == ["c"]
    assert photos[0].tags.create(user_id=U, word="d").photos.count() == 1
    assert [
        photo.album.name
        for photo in m.Photo.objects.for_key(U).select_related("album").order_by("title")
    ] == ["Trips"] * 5
    found = m.Album.objects.for_key(U).prefetch_related("photos__tags").get()
    assert sorted(tag.word for photo in found.photos.all() for tag in photo.tags.all()) == [
        "c",
        "d",
    ]
    assert m.Photo.objects.get(pk=photos[1].pk).album == album
    assert album.photos.filter(title="p3").update(likes=7) == 1
    assert m.Photo.objects.filter(user_id=U, likes=7).select_for_update(of=("self",)).count() == 1
    assert album.delete()[0] == 8
    assert not m.Photo.objects.filter(user_id=U).exists()


def test_get_or_create_and_its_kin_write_to_the_shard(m):
    album, made = m.Album.objects.get_or_create(user_id=V, name="x")
    assert made
    assert m.Album.objects.get_or_create(user_id=V, name="x") == (album, False)
    assert m.Album.objects.update_or_create(user_id=V, name="x", defaults={"name": "y"})[1] is False
    assert m.Album.objects.for_key(V).get().name == "y"
    tags = [m.Tag(user_id=V, word=word) for word in "ab"]
    m.Tag.objects.bulk_create(tags)
    m.Tag.objects.bulk_create(
        [m.Tag(user_id=V, word="a"), m.Tag(user_id=V, word="c")], ignore_conflicts=True
    )
    for tag in tags:
        tag.word *= 2
    assert m.Tag.objects.bulk_update(tags, ["word"]) == 2
    words = m.Tag.objects.filter(user_id=V).order_by("word").values_list("word", flat=True)
    assert list(words) == ["aa", "bb", "c"]
    assert m.Tag.objects.for_key(V).filter(word__in=["aa", "c"]).delete()[0] == 2


def test_defaults_that_are_functions_put_no_row_elsewhere(m, p):
    photo = m.Photo.objects.create(user_id=U, title="x")
    theirs = m.Album.objects.create(user_id=V, name="theirs")
    ours = m.Album.objects.create(user_id=U, name="ours")
    change = partial(m.Photo.objects.update_or_create, user_id=U, title="x")
    assert change(defaults={"album": lambda: ours, "user_id": lambda: U}) == (photo, False)
    assert m.Photo.objects.get(pk=photo.pk).album == ours
    for wrong in (
        {"user_id": lambda: V},
        {"album": lambda: theirs},
        {"album_id": lambda: theirs.pk},
    ):
        with pytest.raises(p.WrongShard):
            change(defaults=wrong)
    assert m.Photo.objects.get(pk=photo.pk).album == ours


def test_a_query_that_names_no_shard_is_refused(m, p):
    for query in (
        lambda: list(m.Photo.objects.all()),
        lambda: m.Photo.objects.count(),
        lambda: m.Photo.objects.filter(title="x").first(),
        lambda: m.Photo.objects.exclude(user_id=U).exists(),
        lambda: m.Photo.objects.get(user_id__gt=U),
        lambda: m.Photo.objects.filter(pk__in=[]).union(m.Photo.objects.all()).count(),
        lambda: m.Photo._base_manager.filter(title="x").exists(),
        lambda: m.Photo.objects.create(title="x"),
        lambda: m.Photo(title="x").save(),
        lambda: m.Photo.objects.update(title="x"),
        lambda: m.Photo.objects.all().delete(),
        lambda: m.Photo.objects.raw("SELECT * FROM {shard}.photos_photo")[0],
        lambda: m.Photo.objects.using("default").count(),
        lambda: m.Photo(user_id=U, title="x").save(using="default"),
    ):
        with pytest.raises(p.NoShard, match="Photo"):
            query()
    assert isinstance(m.Photo._base_manager, p.ShardedManager), (
        "although its Meta names no base manager"
    )


def test_rows_do_not_go_astray(m, p):
    photo = m.Photo.objects.create(user_id=U, title="x")
    photo.user_id = V
    for wrong in (
        lambda: photo.save(),
        lambda: photo.save(using="shard-12"),
        lambda: m.Photo(user_id=U, title="y").save(using="shard-12"),
        lambda: m.Photo.objects.for_key(U).bulk_create([m.Photo(user_id=V, title="y")]),
        lambda: m.Photo.objects.bulk_create(
            [m.Photo(user_id=V, title="y"), m.Photo(user_id=U, title="y")]
        ),
        lambda: m.Photo.objects.for_key(U).create(user_id=V, title="y"),
        lambda: m.Photo.objects.for_key(U).update(user_id=V),
        lambda: m.Photo.objects.for_key(U).update(user_id=m.models.F("likes")),
        lambda: m.Photo.objects.for_key(U).bulk_update([photo], ["user_id"]),
        lambda: m.Photo.objects.for_key(U).update_or_create(title="x", defaults={"user_id": V}),
    ):
        with pytest.raises(p.WrongShard):
            wrong()
    assert m.Photo.objects.across_shards().count() == 1
    assert m.Photo.objects.get(pk=photo.pk).user_id == U
    # A value of the same shard may be set.
    assert m.Photo.objects.for_key(U).update(user_id=U + 16) == 1


def test_queries_of_two_shards_are_not_made_one(m, p):
    from django.db.models import Exists, OuterRef

    mine, others = m.Photo.objects.filter(user_id=U), m.Photo.objects.filter(user_id=V)
    m.Photo.objects.create(user_id=U, title="x", likes=1)
    m.Photo.objects.create(user_id=V, title="y")
    for wrong in (
        lambda: mine | others,
        lambda: mine & others,
        lambda: mine | m.Photo.objects.all(),
        lambda: list(mine.union(others)),
        lambda: mine.filter(Exists(others.filter(title=OuterRef("title")))).count(),
        lambda: mine.filter(title__in=others.values("title")).count(),
    ):
        with pytest.raises(
            (p.WrongShard, ValueError), match=r"shard-12|no shard|across different databases"
        ):
            wrong()
    same = m.Photo.objects.filter(user_id=U + 16)
    assert (mine | same).count() == 1
    assert (m.Photo.objects.filter(likes=1) & mine).count() == 1
    assert mine.union(same).count() == 1
    assert mine.filter(Exists(m.Photo.objects.filter(pk=OuterRef("pk"), likes=1))).count() == 1
    assert mine.filter(pk__in=m.Photo.objects.filter(user_id=U, likes=1)).update(likes=2) == 1
    assert (mine | m.Photo.objects.none()).count() == 1


def test_forms_check_what_is_unique_on_the_shard(m):
    from django.core.exceptions import ValidationError
    from django.forms import modelform_factory

    form = modelform_factory(m.Album, fields=["user_id", "name"])
    assert form({"user_id": U, "name": "x"}).save()._state.db == "shard-3"
    assert "already exists" in str(form({"user_id": U, "name": "x"}).errors)
    assert form({"user_id": V, "name": "x"}).is_valid()
    album = m.Album.objects.for_key(U).get()
    m.Photo(user_id=U, title="x", album=album).full_clean(exclude=["likes", "category"])
    with pytest.raises(ValidationError, match=r"does not exist|not a valid choice"):
        m.Photo(user_id=U, title="x", album_id=album.pk + 1).full_clean(
            exclude=["likes", "category"]
        )


def test_objects_of_two_shards_are_not_joined(m):
    album = m.Album.objects.create(user_id=V, name="x")
    photo = m.Photo.objects.create(user_id=U, title="x")
    from pgshard.django import WrongShard

    with pytest.raises(WrongShard, match="cannot be related"):
        photo.album = album
    with pytest.raises(WrongShard):
        m.Photo.objects.create(user_id=U, title="y", album=album)
    assert m.Photo.objects.across_shards().count() == 1


def test_ids_that_nobody_has_are_not_there(m):
    for id in (0, -1, 2**62, 2**70, 5000 << 10):
        with pytest.raises(m.Photo.DoesNotExist):
            m.Photo.objects.get(pk=id)
        assert m.Photo.objects.by_ids([id]) == []
    with pytest.raises(ValueError, match="expected a number"):
        m.Photo.objects.get(pk="abc")
    assert not m.Photo.objects.for_key(U).filter(pk=(V << 10) + 1).exists(), (
        "of another shard: not among this one's"
    )


def test_what_is_not_sharded_stays_where_it_is(m, p):
    from django.contrib.auth.models import User
    from django.contrib.contenttypes.models import ContentType

    category = m.Category.objects.create(name=f"c{id(m)}")
    photo = m.Photo(user_id=U, title="x", category=category)
    photo.save()
    assert m.Photo.objects.get(pk=photo.pk).category == category
    with pytest.raises(p.NoShard):
        category.photos.count()
    assert m.Photo.objects.filter(user_id=U, category=category).count() == 1
    user = User.objects.create(username=f"u{id(m)}")
    note = m.Note(user=user)
    note.save()
    assert note._state.db == f"shard-{user.pk % 16}"
    assert (note.user, note.text) == (user, "{shard}")
    assert list(user.notes.all()) == [note]
    assert user.notes.create(text="y")._state.db == note._state.db
    assert m.Note.objects.filter(user=user).count() == m.Note.objects.for_key(user).count() == 2
    for wrong in (
        lambda: list(m.Note.objects.for_key(user).select_related("user")),
        lambda: User.objects.using("shard-3").count(),
        lambda: ContentType.objects.using("shard-3").create(model="x"),
        lambda: User.objects.using("shard-3").update(username="x"),
    ):
        with pytest.raises(p.WrongShard, match="is not sharded"):
            wrong()
    user.delete()
    category.delete()


def test_many_shards_are_asked_at_once(m, p):
    photos = [m.Photo.objects.create(user_id=user, title=f"{user:02d}") for user in range(40)]
    ids = [photo.pk for photo in reversed(photos)]
    assert [photo.pk for photo in m.Photo.objects.by_ids([*ids, 2**62])] == ids
    across = m.Photo.objects.filter(title__lt="30").order_by("-title").across_shards(width=4)
    assert across.count() == 30
    assert [photo.title for photo in across.list(limit=4)] == ["29", "28", "27", "26"]
    assert m.Photo.objects.across_shards().exists()
    assert sum(across.run(lambda rows: rows.update(likes=3)).all().values()) == 30
    with pytest.raises(ValueError, match="cannot be merged"):
        m.Photo.objects.order_by("album__name").across_shards().list(limit=1)


@pytest.fixture
def together(monkeypatch):
    """What each statement over many shards returned: None if it failed."""
    from pgshard.django import batch

    plain, given = batch._in_thread, []
    monkeypatch.setattr(batch, "_in_thread", lambda *args: given.append(plain(*args)) or given[-1])
    return given


def test_rows_of_many_shards_are_found_by_one_statement_a_host(m, together):
    from django.db.models.functions import Upper

    albums = [m.Album.objects.create(user_id=user, name=f"album {user}") for user in range(16)]
    photos = [
        m.Photo.objects.create(user_id=user, title=f"p{user:02d}", album=albums[user % 16])
        for user in range(48)
    ]
    ids = [photo.pk for photo in photos]
    query = (
        m.Photo.objects.filter(title__lt="p40")
        .select_related("album")
        .annotate(upper=Upper("title"))
    )
    found = query.by_ids([*ids, ids[0]])
    assert [photo.pk for photo in found] == [*ids[:40], ids[0]]
    for photo in found:
        assert (photo._state.db, photo.album._state.db) == (f"shard-{photo.user_id % 16}",) * 2
        assert (photo.album.name, photo.upper) == (
            f"album {photo.user_id % 16}",
            photo.title.upper(),
        )
        assert photo.likes == 0
    assert sum(len(one) for one in together) == 16
    assert len(together) == 2
    found[0].likes = 3
    found[0].save()
    assert m.Photo.objects.get(pk=ids[0]).likes == 3
    assert m.Photo.objects.only("title").by_ids(ids[:2])[1].user_id == 1
    del together[:]
    # A query that is not plain asks the shards one by one.
    assert [
        list(photo.tags.all()) for photo in m.Photo.objects.prefetch_related("tags").by_ids(ids[:2])
    ] == [[], []]
    assert list(m.Photo.objects.values_list("title", flat=True).filter(pk__in=[ids[0]])) == ["p00"]
    assert together == []


def test_a_literal_place_for_the_schema_in_a_row_stays(m, together):
    photos = [m.Photo.objects.create(user_id=user, title="{shard} %s %") for user in range(16)]
    found = m.Photo.objects.filter(title="{shard} %s %").by_ids([photo.pk for photo in photos])
    assert found == photos
    assert sum(len(one) for one in together) == 16


def test_what_fails_in_part_gives_the_rest(m, p, monkeypatch):
    from django.db import OperationalError

    photos = [m.Photo.objects.create(user_id=user, title=f"{user}") for user in range(4)]

    def work(rows):
        if rows.db == "shard-2":
            raise OperationalError("broken")
        return rows.count()

    gathered = m.Photo.objects.across_shards().run(work)
    assert list(gathered.errors) == [2]
    assert sum(gathered.values.values()) == 3
    with pytest.raises(p.Partial, match="1 of 16 shards failed; shard 2: broken") as error:
        gathered.all()
    assert error.value.gathered is gathered
    late = m.Photo.objects.across_shards(timeout=0).run(work)
    assert len(late.errors) == 16
    with pytest.raises(p.Partial, match="was over"):
        m.Photo.objects.by_ids([photo.pk for photo in photos], timeout=0)
    assert m.Photo.objects.by_ids([photo.pk for photo in photos], timeout=0, partial=True) == []


def test_a_shard_that_does_not_answer_is_not_waited_for(m, p, world):
    from pgshard.django import InDoubt
    from pgshard.django.backend import pools

    def in_use():
        return sum(pool.in_use for pool in pools._pools.by_host.values())

    photos = [m.Photo.objects.create(user_id=user, title=f"{user}") for user in range(16)]
    p.release()
    with world.superuser(world.host_of(2)) as keeper:
        keeper.execute("BEGIN; LOCK TABLE shard_0002.photos_photo")
        # If the test fails, this makes sure that it ends.
        free = threading.Timer(30, lambda: keeper.execute("ROLLBACK"))
        free.start()
        gathered = m.Photo.objects.across_shards(timeout=3).run(lambda rows: rows.count())
        assert isinstance(gathered.errors.pop(2), InDoubt)
        assert {type(error) for error in gathered.errors.values()} <= {p.ShardUnavailable}
        found = m.Photo.objects.by_ids([photo.pk for photo in photos], timeout=3, partial=True)
        assert photos[2] not in found
        # It kept no connection either: the statements were cancelled.
        end = time.monotonic() + 25
        while in_use() and time.monotonic() < end:
            time.sleep(0.05)
        assert in_use() == 0
        assert free.is_alive()
        free.cancel()
        keeper.execute("ROLLBACK")


def test_within_a_transaction_its_own_writes_are_seen_by_many_shards(m, p):
    from django.db import transaction

    with transaction.atomic(using="shard-3"):
        photo = m.Photo.objects.create(user_id=U, title="x")
        other = m.Photo.objects.create(user_id=V, title="y")
        assert m.Photo.objects.by_ids([photo.pk, other.pk]) == [photo, other]
        assert m.Photo.objects.across_shards().count() == 2


def test_a_block_chooses_one_shard(m, p):
    with p.shard_of(U) as alias:
        assert alias == "shard-3"
        m.Album.objects.create(user_id=U, name="x")
        assert m.Album.objects.count() == 1
        assert [
            album.name
            for album in m.Album.objects.raw(
                "SELECT * FROM {shard}.photos_album WHERE name = %s", ["x"]
            )
        ] == ["x"]
    with pytest.raises(p.NoShard):
        m.Album.objects.count()


def test_raw_sql_gets_the_shards_schema(m):
    from django.db import NotSupportedError, ProgrammingError, connections

    with connections["shard-3"].cursor() as cursor:
        rows = [(U, "a"), (U, "b")]
        cursor.executemany("INSERT INTO {shard}.photos_tag (user_id, word) VALUES (%s, %s)", rows)
        cursor.execute("SELECT word, '{{shard}}' FROM {shard}.photos_tag ORDER BY word")
        assert cursor.fetchall() == [("a", "{shard}"), ("b", "{shard}")]
        with cursor.copy("COPY {shard}.photos_tag (user_id, word) FROM STDIN") as copy:
            copy.write_row((U, "c"))
        with pytest.raises(NotSupportedError, match="name the schema"):
            cursor.callproc("f")
        for sql in ("BEGIN", "START TRANSACTION; SELECT 1"):
            with pytest.raises(ProgrammingError, match=r"use transaction\.atomic"):
                cursor.execute(sql)
        cursor.execute("SELECT count(*) FROM {shard}.photos_tag")
        assert cursor.fetchone() == (3,)
    assert m.Tag.objects.for_key(U).count() == 3


def test_management_of_one_shard_is_refused(world: World):
    from django.core.management import CommandError, call_command
    from django.db import NotSupportedError, connections

    with pytest.raises(CommandError, match="makesql"):
        call_command("migrate", database="shard-3")
    with pytest.raises(NotSupportedError, match="makesql"):
        connections["shard-3"].schema_editor()
    for args in (["photos"], ["photos.Photo"], []):
        with pytest.raises(CommandError, match="--database shard-"):
            call_command("dumpdata", *args)


def test_fixtures_of_a_shard_are_dumped_and_loaded(m, tmp_path):
    from django.core.management import call_command

    album = m.Album.objects.create(user_id=U, name="x")
    photo = m.Photo.objects.create(user_id=U, title="x", album=album)
    photo.tags.add(m.Tag.objects.create(user_id=U, word="w"))
    file = tmp_path / "rows.json"
    call_command("dumpdata", "photos", database="shard-3", output=str(file), verbosity=0)
    album.delete()
    m.Tag.objects.for_key(U).delete()
    call_command("loaddata", str(file), database="shard-3", verbosity=0)
    assert [tag.word for tag in m.Photo.objects.get(pk=photo.pk).tags.all()] == ["w"]
    assert m.Photo.objects.create(user_id=U, title="next").pk != photo.pk
    photo.tags.add(m.Tag.objects.create(user_id=U, word="another"))
    call_command("flush", database="shard-3", interactive=False, verbosity=0)
    assert not m.Photo.objects.for_key(U).exists()


def test_the_shell_of_a_database_opens_in_the_shard(world, m, monkeypatch, tmp_path):
    import subprocess

    from django.db import connections

    m.Tag.objects.create(user_id=U, word="shell")
    ran = []
    monkeypatch.setattr(subprocess, "run", lambda *args, **more: ran.append((args, more)))
    connections["shard-3"].client.runshell(["-c", "SELECT 1"])
    monkeypatch.undo()
    ((args,), more) = ran[0]
    output = tmp_path / "out"
    with output.open("w") as file:
        subprocess.run(
            [*args[:1], "-Atc", "SELECT word FROM photos_tag", *args[-1:]], **more, stdout=file
        )
    assert output.read_text() == "shell\n"


def test_tables_of_extra_are_those_of_the_shard(m, p, world):
    album = m.Album.objects.create(user_id=U, name="Trips")
    photo = m.Photo.objects.create(user_id=U, album=album, title="Prague")
    m.Photo.objects.create(user_id=U, title="in none")

    def joined(*tables):
        of = ["photos_photo.album_id = photos_album.id", "photos_album.name = %s"]
        return m.Photo.objects.filter(user_id=U).extra(tables=tables, where=of, params=["Trips"])

    assert joined("photos_album").get() == photo
    assert joined("photos_album").count() == 1
    assert joined("photos_album").filter(album__name="Trips").get() == photo, "it is there already"
    with pytest.raises(p.WrongShard, match="Category is not sharded"):
        list(joined("photos_category"))
    with world.connect(world.host_of(U)) as connection:
        connection.execute("CREATE TABLE public.words AS SELECT 'Prague' AS word")
        try:
            found = m.Photo.objects.for_key(U).extra(
                tables=['"public"."words"'], where=["title = word"]
            )
            assert found.get() == photo
        finally:
            connection.execute("DROP TABLE public.words")


def test_a_refusal_is_no_error_that_applications_catch(p):
    from django.core.exceptions import ImproperlyConfigured, ObjectDoesNotExist, ValidationError
    from django.db import Error

    usual = (ImproperlyConfigured, ObjectDoesNotExist, ValidationError, Error)
    for refusal in (p.NoShard, p.WrongShard):
        assert not issubclass(refusal, (*usual, ValueError, TypeError, LookupError, AttributeError))


def test_blocks_of_generators_that_end_in_any_order_choose_no_shard(m, p):
    from pgshard.django.routing import chosen

    for user in (U, V):
        m.Photo.objects.create(user_id=user, title=f"of {user}")

    def titles(user):
        with p.shard_of(user):
            for _ in range(2):
                yield [photo.title for photo in m.Photo.objects.all()]

    first, second = titles(U), titles(V)
    assert [next(first), next(second)] == [[f"of {U}"], [f"of {V}"]]
    first.close()
    assert next(second) == [f"of {V}"]
    second.close()
    assert chosen() is None
    with pytest.raises(p.NoShard):
        m.Photo.objects.count()
    with p.shard_of(U):
        third = titles(V)
        next(third)
    third.close()
    assert chosen() is None


def test_a_task_keeps_the_shard_of_the_block_that_started_it(p):
    import asyncio

    from pgshard.django.routing import chosen

    async def later():
        await asyncio.sleep(0.01)
        return chosen()

    async def start():
        with p.shard_of(U):
            task = asyncio.create_task(later())
        assert chosen() is None
        return await task

    assert asyncio.run(start()) == p.alias_of_key(U)


@pytest.mark.parametrize("path", ["/first", "/afirst"])
def test_a_view_does_not_get_the_shard_of_the_test_that_calls_it(m, p, path):
    from asgiref.sync import async_to_sync
    from django.test import AsyncClient, Client, override_settings

    photo = m.Photo.objects.create(user_id=U, title="x")
    with override_settings(ROOT_URLCONF="photos.urls"), p.shard_of(U):
        with pytest.raises(p.NoShard):
            Client().get(path)
        with pytest.raises(p.NoShard):
            async_to_sync(AsyncClient().get)(path)
        assert m.Photo.objects.first() == photo
