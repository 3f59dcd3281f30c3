"""Migrations of a project with several applications, from its first to one that deletes a model, as
its engineers type them."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from world import COMMAND, World

PACKAGE = Path(__file__).parents[2]
SETTINGS = """
import pgshard.django
DATABASES = pgshard.django.databases(default=DATABASES["default"])
DATABASE_ROUTERS = ["pgshard.django.ShardRouter"]
INSTALLED_APPS += ["pgshard.django", "early", "late", "only", "apart"]
"""
MODELS = """
from django.db import models
from pgshard.django import ShardedModel, ShardKeyField
"""
LATE = """
class Place(ShardedModel):
    user_id = ShardKeyField()
"""
EARLY = """
class Visit(ShardedModel):
    user_id = ShardKeyField()
    place = models.ForeignKey("late.Place", models.CASCADE, null=True)
    mood = models.CharField(max_length=10, db_index=True)
"""
CHILD = """
class Trip(Visit):
    days = models.IntegerField(default=1)


class Same(Visit):
    class Meta:
        proxy = True
"""


class Site:
    """A project in a folder, with two shards."""

    def __init__(self, world):
        self.world, self.folder = world, world.folder / "site"
        self.folder.mkdir()
        self.env = {
            **os.environ,
            "PYTHONPATH": f"{PACKAGE}{os.pathsep}{self.folder}",
            "PGSHARD_CONFIG": str(world.path),
            "PGSHARD": COMMAND,
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        self.env.pop("DJANGO_SETTINGS_MODULE", None)
        self._python("-m", "django", "startproject", "website", ".")
        for app in ("early", "late", "only", "apart"):
            (self.folder / app / "migrations").mkdir(parents=True)
            (self.folder / app / "migrations" / "__init__.py").touch()
            (self.folder / app / "__init__.py").touch()
        with (self.folder / "website" / "settings.py").open("a") as settings:
            settings.write(SETTINGS)

    def _python(self, *line, fails=False):
        done = subprocess.run(
            [sys.executable, *line], cwd=self.folder, env=self.env, capture_output=True, text=True
        )
        assert (done.returncode != 0) == fails, done.stdout + done.stderr
        return done.stdout + done.stderr

    def manage(self, *line, fails=False):
        return self._python("manage.py", *line, fails=fails)

    def models(self, app, text):
        (self.folder / app / "models.py").write_text(MODELS + text)

    def migration(self, app, name, operations, after=None):
        dependencies = [(app, after)] if after else []
        text = (
            f"class Migration(migrations.Migration):\n    dependencies = {dependencies}\n   "
            f" operations = {operations}\n"
        )
        (self.folder / app / "migrations" / f"{name}.py").write_text(
            "from django.db import migrations\n" + text
        )

    def write(self):
        """Makes the files, runs them, and says which they are."""
        said = self.manage("shards", "makesql")
        self.world.run("migrate", "up")
        assert "Shards:" not in self.manage("migrate")
        return [one.split("_", 1)[1] for one in re.findall(r"wrote \S+/(\w+)\.sql", said)]

    def sql(self, text):
        """The rows of the first shard."""
        with self.world.connect("db1") as connection:
            return connection.execute(text).fetchall()


@pytest.fixture(scope="module")
def site():
    made = World(shards=2)
    try:
        made.run("bootstrap")
        yield Site(made)
    finally:
        made.close()


def test_a_project_changes_its_models_over_its_life(site):
    site.models("late", LATE)
    site.models("early", EARLY)
    site.models("only", "")
    site.manage("makemigrations", "early", "late")
    # What the one refers to comes first, not what comes first in the alphabet.
    assert site.write() == ["late_0001_initial", "early_0001_initial"]

    # The index for LIKE goes with the other.
    indexes = (
        "SELECT count(*) FROM pg_indexes WHERE schemaname = 'shard_0000' AND indexdef LIKE '%mood%'"
    )
    for number, (name, value) in enumerate((("off", False), ("on", True)), 2):
        site.models("early", EARLY.replace("db_index=True", f"db_index={value}"))
        site.manage("makemigrations", "early", "-n", name)
        assert site.write() == [f"early_000{number}_{name}"]
        assert site.sql(indexes) == [(2 if value else 0,)]

    # SQL of one's own, in an application without models too.
    site.sql("INSERT INTO shard_0000.early_visit (user_id, mood) VALUES (0, 'good') RETURNING 1")
    operations = """[
        migrations.RunSQL("-- don't forget\\nUPDATE {shard}.early_visit SET mood = 'filled' -- all",
            hints={"sharded": True}),
        migrations.RunSQL("-- the next\\nCOMMENT ON TABLE {shard}.early_visit IS 'said'",
            hints={"model_name": "visit"}),
    ]"""
    site.migration("early", "0004_sql", operations, "0003_on")
    operations = (
        '[migrations.RunSQL("CREATE TABLE {shard}.word (id int)", hints={"sharded": True})]'
    )
    site.migration("only", "0001_sql", operations)
    sql = "-- it doesn't wait\\nCREATE INDEX CONCURRENTLY word_id ON {shard}.word (id)"
    operations = (
        f'[migrations.RunSQL("{sql}", hints={{"sharded": True}}), migrations.RunPython(print)]'
    )
    site.migration("only", "0002_more", operations.replace("print", "lambda *_: None"), "0001_sql")
    assert site.write() == ["early_0004_sql", "only_0001_sql", "only_0002_more"]
    assert site.sql(
        "SELECT mood, obj_description('shard_0000.early_visit'::regclass) FROM"
        " shard_0000.early_visit"
    ) == [("filled", "said")]
    assert site.sql("SELECT count(*) FROM shard_0000.word") == [(0,)]

    # A child of a model, and a change of it.
    site.models("early", EARLY + CHILD)
    site.manage("makemigrations", "early", "-n", "child")
    site.models(
        "early",
        EARLY + CHILD.replace("days", "nights = models.IntegerField(default=0)\n    days", 1),
    )
    site.manage("makemigrations", "early", "-n", "nights")
    assert site.write() == ["early_0005_child", "early_0006_nights"]
    site.manage(
        "shell",
        "-c",
        "from early.models import Trip, Visit\n"
        "trip = Trip.objects.create(user_id=2, mood='x', nights=3)\n"
        "assert Trip.objects.get(pk=trip.pk).nights == 3\n"
        "assert Visit.objects.get(pk=trip.pk).delete()[0] == 2\n",
    )

    # The squashed migration of what was run does nothing, and its name is taken.
    site.manage("squashmigrations", "late", "0001", "--noinput", "--squashed-name", "all")
    assert site.write() == ["late_0001_all"]
    (site.folder / "late" / "migrations" / "0001_initial.py").unlink()
    site.manage("shards", "makesql", "--check")
    squashed = site.folder / "late" / "migrations" / "0001_all.py"
    squashed.write_text(re.sub(r"replaces = .*\]", "", squashed.read_text()))
    first = site.folder / "early" / "migrations" / "0001_initial.py"
    first.write_text(first.read_text().replace("('late', '0001_initial')", "('late', '0001_all')"))
    site.manage("shards", "makesql", "--check")

    # The last sharded model of an application.
    site.models("early", "")
    site.manage("makemigrations", "early", "-n", "gone")
    assert "early_0007_gone" in site.manage("shards", "makesql", "--check", fails=True)
    assert site.write() == ["early_0007_gone"]
    assert site.sql(
        "SELECT count(*) FROM pg_tables WHERE tablename IN ('early_visit', 'early_trip')"
    ) == [(0,)]
    # What was said of a model that is gone is not for the other database.
    (site.folder / "db.sqlite3").unlink()
    site.manage("migrate")


def test_a_squashed_migration_waits_for_what_it_replaces(site, tmp_path):
    folder, names = site.folder / "apart" / "migrations", ("0001_first", "0002_second")
    for name, after in zip(names, (None, "0001_first"), strict=True):
        operation = (
            f'[migrations.RunSQL("CREATE TABLE {{shard}}.t{name} (id int)", hints={{"sharded":'
            " True})]"
        )
        site.migration("apart", name, operation, after)
        if after is None:
            assert "apart_0001_first" in site.write()
    site.manage("squashmigrations", "apart", "0002", "--noinput", "--squashed-name", "both")
    for name in names:
        (folder / f"{name}.py").rename(tmp_path / f"{name}.py")
    said = site.manage("shards", "makesql", fails=True)
    assert (
        "apart.0001_both replaces apart.0001_first, whose files are there, and apart.0002_second"
        in said
    )
    for name in names:
        (tmp_path / f"{name}.py").rename(folder / f"{name}.py")
    assert site.write() == ["apart_0002_second", "apart_0001_both"]
