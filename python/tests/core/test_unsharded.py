"""An unsharded host, which serves all shards from one schema of ordinary tables: the config, what
the host recorded, and where a shard's rows are."""

import pickle

import pytest
from one_database import LEGACY, OneDatabase, unsharded

from pgshard import (
    Config,
    ConfigError,
    Directory,
    HostDiffers,
    LegacyId,
    Placement,
    RecoveryContext,
    WrongId,
    connect,
    ids,
)
from pgshard.layout import Unrouted, schema_problem
from pgshard.stale import MoveSignal

SHARDED = """[cluster]
shards = 16
epoch = "2011-01-01T00:00:00Z"
[hosts.db1]
url = "postgres://app@10.0.0.1/app"
[hosts.db2]
url = "postgres://app@10.0.0.2/app"
[map]
version = 1
[map.placement]
db1 = "0-7"
db2 = "8-15"
"""
TEXT = unsharded(SHARDED, 'unrouted = "log"\n')


def parse(text):
    return Config.parse(text, "pgshard.toml")


def test_the_config_is_read():
    config = parse(TEXT)
    host = config.unsharded
    assert (host.name, host.whole, host.unrouted) == ("db1", "app", Unrouted.LOG)
    assert config.legacy_below == LEGACY
    other = config.hosts["db2"]
    assert (other.whole, other.unrouted) == (None, Unrouted.REFUSE)
    assert parse(SHARDED).unsharded is None
    assert parse(unsharded(SHARDED)).unsharded.unrouted is Unrouted.REFUSE
    # It may have no shard, as after the switch.
    gone = TEXT.replace('db1 = "0-15"', 'db2 = "0-15"')
    assert parse(gone).unsharded.name == "db1"


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        ('"0-15"', '"0-10"', "gets 11 of 16 shards"),
        ('schema = "app"\n', "", "[hosts.db1] has no schema"),
        ('"app"\n', '"pg_app"\n', "PostgreSQL's or pgshard's"),
        ('"app"\n', '"pgshard_map"\n', "PostgreSQL's or pgshard's"),
        ('"app"\n', '"shard_0007"\n', "named as a shard's"),
        ('"unsharded"', '"unshard"', 'layout is "sharded" or'),
        ('"log"', '"warn"', 'unrouted is "refuse" or "log"'),
        ('layout = "unsharded"\n', "", "schema is for an unsharded host"),
        ('layout = "unsharded"\n', "", "unrouted is for an unsharded host"),
        (
            "[hosts.db2]\n",
            '[hosts.db2]\nlayout = "unsharded"\nschema = "b"\n',
            '"db2" is unsharded, and so is "db1"',
        ),
        (f"= {LEGACY}\n", "= 0\n", "legacy_below must be 1 or more"),
        (f"= {LEGACY}\n", "= 9223372036854775807\n", "take an earlier epoch"),
    ],
)
def test_mistakes_are_named(before, after, says):
    assert before in TEXT
    with pytest.raises(ConfigError) as error:
        parse(TEXT.replace(before, after))
    assert says in str(error.value)
    assert all(line.startswith("pgshard.toml: ") for line in str(error.value).splitlines())


def test_names_that_no_schema_of_all_shards_has():
    for name in ("app", "public", "shard_app", "shards", "pgsharding", 'Ü"', "x" * 63):
        assert schema_problem(name, "shard_") is None
    for name in (
        "",
        "a\0b",
        "x" * 64,
        "pg_toast",
        "pgshard",
        "pgshard_map",
        "information_schema",
        "shard_0007",
        "shard_7",
        "shard_0007__left_e1",
    ):
        assert schema_problem(name, "shard_"), name


@pytest.fixture
def path(tmp_path):
    made = tmp_path / "pgshard.toml"
    made.write_text(TEXT)
    return made


def test_the_schema_is_that_of_the_host_where_the_shard_is(path):
    directory = Directory.open(path)
    assert directory.unsharded.name == "db1"
    assert {directory.schema(shard) for shard in range(16)} == {"app"}
    directory.learn(7, Placement("db2", 2))
    assert directory.unsharded is None
    assert (directory.schema(6), directory.schema(7)) == ("app", "shard_0007")
    assert directory.schema_at(Placement("db1", 1), 7) == "app"
    path.write_text(TEXT.replace('db1 = "0-15"', 'db2 = "0-15@2"').replace("n = 1\n", "n = 2\n"))
    directory.refresh()
    assert (directory.schema(6), directory.unsharded) == ("shard_0006", None)


def test_a_map_with_a_part_of_the_shards_is_left_alone(path):
    directory = Directory.open(path)
    split = Config.parse(SHARDED.replace("version = 1", "version = 2"), path).map
    with pytest.raises(ConfigError, match="the map gives db1 8 of 16 shards"):
        directory.take(split)
    assert directory.schema(9) == "app"


@pytest.mark.parametrize(
    "text", [TEXT, SHARDED.replace("[cluster]\n", f"[cluster]\nlegacy_below = {LEGACY}\n")]
)
def test_an_id_from_before_the_shards_names_none(path, text):
    path.write_text(text)
    directory = Directory.open(path)
    for id in (0, 7, LEGACY - 1):
        with pytest.raises(LegacyId, match="name the key") as error:
            directory.shard_of_id(id)
        assert (error.value.id, error.value.legacy_below) == (id, LEGACY)
        assert isinstance(error.value, WrongId)
        assert str(pickle.loads(pickle.dumps(error.value))) == str(error.value)
    assert directory.shard_of_id(ids.encode(1_000_000, 7, 1)) == 7
    assert directory.shard_of_id(-(1 << 62) | 7 << 10) == 7
    # What is not below the limit is an ID of a shard, or of none.
    with pytest.raises(WrongId) as error:
        directory.shard_of_id(LEGACY)
    assert not isinstance(error.value, LegacyId)


def test_a_limit_that_changes_is_not_taken(path, caplog):
    directory = Directory.open(path)
    path.write_text(TEXT.replace(str(LEGACY), str(LEGACY + 1)))
    directory.refresh()
    assert "[cluster] legacy_below has changed" in caplog.text
    assert directory.config.legacy_below == LEGACY


TABLES = "CREATE TABLE app.photos (id bigserial PRIMARY KEY, user_id bigint, title text)"


@pytest.fixture(scope="module")
def old():
    made = OneDatabase(TABLES)
    yield made
    made.close()


def met(world):
    """The directory, after it has met the unsharded host."""
    directory = Directory.open(world.path)
    host = directory.host("db1")
    with connect(host) as connection:
        directory.meet(connection, host)
    return directory


def test_a_host_is_met_that_recorded_the_same(old):
    old.configure()
    directory = met(old)
    context = RecoveryContext(directory)
    try:
        _, look = context.questions("db1").ask(7, MoveSignal.SIGNPOST)
    finally:
        context.close()
    assert (look.state, look.epoch) == ("serving", 1)


def test_a_host_of_another_layout_is_sent_nothing(old):
    """Sharded in one of the two, another schema, another limit; a context that looks is refused,
    too."""
    for text, says in (
        (old.sharded, "recorded that it is unsharded, the config says sharded"),
        (unsharded(old.sharded, schema="other"), 'from the schema "app", the config says "other"'),
        (unsharded(old.sharded, legacy_below=0), "below 1000000 name no shard, the config says 0"),
        (
            unsharded(old.sharded).replace("shards = 16 ", 'key = "string:sha256"\nshards = 16 '),
            "it recorded that keys are integer, the config says string:sha256",
        ),
    ):
        old.path.write_text(text)
        with pytest.raises(HostDiffers) as error:
            met(old)
        assert says in str(error.value)
        assert "host db1" in str(error.value)
        context = RecoveryContext(Directory.open(old.path))
        with pytest.raises(HostDiffers):
            context.questions("db1").control.run(lambda c: c.execute("SELECT 1"))
        context.close()


def test_a_host_that_recorded_nothing_is_no_unsharded_one(old):
    other = OneDatabase(TABLES)
    try:
        with other.superuser("db1") as connection:
            connection.execute("DELETE FROM pgshard.whole")
        with pytest.raises(HostDiffers, match="serves no shards yet"):
            met(other)
        with other.superuser("db1") as connection:
            connection.execute("DELETE FROM pgshard.cluster")
        with pytest.raises(HostDiffers, match="recorded nothing"):
            met(other)
        with other.superuser("db1") as connection:
            connection.execute("DROP SCHEMA pgshard CASCADE")
        with pytest.raises(HostDiffers, match="recorded nothing"):
            met(other)
    finally:
        other.close()


def test_sessions_of_sqlalchemy_are_refused_by_name(path):
    sqlalchemy = pytest.importorskip("pgshard.sqlalchemy")
    for kind in (sqlalchemy.Shards, sqlalchemy.AsyncShards):
        with pytest.raises(ConfigError, match="host db1 is unsharded"):
            kind.open(path)
