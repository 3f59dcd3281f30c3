"""Django's own commands, as users type them: they work on a shard as on any database."""

import re

import pytest

U = 3
AT = ("--database", "shard-3")


@pytest.fixture
def manage(world, db, capfd):
    """Runs `manage.py`, and returns what it prints."""
    from django.core.management import ManagementUtility

    def run(*args):
        capfd.readouterr()
        try:
            ManagementUtility(["manage.py", *args]).execute()
        except SystemExit as end:
            return f"exit code {end.code}: {capfd.readouterr().err}"
        return capfd.readouterr().out

    return run


def test_rows_are_dumped_flushed_and_loaded(manage, tmp_path):
    from photos.models import Photo

    file = str(tmp_path / "rows.json")
    photo = Photo.objects.create(user_id=U, title="Prague")
    manage("dumpdata", "photos", *AT, "--output", file)
    assert manage("flush", "--no-input", *AT) == ""
    assert not Photo.objects.for_key(U).exists()
    assert manage("loaddata", file, *AT) == "Installed 1 object(s) from 1 fixture(s)\n"
    assert Photo.objects.get(pk=photo.pk).title == "Prague"


def test_natural_keys_are_looked_for_where_the_objects_are(manage, tmp_path):
    from django.contrib.auth.models import Group, User
    from django.core import serializers
    from photos.models import Note

    user, _ = User.objects.get_or_create(pk=U, defaults={"username": "natural"})
    Note.objects.create(user=user, text="x")
    rows = tmp_path / "rows.json"
    manage("dumpdata", "photos.note", *AT, "--natural-foreign", "--output", str(rows))
    assert '["natural"]' in rows.read_text()
    Note.objects.for_key(U).delete()
    assert manage("loaddata", str(rows), *AT) == "Installed 1 object(s) from 1 fixture(s)\n"
    assert Note.objects.get(user=user).text == "x"
    # A model that is not sharded is read as before.
    text = '[{"model": "auth.user", "fields": {"username": "y", "groups": [["g"]]}}]'
    group = Group.objects.create(name="g")
    (read,) = serializers.deserialize("json", text, using="default")
    assert read.m2m_data == {"groups": [group.pk]}
    Note.objects.for_key(U).delete()
    User.objects.filter(username="natural").delete()
    group.delete()


def test_a_fixture_may_refer_by_natural_keys_to_what_comes_later(manage, tmp_path, monkeypatch):
    from django.contrib.auth.models import User
    from photos.models import Photo, Tag

    from pgshard.django.cluster import state

    def by_natural_key(self, user_id, word):
        return self.get(user_id=user_id, word=word)

    monkeypatch.setattr(type(Tag.objects), "get_by_natural_key", by_natural_key, raising=False)
    monkeypatch.setattr(Tag, "natural_key", lambda one: (one.user_id, one.word), raising=False)
    rows = tmp_path / "rows.json"
    rows.write_text(
        '[{"model": "auth.user", "fields": {"username": "later", "password": "x"}},'
        ' {"model": "photos.photo", "fields": {"user_id": 3, "title": "x", "tags": [[3, "w"]]}},'
        ' {"model": "photos.tag", "fields": {"user_id": 12, "word": "w"}},'
        ' {"model": "photos.tag", "fields": {"user_id": 3, "word": "w"}}]'
    )
    with monkeypatch.context() as patch:
        # As a test case loads its fixtures: into each database.
        patch.setattr(state, "visible", ("shard-3", "shard-12"))
        said = [manage("loaddata", str(rows), *at) for at in ((), AT, ("--database", "shard-12"))]
    one = "Installed {} object(s) (of 4) from 1 fixture(s)\n"
    assert said == [one.format(count) for count in (1, 2, 1)]
    assert [tag.word for tag in Photo.objects.get(user_id=3).tags.all()] == ["w"]
    assert Tag.objects.across_shards().count() == 2
    assert User.objects.filter(username="later").delete()[0] == 1


def test_a_cache_in_a_database_works_also_where_a_shard_is_chosen(world, db):
    from importlib import import_module

    from django.core.cache import caches
    from django.core.management import call_command
    from django.db import connection
    from django.test import override_settings

    from pgshard.django import run_in_shard

    backend = "django.core.cache.backends.db.DatabaseCache"

    def use():
        cache = caches["default"]
        cache.set("a", 5)
        return cache.get("a"), cache.add("a", 6), cache.delete("a"), cache.get("a")

    def session():
        kind = import_module("django.contrib.sessions.backends.cached_db").SessionStore
        made = kind()
        made["x"] = 1
        made.save()
        return kind(made.session_key)["x"]

    with override_settings(CACHES={"default": {"BACKEND": backend, "LOCATION": "cache_table"}}):
        call_command("createcachetable", verbosity=0)
        for work in (use, lambda: run_in_shard(U, use)):
            assert work() == (5, False, True, None)
        assert session() == run_in_shard(U, session) == 1
    with connection.cursor() as cursor:
        cursor.execute("DROP TABLE cache_table")


def test_names_that_are_wrong_are_named_without_a_traceback(manage, tmp_path):
    (tmp_path / "empty.py").write_text("")
    for args in (
        ("dumpdata", "photos.Nothing"),
        ("dumpdata", "nothing"),
        ("run", "nothing.at_all"),
        ("run", "photos.models.nothing"),
        ("run", str(tmp_path / "nothing.py")),
        ("run", str(tmp_path / "empty.py")),
    ):
        said = manage("shards", *args)
        assert said.startswith("exit code 1: ")
        assert "Traceback" not in said
        assert re.search("CommandError: .*(othing|empty)", said)


def test_sharded_models_are_excluded_by_their_names_in_any_case(manage):
    excluded = [f"--exclude={name}" for name in ("photos.Note", "photos.note")]
    assert "are in the shards" in manage("dumpdata", "photos.note")
    for one in excluded:
        assert manage("dumpdata", "photos.note", one).strip() == "[]"


def test_a_fixture_with_rows_of_shards_is_not_loaded_in_part(manage, tmp_path):
    rows = tmp_path / "rows.json"
    rows.write_text(
        '[{"model": "photos.category", "fields": {"name": "in a fixture"}},'
        ' {"model": "photos.tag", "fields": {"user_id": 3, "word": "x"}}]'
    )
    assert "photos.Tag is in the shards, and default is none" in manage("loaddata", str(rows))
    from photos.models import Category

    assert not Category.objects.filter(name="in a fixture").exists()


def test_psql_opens_in_the_shard(manage):
    from photos.models import Photo

    Photo.objects.create(user_id=U, title="Prague")
    assert manage("dbshell", *AT, "--", "-Atc", "SELECT title FROM photos_photo") == "Prague\n"
    assert "psql ended" not in manage("dbshell", *AT, "--", "-c", "SELECT 1")


def test_models_are_made_of_a_shards_tables(manage):
    said = manage("inspectdb", *AT)
    assert (
        "class PhotosAlbum(models.Model):\n    id ="
        " pgshard.django.ShardedBigAutoField(primary_key=True)" in said
    )
    assert "    user_id = models.BigIntegerField()" in said
    assert "album = models.ForeignKey(PhotosAlbum, models." in said
    assert "unique_together = (('user_id', 'word'),)" in said
    assert "class PhotosCategory" not in said, "it is in no shard"
    assert "Unable to inspect" not in said
    from django.db import connections

    with connections["shard-3"].cursor() as cursor:
        there = connections["shard-3"].introspection
        assert [one["column"] for one in there.get_sequences(cursor, "photos_photo_tags")] == ["id"]
        assert there.get_primary_key_column(cursor, "photos_photo") == "id"
        assert there.get_table_description(cursor, "photos_photo")[0].name == "id"


def test_what_is_no_database_or_not_for_a_shard_is_refused(manage):
    assert "invalid choice: 'shard-16'" in manage("dumpdata", "--database", "shard-16")
    assert "shards makesql" in manage("migrate", *AT)


def test_rows_of_shards_in_a_migration_are_refused_with_the_remedy(manage, tmp_path, monkeypatch):
    import shutil
    from pathlib import Path

    import photos
    from django.test import override_settings

    folder = tmp_path / "later_migrations"
    shutil.copytree(Path(photos.__file__).parent / "migrations", folder)
    last = max(path.stem for path in folder.glob("0*.py"))
    (folder / "0999_fill.py").write_text(
        "from django.db import migrations\n"
        "def fill(apps, editor):\n"
        "    apps.get_model('photos', 'Photo').objects.update(likes=1)\n"
        "class Migration(migrations.Migration):\n"
        f"    dependencies = [('photos', {last!r})]\n"
        "    operations = [migrations.RunPython(fill)]\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    with override_settings(MIGRATION_MODULES={"photos": "later_migrations"}):
        said = manage("migrate", "photos")
    assert "CommandError: Photo is sharded and the write names no shard" in said
    assert (
        "take it out, and do that work in each shard with `manage.py shards run myapp.jobs.fill`"
        in said
    )
