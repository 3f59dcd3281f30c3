"""docs/django.md and docs/django-recipes.md are true: this runs the commands and the code that they
contain."""

import contextlib
import json
import os
import re
import subprocess
import time
from collections import Counter

import psycopg
import pytest
from manual import RECIPES, WALK, Shell, section, typed
from world import ROOT, VERSION, control

once = pytest.mark.skipif(VERSION != "15", reason="once is enough: versions are tested elsewhere")


@once
def test_the_guide_leads_from_an_empty_folder_to_a_move(tmp_path):
    blocks = re.findall(r"```sh\n(.*?)```", section("From an empty folder"), re.DOTALL)
    assert len(blocks) == 6
    shell = Shell(tmp_path)
    try:
        # The writer must end even if a command before the end fails.
        said = shell.run("trap 'touch moved' EXIT\n" + "".join(blocks[:-1]))
    finally:
        subprocess.run(
            ["bash", "-euxc", blocks[-1]],
            cwd=tmp_path,
            env=shell.env,
            check=True,
            capture_output=True,
        )
    assert "photos written, no error" in said
    places = re.findall(r"shard-45 shard_0045 (db\d)", said)
    assert len(places) == 2
    assert places[0] != places[1]


def recipes():
    """The page of the recipes, without those that begin with another project: the last one, and
    that of a user model, which test_accounts.py makes."""
    page = (ROOT / "docs" / RECIPES).read_text(encoding="utf-8")
    page = page.split("\n## From a project with one database")[0]
    return page.replace(section("A user model on shards", RECIPES), "")


@once
def test_the_recipes_do_what_they_promise(tmp_path):
    guide = re.findall(r"```sh\n(.*?)```", section("From an empty folder"), re.DOTALL)
    shell = Shell(tmp_path)
    # The commands that run jobs come after there are rows.
    page = recipes()
    jobs = re.findall(r"```sh\n(python manage.py shards run .*?)```", page, re.DOTALL)
    assert len(jobs) == 2
    for job in jobs:
        page = page.replace(f"```sh\n{job}```", "")
    (tmp_path / "before.py").write_text((WALK / "recipes_before.py").read_text())
    (tmp_path / "after.py").write_text((WALK / "recipes_after.py").read_text())
    try:
        shell.run(
            "".join(guide[:3])
            + typed(page)
            + "python manage.py shell < before.py\n"
            # What a job has done it may do again.
            + "".join(jobs) * 2
            + "python manage.py shell < after.py\n"
        )
    finally:
        shell.down()
    assert (tmp_path / "done").exists()


@once
def test_the_recipe_leads_from_one_database_to_shards(tmp_path):
    before, one, *steps = re.split(
        r"\n### \d\. .*\n", section("From a project with one database", RECIPES)
    )
    assert len(steps) == 6
    shell = Shell(tmp_path)
    writers = []
    try:
        urls = prepare(shell, typed(before))
        writers = [
            shell.start(WALK / "supervise", WALK / "writer.py", str(number)) for number in range(2)
        ]
        shell.run("./deploy")
        shell.run("export DJANGO_COLORS=nocolor\n" + typed(one + "".join(steps[:3])))
        shell.env["PGSHARD_CONFIG"] = str(tmp_path / "pgshard-dev" / "pgshard.toml")
        outage(shell, urls)
        shell.run(typed("".join(steps[3:])))
        shell.run("touch stop; kill -TERM $(cat writer-0.pid writer-1.pid)")
        assert [one.wait(60) for one in writers] == [0, 0]
        compare(shell, urls)
    except AssertionError as error:
        logs = [path.read_text()[-3000:] for path in tmp_path.glob("writer-*.log")]
        raise AssertionError("\n".join([str(error), *logs])) from error
    finally:
        (tmp_path / "stop").touch()
        for path in tmp_path.glob("writer-*.pid"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(path.read_text()), 15)
        for one in writers:
            one.wait(60)
        shell.down()


def prepare(shell, before):
    """The project as it is before: in a database of its own on the first server, with rows. Returns
    the hosts' addresses."""
    said = shell.run("pgshard dev up --shards 64\ncp -p " + f"{WALK / 'deploy'} .")
    urls = dict(re.findall(r"(db\d)\s+(postgres://\S+)", said))
    with psycopg.connect(urls["db1"], user="postgres", autocommit=True) as connection:
        connection.execute("CREATE DATABASE website OWNER app")
        port = connection.info.port
    shell.run("django-admin startproject website .\npython manage.py startapp photos")
    with (shell.folder / "website" / "settings.py").open("a") as settings:
        settings.write(
            'INSTALLED_APPS += ["photos"]\nDATABASES = {"default": {"ENGINE":'
            ' "django.db.backends.postgresql", "NAME": "website", "HOST": "127.0.0.1", "PORT":'
            f' {port}, "USER": "app", "OPTIONS": {{"passfile":'
            f' "{urls["db1"].split("passfile=")[1]}"}}}}}}\n'
        )
    shell.env["DJANGO_SETTINGS_MODULE"] = "website.settings"
    shell.run(before + "python manage.py makemigrations photos\npython manage.py migrate\n" + ROWS)
    return urls


ROWS = """
python manage.py shell <<'END'
import json
from django.contrib.auth.models import User
from photos import services
from photos.models import Album, Category, Photo

Category.objects.create(name="animals")
User.objects.bulk_create([User(username=f"user {number}") for number in range(1, 61)])
albums = [(user, services.add_album(user, "old")) for user in range(5, 61, 5)]
seeds = [(user, services.add_photo(user, album, 1, f"seed {album}"), album) for user,
    album in albums]
# More than one batch, of a user whom nobody else writes for.
user = User.objects.create(username="many").pk
album = services.add_album(user, "many")
Photo.objects.bulk_create([Photo(album_id=album, title=f"many {number}") for number in range(2500)])
open("seeds", "w").write(json.dumps(seeds))
END
"""


def website(urls):
    """A connection to the project's own database."""
    return psycopg.connect(urls["db1"], dbname="website", autocommit=True)


def outage(shell, urls):
    """A server of shards is stopped for a while, until a second write of some process has
    failed."""
    data = shell.folder / "pgshard-dev" / "servers" / "db2" / "data"
    control(data, "stop", "-m", "fast")
    try:
        with website(urls) as connection:
            end = time.monotonic() + 30
            query = "SELECT count(*) FROM photos_stage WHERE name = 'old'"
            while connection.execute(query).fetchone() == (0,):
                assert time.monotonic() < end, "no second write has failed"
                assert not (shell.folder / "failed").exists()
                time.sleep(0.05)
    finally:
        control(data, "start")
    # After a failure the writers do not try the server for up to three seconds.
    time.sleep(3)


def compare(shell, urls):
    """What was acknowledged is in the shards: once, on the shard of its key, and as it was written.
    There is nothing else."""
    assert not (shell.folder / "failed").exists()
    seeds = json.loads((shell.folder / "seeds").read_text())
    photos = {id: (user, f"seed {album}", 1, album) for user, id, album in seeds}
    albums, likes = {(user, album) for user, _, album in seeds}, Counter()
    for path in shell.folder.glob("acknowledged-*"):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        photos |= {id: (user, *more) for what, user, id, *more in lines if what == "photo"}
        albums |= {(user, id) for what, user, id, *_ in lines if what == "album"}
        likes.update(id for what, _, id, *_ in lines if what == "like")
        for id in (id for what, _, id, *_ in lines if what == "remove"):
            del photos[id]
    wanted = sorted(
        (id, user, title, likes[id], category, album)
        for id, (user, title, category, album) in photos.items()
    )
    assert len(wanted) > 100

    found, found_albums, many = [], [], 0
    for url in urls.values():
        with psycopg.connect(url, autocommit=True) as connection:
            schemas = connection.execute(
                "SELECT nspname FROM pg_namespace WHERE nspname ~ '^shard_[0-9]+$'"
            ).fetchall()
            for (schema,) in schemas:
                rows = connection.execute(
                    "SELECT coalesce(photo.old_id, photo.id), photo.user_id, title, likes,"
                    " category_id, coalesce(album.old_id, album.id), album.user_id FROM"
                    f" {schema}.gallery_photo photo LEFT JOIN {schema}.gallery_album album ON"
                    " album.id = album_id"
                ).fetchall()
                there = connection.execute(
                    f"SELECT user_id, coalesce(old_id, id), name FROM {schema}.gallery_album"
                ).fetchall()
                assert {
                    user % 64 for user in (*(row[1] for row in rows), *(row[0] for row in there))
                } <= {int(schema[6:])}
                assert all(row[1] == row[6] for row in rows)
                many += sum(row[2].startswith("many ") for row in rows)
                found += [row[:6] for row in rows if not row[2].startswith("many ")]
                found_albums += [row[:2] for row in there if row[2] != "many"]
    assert sorted(found, key=lambda row: row[0]) == wanted
    assert sorted(found_albums) == sorted(albums)
    assert many == 2500
    with website(urls) as connection:
        assert connection.execute(
            "SELECT to_regclass('photos_photo'), to_regclass('photos_stage')"
        ).fetchone() == (
            None,
            None,
        )
