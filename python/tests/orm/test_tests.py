"""The tests of a user's project, by Django's runner and by pytest: they have shards of their own,
and leave nothing behind."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from world import VERSION

PROJECT = Path(__file__).parents[1] / "project"


once = pytest.mark.skipif(
    VERSION != "18", reason="once is enough: PostgreSQL's version makes no difference here"
)


def run(world, *line):
    """Runs a command in the project; returns its output."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(PROJECT.parents[1]), str(PROJECT)])}
    env.update(PGSHARD_CONFIG=str(world.path), DJANGO_SETTINGS_MODULE="settings")
    done = subprocess.run(
        [sys.executable, *line], cwd=PROJECT, env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def databases(world):
    with world.connect("db1") as connection:
        rows = connection.execute(
            "SELECT datname FROM pg_database WHERE datname LIKE 'test%' ORDER BY 1"
        ).fetchall()
    return [name for (name,) in rows]


@pytest.fixture
def untouched(world, db):
    """A row in the real shards, which must be the only one afterwards; and no database may be left
    over."""
    from photos.models import Photo

    Photo.objects.create(user_id=1, title="real")
    yield
    assert databases(world) == []
    assert Photo.objects.across_shards().count() == 1


@pytest.mark.usefixtures("untouched")
def test_djangos_runner(world):
    said = run(world, "manage.py", "test", "--noinput", "--keepdb")
    assert "Ran 10 tests" in said
    assert databases(world) == ["test_app_shards", "test_website"]
    said = run(world, "manage.py", "test", "--noinput", "photos.tests.Flush")
    assert "Ran 2 tests" in said


@once
@pytest.mark.usefixtures("untouched")
def test_djangos_runner_with_several_processes(world):
    assert "Ran 10 tests" in run(world, "manage.py", "test", "--noinput", "--parallel", "2")


@once
@pytest.mark.usefixtures("untouched")
def test_a_runner_that_knows_no_shards_reaches_no_real_one(world):
    line = ("manage.py", "test", "--noinput", "--testrunner", "django.test.runner.DiscoverRunner")
    with pytest.raises(AssertionError, match="give them shards of their own by TEST_RUNNER"):
        run(world, *line, "photos.tests.Rollback")


@once
@pytest.mark.usefixtures("untouched")
def test_pytest_django(world):
    line = (
        "-m",
        "pytest",
        "-q",
        "-c",
        os.devnull,
        "--rootdir",
        str(PROJECT),
        "-p",
        "no:cacheprovider",
    )
    said = run(world, *line, "-p", "pgshard.django.pytest_plugin", "photos/tests.py")
    assert "10 passed" in said
