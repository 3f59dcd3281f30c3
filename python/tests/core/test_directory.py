"""The directory follows the map, in the file and in a database table."""

import logging
import os
import time

import psycopg
import pytest
from world import World

from pgshard import Config, ConfigError, Directory, UnknownHost

TEXT = """[cluster]
shards = 4
epoch = "2011-01-01T00:00:00Z"
[hosts.db1]
url = "postgres://app@10.0.0.1/app"
[map]
version = 1
[map.placement]
db1 = "0-3"
"""


@pytest.fixture
def path(tmp_path):
    made = tmp_path / "pgshard.toml"
    made.write_text(TEXT)
    return made


def replace(path, text):
    """Replaces the file as the command does: by another file of the same name."""
    other = path.with_suffix(".new")
    other.write_text(text)
    os.replace(other, path)


def eventually(condition):
    end = time.monotonic() + 30
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    assert condition()


MOVED = TEXT.replace("version = 1", "version = 2").replace(
    'db1 = "0-3"', 'db1 = "0-2"\ndb2 = "3@2"'
)
MOVED = MOVED.replace("[map]", '[hosts.db2]\nurl = "postgres://app@10.0.0.2/app"\n[map]')


def test_a_changed_file_is_taken_with_its_new_hosts(path):
    directory = Directory.open(path)
    with pytest.raises(UnknownHost):
        directory.host("db2")
    replace(path, MOVED)
    eventually(lambda: directory.place(3) == ("db2", 2))
    assert directory.host("db2").address == "app@10.0.0.2:5432/app"


def test_a_host_that_was_just_added_is_met_before_the_map_has_it(path):
    directory = Directory.open(path)
    replace(path, MOVED.replace("version = 2", "version = 1"))
    assert directory.host("db2").name == "db2"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[cluster", "this is not TOML"),
        (
            TEXT.replace('"0-3"', '"0-2"').replace("version = 1", "version = 2"),
            "shard 3 is on no host",
        ),
        (
            TEXT.replace("shards = 4", "shards = 3").replace("0-3", "0-2"),
            "[cluster] shards has changed",
        ),
        (TEXT.replace("2011", "2012"), "[cluster] epoch_ms has changed"),
    ],
)
def test_a_bad_file_takes_nothing_away_and_is_told_once(path, text, says, caplog):
    directory = Directory.open(path)
    replace(path, text)
    with caplog.at_level(logging.WARNING, "pgshard"):
        directory.refresh()
        directory.refresh()
    assert [says in record.getMessage() for record in caplog.records] == [True]
    assert directory.place(3) == ("db1", 1)
    replace(path, MOVED)
    directory.refresh()
    assert directory.place(3) == ("db2", 2)


def test_an_older_map_is_left_alone(path):
    replace(path, MOVED)
    directory = Directory.open(path)
    replace(path, TEXT)
    directory.refresh()
    assert directory.place(3) == ("db2", 2)


def test_a_missing_file_says_how_to_make_one(tmp_path):
    with pytest.raises(
        ConfigError, match=r"pgshard.toml: there is no such file: `pgshard init` writes one"
    ):
        Directory.open(tmp_path / "pgshard.toml")


def test_where_the_config_is_found(monkeypatch):
    monkeypatch.setenv("PGSHARD_CONFIG", "elsewhere.toml")
    assert str(Config.find()) == "elsewhere.toml"
    assert str(Config.find("given.toml")) == "given.toml"
    monkeypatch.setenv("PGSHARD_CONFIG", "")
    assert str(Config.find()) == "pgshard.toml"


def test_passwords_are_read_anew_and_never_shown(path, tmp_path, monkeypatch):
    secret = tmp_path / "secret"
    secret.write_text("hunter2\n")
    replace(path, TEXT.replace("[map]", 'password_file = "secret"\n[map]'))
    host = Directory.open(path).host("db1")
    assert host.connect_args()["password"] == "hunter2"
    secret.write_text("hunter3\n")
    assert host.connect_args()["password"] == "hunter3"
    assert "hunter" not in repr(host) + host.address + host.server_conninfo()
    secret.unlink()
    with pytest.raises(ConfigError, match="cannot read the password file"):
        host.connect_args()
    replace(path, TEXT.replace("[map]", 'password_env = "DB1"\n[map]'))
    host = Directory.open(path).host("db1")
    with pytest.raises(ConfigError, match="environment variable DB1 for the password is not set"):
        host.connect_args()
    monkeypatch.setenv("DB1", "hunter4")
    assert host.connect_args()["password"] == "hunter4"


def test_certificates_are_found_beside_the_file(path, tmp_path):
    replace(
        path, TEXT.replace("10.0.0.1/app", "10.0.0.1/app?sslmode=verify-full&sslrootcert=ca.pem")
    )
    assert Directory.open(path).host("db1").connect_args()["sslrootcert"] == str(
        tmp_path / "ca.pem"
    )


def test_a_file_of_passwords_is_found_beside_the_file(path, tmp_path):
    replace(path, TEXT.replace("10.0.0.1/app", "10.0.0.1/app?passfile=db1.passfile"))
    host = Directory.open(path).host("db1")
    assert host.connect_args()["passfile"] == str(tmp_path / "db1.passfile")
    assert str(tmp_path / "db1.passfile") in host.server_conninfo()


def test_a_server_of_dev_up_asks_for_the_password_in_the_file():
    world = World(shards=2, asks=True)
    try:
        with world.connect("db1") as connection:
            assert connection.info.user == "app"
            port = connection.info.port
        for user in ("app", "postgres"):
            with pytest.raises(
                psycopg.OperationalError,
                match=r"no password supplied|password authentication failed",
            ):
                psycopg.connect(
                    f"host=127.0.0.1 port={port} user={user} dbname=app passfile=/nonexistent"
                )
    finally:
        world.close()


def test_a_map_in_a_database_is_followed_and_copied(world, tmp_path):
    text = world.path.read_text()
    head = text[: text.index("# Which shards")]
    path = tmp_path / "pgshard.toml"
    url = f'url = "{world.url("db1")}"'
    path.write_text(
        head.replace('migrations = "migrations"', "")
        + f'[map]\nstore = "postgres"\n{url}\ncache = "copy.toml"\n'
    )
    with world.connect("db1") as connection:
        connection.execute("DROP SCHEMA IF EXISTS pgshard_map CASCADE")
        tables = world_file("migrations/store/0001_map.sql")
        connection.execute(tables)
        publish = (
            "SELECT published FROM pgshard_map.publish(%s, %s, 16, %s::text::jsonb, 'test', 'test')"
        )
        first = '{"db1": "0-7", "db2": "8-15"}'
        assert connection.execute(publish, [None, 1, first]).fetchone() == (True,)
        directory = Directory.open(path)
        assert directory.place(0) == ("db1", 1)
        moved = '{"db1": "1-7", "db2": "0@2, 8-15"}'
        assert connection.execute(publish, [1, 2, moved]).fetchone() == (True,)
        eventually(lambda: directory.place(0) == ("db2", 2))
        eventually(lambda: "version = 2" in (tmp_path / "copy.toml").read_text())
        # While that database is away, a process starts with the copy.
        away = path.read_text().replace(url, 'url = "postgres://app@127.0.0.1:1/app"')
        path.write_text(away)
        assert Directory.open(path).place(0) == ("db2", 2)
        (tmp_path / "copy.toml").unlink()
        with pytest.raises(
            ConfigError, match=r"the map's database app@127.0.0.1:1/app cannot be asked"
        ):
            Directory.open(path)
        connection.execute("DROP SCHEMA pgshard_map CASCADE")


def world_file(name):
    from world import ROOT

    return (ROOT / name).read_text()
