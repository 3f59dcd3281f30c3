"""The example application: it loses nothing while its shards move."""

import os
import re
import shlex
import subprocess
import sys

import pytest
from one_database import unsharded
from world import COMMAND, ROOT, VERSION, World, programs


@pytest.mark.skipif(VERSION != "18", reason="once is enough: versions are tested elsewhere")
def test_the_demonstration_ends_well():
    env = {
        **os.environ,
        "PGSHARD": COMMAND,
        "PGSHARD_DEMO_PYTHON": sys.executable,
        "PGSHARD_PG_BIN": programs(VERSION),
    }
    for name in ("DJANGO_SETTINGS_MODULE", "PGSHARD_CONFIG"):
        env.pop(name, None)
    done = subprocess.run(
        [ROOT / "script" / "demo-django", "--moves", "2"], env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "nothing is lost, nothing is there twice" in done.stdout
    assert "its mover is killed" in done.stderr
    calls, failed = map(int, re.search(r"(\d+) calls, (\d+) failed", done.stdout).groups())
    assert (calls > 0, failed) == (True, 0)


def test_the_examples_own_tests_pass(tmp_path):
    world = World(shards=4)
    try:
        env = {
            **os.environ,
            "PGSHARD_CONFIG": str(world.path),
            "EXAMPLE_FOLDER": str(tmp_path),
            "PGSHARD": COMMAND,
        }
        env.update(PYTHONPATH=str(ROOT / "python"), DJANGO_SETTINGS_MODULE="website.settings")
        for line in (["shards", "makesql"], ["test", "--noinput", "photos"]):
            line = [sys.executable, "manage.py", *line]
            done = subprocess.run(
                line, env=env, cwd=ROOT / "python" / "example", capture_output=True, text=True
            )
            assert done.returncode == 0, done.stdout + done.stderr
        assert "Ran 4 tests" in done.stderr
    finally:
        world.close()


WIDE = """CREATE SEQUENCE wide;
CREATE FUNCTION wide() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    ms bigint := extract(epoch FROM clock_timestamp() - '2026-01-01T00:00:00Z') * 1000;
    there bigint;
BEGIN
    SELECT shard INTO STRICT there FROM pgshard_test.key_shard WHERE key = NEW.user_id::text;
    NEW.id := (ms << 23) | (there << 10) | (nextval('app.wide') % 1024);
    RETURN NEW;
END $$;
CREATE TRIGGER wide BEFORE INSERT ON photos_photo FOR EACH ROW EXECUTE FUNCTION wide();
CREATE TRIGGER wide BEFORE INSERT ON photos_like FOR EACH ROW EXECUTE FUNCTION wide();
CREATE TRIGGER wide BEFORE INSERT ON photos_follow FOR EACH ROW EXECUTE FUNCTION wide();"""


def test_the_examples_own_tests_pass_on_one_database(tmp_path):
    """The same code and the same tests as on shards: with wide IDs, and with those of ordinary
    sequences, where an ID alone names no shard; and on shards before there are any."""
    world = World(shards=4)
    try:
        sharded = world.path.read_text()
        (tmp_path / "with_wide_ids.py").write_text(
            f"from website.settings import *\n\nPGSHARD_TEST_SQL = {WIDE!r}\n"
        )
        (tmp_path / "on_shards.py").write_text(
            'from website.settings import *\n\nPGSHARD_TEST_LAYOUT = "sharded"\n'
        )
        env = {
            **os.environ,
            "PGSHARD_CONFIG": str(world.path),
            "EXAMPLE_FOLDER": str(tmp_path),
            "PGSHARD": COMMAND,
            "PYTHONPATH": os.pathsep.join([str(ROOT / "python"), str(tmp_path)]),
        }
        command = (sys.executable, "manage.py")
        test = ("test", "--noinput", "photos")
        for more, module, *lines in (
            ("", "with_wide_ids", test),
            ('unrouted = "log"\n', "website.settings", (*test, "--parallel", "2")),
            ("", "on_shards", ("shards", "makesql"), test),
        ):
            world.path.write_text(unsharded(sharded, more))
            done = subprocess.run(
                ["sh", "-ec", "; ".join(shlex.join([*command, *line]) for line in lines)],
                env={**env, "DJANGO_SETTINGS_MODULE": module},
                cwd=ROOT / "python" / "example",
                capture_output=True,
                text=True,
            )
            assert done.returncode == 0, done.stdout + done.stderr
            assert "Ran 4 tests" in done.stderr
            # Nothing is left.
            with world.connect("db1") as connection:
                left = connection.execute("SELECT datname FROM pg_database WHERE datname ~ 'test'")
                assert left.fetchall() == []
    finally:
        world.close()


def test_the_example_has_all_its_migrations(tmp_path):
    config = '[cluster]\nshards = 4\nepoch = "2011-01-01T00:00:00Z"\n[hosts.db1]\nurl = "postgres://app@127.0.0.1:1/app"\n'
    path = tmp_path / "pgshard.toml"
    path.write_text(f'{config}[map]\nversion = 1\n[map.placement]\ndb1 = "0-3"\n')
    env = {
        **os.environ,
        "PGSHARD_CONFIG": str(path),
        "EXAMPLE_FOLDER": str(tmp_path),
        "PYTHONPATH": str(ROOT / "python"),
    }
    env["DJANGO_SETTINGS_MODULE"] = "website.settings"
    manage = str(ROOT / "python" / "example" / "manage.py")
    for line in (["makemigrations", "--check"], ["check", "--fail-level", "WARNING"]):
        done = subprocess.run(
            [sys.executable, manage, *line], env=env, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
