"""The tests of a user's project, by Django's runner and by pytest: they have shards of their own,
and leave nothing behind."""

import os
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest
from world import VERSION

PROJECT = Path(__file__).parents[1] / "project"


once = pytest.mark.skipif(
    VERSION != "18", reason="once is enough: PostgreSQL's version makes no difference here"
)


def run(world, *line, **more):
    """Runs a command in the project, with `more` in its environment; returns its output."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(PROJECT.parents[1]), str(PROJECT)])}
    env.update(PGSHARD_CONFIG=str(world.path), DJANGO_SETTINGS_MODULE="settings", **more)
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
def test_djangos_runner_gives_tests_shards_of_their_own(world):
    said = run(world, "manage.py", "test", "--noinput", "--keepdb")
    assert "Ran 15 tests" in said
    assert databases(world) == ["test_app_shards", "test_website"]
    said = run(world, "manage.py", "test", "--noinput", "photos.tests.Flush")
    assert "Ran 2 tests" in said


@once
@pytest.mark.usefixtures("untouched")
def test_djangos_runner_runs_tests_in_several_processes(world):
    assert "Ran 15 tests" in run(world, "manage.py", "test", "--noinput", "--parallel", "2")


@once
@pytest.mark.usefixtures("untouched")
def test_a_runner_that_knows_no_shards_reaches_no_real_one(world):
    line = ("manage.py", "test", "--noinput", "--testrunner", "django.test.runner.DiscoverRunner")
    with pytest.raises(AssertionError, match="give them shards of their own by TEST_RUNNER"):
        run(world, *line, "photos.tests.Rollback")


PYTEST = ("-m", "pytest", "-q", "-c", os.devnull, "--rootdir", str(PROJECT))
PYTEST += ("-p", "no:cacheprovider", "-p", "pgshard.django.pytest_plugin")


@once
@pytest.mark.usefixtures("untouched")
def test_fixtures_of_pytest_django_reach_shards(world):
    assert "24 passed" in run(world, *PYTEST, "photos/tests.py", "photos/pytests.py")


@once
@pytest.mark.usefixtures("untouched")
def test_each_process_of_xdist_has_its_own_shards(world):
    assert "13 passed" in run(world, *PYTEST, "-n", "2", "photos/pytests.py")


@once
@pytest.mark.usefixtures("untouched")
def test_shards_are_kept_and_made_again_if_their_number_changes(world):
    line = (*PYTEST, "--reuse-db", "photos/pytests.py", "-k", "own_shard")
    try:
        assert "1 passed" in run(world, *line)
        kept = databases(world)
        assert kept == ["test_app_shards", "test_website"]
        with psycopg.connect(world.url("db1"), dbname=kept[0]) as connection:
            rows = connection.execute("SELECT key, shard FROM pgshard_test.key_shard").fetchall()
        assert dict(rows)["1"] == 1
        assert len({dict(rows)[key] for key in ("1", "9", "17", "1025", "-7")}) == 5
        assert "1 passed" in run(world, *line)
        assert "1 passed" in run(world, *line, PGSHARD_TEST_SHARDS="6")
        with psycopg.connect(world.url("db1"), dbname=kept[0]) as connection:
            assert connection.execute("SELECT shards FROM pgshard.cluster").fetchone() == (6,)
    finally:
        with world.connect("db1") as connection:
            for name in databases(world):
                connection.execute(f"DROP DATABASE {name}")


def test_constraints_of_the_real_number_of_shards_are_dropped(world, db):
    """Those of `shards makesql --key-checks`; others stay."""
    from pgshard.django.cluster import cluster
    from pgshard.django.test import _prepare

    host = cluster().config.hosts["db1"]
    with world.connect("db1") as connection:
        connection.execute("CREATE DATABASE test_constraints")
    try:
        with psycopg.connect(world.url("db1"), dbname="test_constraints") as connection:
            connection.execute(
                "CREATE SCHEMA shard_0001; CREATE TABLE shard_0001.photos_photo (user_id bigint,"
                " CONSTRAINT photos_photo_user_id_shard CHECK (mod(user_id, 16) = 1),"
                " CONSTRAINT mine CHECK (user_id > 0))"
            )
        for _ in range(2):
            _prepare(host, "test_constraints", "shard_")
        with psycopg.connect(world.url("db1"), dbname="test_constraints") as connection:
            names = connection.execute(
                "SELECT conname FROM pg_constraint WHERE conrelid = 'shard_0001.photos_photo'"
                "::regclass AND contype = 'c'"
            ).fetchall()
        assert names == [("mine",)]
    finally:
        with world.connect("db1") as connection:
            connection.execute("DROP DATABASE test_constraints")


@pytest.mark.parametrize("wanted", [0, 8193, "8", True])
def test_a_wrong_number_of_shards_is_refused(db, settings_of, wanted):
    from django.core.exceptions import ImproperlyConfigured

    from pgshard.django.test import begin

    settings_of.PGSHARD_TEST_SHARDS = wanted
    with pytest.raises(ImproperlyConfigured, match=r"PGSHARD_TEST_SHARDS is .*1 to 8192"):
        begin()


@pytest.fixture
def settings_of(db):
    from django.conf import settings

    yield settings
    del settings.PGSHARD_TEST_SHARDS
