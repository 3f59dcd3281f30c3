"""The vectors that every client of a cluster must satisfy. Cargo runs the same files, in
`vectors.rs` of router and config."""

import datetime
import json
import uuid
from pathlib import Path

import pytest

from pgshard import (
    Config,
    ConfigError,
    Directory,
    KeyKind,
    MoveSignal,
    Placement,
    ShardMap,
    WrongId,
    WrongKey,
    ids,
    met,
)
from pgshard.identity import Identity, Record, Records, timeline_of
from pgshard.keys import key_of_text, shard_of_key
from pgshard.stale import Do, Look, asks_about_names, judge, judge_peer, repeatable
from pgshard.template import render
from pgshard.values import Fold, hash_of, shard_of_hash

FOLDER = Path(__file__).parents[3] / "tests" / "vectors"


def cases(file: str, name: str) -> list:
    found = json.loads((FOLDER / f"{file}.json").read_text(encoding="utf-8"))[name]
    assert found, f"{file}.json has cases of {name}"
    return found


@pytest.mark.parametrize("case", cases("keys", "keys"), ids=str)
def test_keys(case):
    kind = KeyKind(case["kind"])
    key = key_of_text(kind, case["text"])
    assert (shard_of_key(kind, key, 4096), shard_of_key(kind, key, 2000)) == (
        case["of_4096"],
        case["of_2000"],
    )


@pytest.mark.parametrize("case", cases("keys", "refused"), ids=str)
def test_texts_that_are_no_keys(case):
    kind = KeyKind(case["kind"])
    with pytest.raises(WrongKey):
        shard_of_key(kind, key_of_text(kind, case["text"]), 4096)


@pytest.mark.parametrize("key", [True, 0.5, "31341", None, uuid.UUID(int=7), b"1"])
def test_values_that_are_no_integer_keys(key):
    with pytest.raises(WrongKey, match="integer"):
        shard_of_key(KeyKind.INTEGER, key, 4096)


def test_a_uuid_and_its_text_do_not_meet():
    with pytest.raises(WrongKey):
        shard_of_key(KeyKind.UUID, str(uuid.UUID(int=7)), 4096)
    with pytest.raises(WrongKey):
        shard_of_key(KeyKind.STRING, uuid.UUID(int=7), 4096)
    with pytest.raises(WrongKey, match="surrogate"):
        shard_of_key(KeyKind.STRING, "\ud800", 4096)


@pytest.mark.parametrize("case", cases("ids", "ids"), ids=str)
def test_ids(case):
    id = ids.encode(case["ms"], case["shard"], case["sequence_value"])
    assert str(id) == case["id"]
    assert ids.decode(id) == (case["ms"], case["shard"], case["seq"])


@pytest.mark.parametrize("case", cases("ids", "times"), ids=str)
def test_times_of_ids(case):
    time = ids.time_of_id(int(case["id"]), case["epoch_ms"])
    assert (
        time.isoformat(timespec="auto").replace("+00:00", "Z").replace("000Z", "Z") == case["time"]
    )
    assert ids.ms_of_time(time, case["epoch_ms"]) == ids.decode(int(case["id"])).ms


@pytest.mark.parametrize("case", cases("ids", "in_cluster"), ids=str)
def test_ids_in_a_cluster(case):
    if case["shard"] is None:
        with pytest.raises(WrongId, match="names shard"):
            ids.shard_of_id(int(case["id"]), case["shards"])
    else:
        assert ids.shard_of_id(int(case["id"]), case["shards"]) == case["shard"]


def test_what_is_no_id():
    for number in (1 << 63, -(1 << 63) - 1):
        with pytest.raises(WrongId):
            ids.decode(number)
    for fields in ((ids.MS_MAX + 1, 0, 0), (-1, 0, 0), (0, 8192, 0), (0, 0, -1)):
        with pytest.raises(ValueError, match=r"bits|negative"):
            ids.encode(*fields)


@pytest.mark.parametrize("case", cases("maps", "maps"), ids=str)
def test_maps(case):
    if "says" in case:
        with pytest.raises(ConfigError) as error:
            ShardMap.of(1, case["shards"], case["lists"], "x")
        assert all(says in str(error.value) for says in case["says"]), str(error.value)
        return
    map = ShardMap.of(1, case["shards"], case["lists"], "x")
    runs = case["runs"]
    expected = [
        Placement(host, epoch) for first, last, host, epoch in runs for _ in range(first, last + 1)
    ]
    assert [map.placement(shard) for shard in range(map.shards)] == expected
    assert (
        ShardMap.of(1, case["shards"], {host: map.ranges(host) for host in set(map.hosts)}, "x")
        == map
    )


def value(case):
    if not isinstance(case, dict):
        return case
    (kind, text), *_ = case.items()
    return uuid.UUID(text) if kind == "uuid" else datetime.date.fromisoformat(text)


@pytest.mark.parametrize("case", cases("lookups", "hashes"), ids=str)
def test_hashes_of_lookups(case):
    hash = hash_of([value(one) for one in case["values"]], Fold(case["fold"]))
    assert hash.hex() == case["hash"]
    assert shard_of_hash(case["lookup"], hash, 4096) == case["shard_of_4096"]


def look(case) -> Look:
    row, incoming = case["row"], case["incoming"]
    if row is None:
        return Look(incoming=incoming)
    ago = row["last_fence_ago_ms"]
    seconds = None if ago is None else ago / 1000
    return Look(row["state"], row["epoch"], row["peer"], row["overdue"], seconds, None, incoming)


def said(verdict) -> list:
    parts = [verdict.do.value, verdict.epoch, verdict.peer]
    while parts[-1] is None:
        parts.pop()
    return parts


@pytest.mark.parametrize("case", cases("stale", "judge"), ids=str)
def test_what_an_error_means(case):
    assert said(judge(MoveSignal(case["met"]), look(case), 0.010, 3)) == case["do"]


@pytest.mark.parametrize("case", cases("stale", "judge_peer"), ids=str)
def test_what_a_peer_says(case):
    verdict = judge_peer(4, look(case))
    assert said(verdict) == case["do"]
    if verdict.do is Do.ASK:
        assert verdict.epoch > 4, "onward goes up, so it ends"


@pytest.mark.parametrize("case", cases("stale", "met"), ids=str)
def test_what_an_error_met(case):
    found = met(case["sqlstate"], case["message"])
    assert (found and found.value) == case["met"]


@pytest.mark.parametrize("case", cases("statements", "statements"), ids=lambda case: case["sql"])
def test_statements(case):
    assert repeatable(case["sql"]) is case["repeatable"]


@pytest.mark.parametrize("case", cases("statements", "asking"), ids=lambda case: case["sql"])
def test_questions_about_names(case):
    assert asks_about_names(case["sql"]) is case["asks"]


@pytest.mark.parametrize("case", cases("templates", "templates"), ids=lambda case: case["sql"])
def test_templates(case):
    assert render(case["sql"], "s") == case["rendered"]


@pytest.mark.parametrize("case", cases("templates", "plain"), ids=lambda case: case["sql"])
def test_templates_of_shards(case):
    assert render(case["sql"], "shard_0007", 7) == case["rendered"]


@pytest.mark.parametrize("name", ["user", "s", "1s", "S1", "s1$", "s-1", "é1", "s1\n", ""])
def test_other_names_are_quoted(name):
    assert render("{shard}.t", name) == f'"{name}".t'


@pytest.mark.parametrize("case", cases("configs", "configs"), ids=lambda case: None)
def test_configs(case, tmp_path):
    path = tmp_path / "pgshard.toml"
    if "config" not in case:
        with pytest.raises(ConfigError) as error:
            Config.parse(case["text"], path)
        assert case["says"]
        assert all(says in str(error.value) for says in case["says"]), str(error.value)
        assert all(never not in str(error.value) for never in case.get("never", ()))
        assert all(problem.startswith(str(path)) for problem in str(error.value).splitlines())
        return
    config, expected = Config.parse(case["text"], path), case["config"]
    assert (config.shards, config.epoch_ms, config.prefix) == (
        expected["shards"],
        expected["epoch_ms"],
        expected["prefix"],
    )
    assert config.key.value == expected["key"]
    hosts = {
        name: {"address": host.address, "pool_size": host.pool_size}
        for name, host in config.hosts.items()
    }
    assert hosts == expected["hosts"]
    assert config.map.version == expected["map"]["version"]
    assert {host: config.map.ranges(host) for host in set(config.map.hosts)} == expected["map"][
        "lists"
    ]
    assert "hunter2" not in repr(config) + repr(config.hosts)


THREE = """[cluster]
shards = 3
epoch = "2011-01-01T00:00:00Z"
[hosts.db0]
url = "postgres://app@10.0.0.1/app"
[map]
version = 1
[map.placement]
db0 = "0-2"
"""


@pytest.mark.parametrize("case", cases("learned", "histories"), ids=str)
def test_what_was_learned_against_the_map(case, tmp_path):
    path = tmp_path / "pgshard.toml"
    path.write_text(THREE)
    directory = Directory.open(path)
    before = [0, 0, 0]
    for news in case["news"]:
        if "map" in news:
            version, epochs = news["map"]
            directory.take(ShardMap(version, ("db0",) * 3, tuple(epochs)))
        else:
            shard, host, epoch = news["look"]
            directory.learn(shard, Placement(host, epoch))
        now = [directory.place(shard).epoch for shard in range(3)]
        assert all(a <= b for a, b in zip(before, now)), "never back to an older epoch"
        before = now
    assert [list(directory.place(shard)) for shard in range(3)] == case["places"]


@pytest.mark.parametrize("case", cases("identity", "timelines"), ids=str)
def test_timelines_of_log_files(case):
    assert timeline_of(case["file"]) == case["timeline"]


@pytest.mark.parametrize("case", cases("identity", "judge"), ids=str)
def test_who_is_the_host(case):
    refusal = Record(*case["known"]).refusal(Identity(*case["identity"]))
    assert refusal is case["refused"] is None or refusal.startswith(case["refused"])


@pytest.mark.parametrize("case", cases("identity", "joined"), ids=str)
def test_what_is_known_of_a_host_only_grows(case):
    assert Record(*case["one"]).joined(Record(*case["other"])) == Record(*case["both"])


@pytest.mark.parametrize("case", cases("identity", "awaited"), ids=str)
def test_which_server_is_awaited(case):
    records = Records()
    for record in case["records"]:
        records.add(Record(*record))
    refusal = records.refusal(Identity(*case["identity"]))
    if case["refused"] is None:
        assert refusal is None
    else:
        assert refusal is not None
        assert refusal.startswith(case["refused"])


@pytest.mark.parametrize("case", cases("identity", "replaced_by"), ids=str)
def test_only_who_descends_from_the_host_takes_its_place(case):
    records = [Record(*record) for record in case["records"]]
    assert Record(*case["known"]).replaced_by(records) == (case["by"] and Record(*case["by"]))
