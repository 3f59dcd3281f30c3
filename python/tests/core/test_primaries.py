"""A former primary and a standby are distinguished from the host."""

import sys
import threading
import time

import psycopg
import pytest
from world import World, control

from pgshard import Directory, MoveSignal, RecoveryContext, WrongServer, connect, primary_watch
from pgshard.identity import Record

SHARD = 0
INSERT = "INSERT INTO shard_0000.photos (user_id, title) VALUES (%s, %s)"


@pytest.fixture(scope="module")
def made():
    made = World(shards=4)
    try:
        made.migrate("CREATE TABLE {shard}.photos (user_id bigint, title text PRIMARY KEY);\n")
        yield made
    finally:
        made.close()


def eventually(condition):
    end = time.monotonic() + 60
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    assert condition()


class Writer(threading.Thread):
    """Writes one row at a time over a connection that it keeps. Notes which rows were acknowledged,
    and when they were sent."""

    def __init__(self, host, name):
        super().__init__()
        self.host, self.label, self.rows, self.stop = host, name, [], threading.Event()

    def run(self):
        connection = None
        number = 0
        while not self.stop.is_set():
            number += 1
            title = f"{self.label} {number}"
            began = time.monotonic()
            try:
                if connection is None or connection.closed:
                    connection = connect(self.host)
                connection.execute(INSERT, (SHARD, title))
            except psycopg.Error:
                time.sleep(0.005)
            else:
                self.rows.append((title, began))
        if connection is not None:
            connection.close()


def test_a_former_primary_gets_no_more_writes(made, tmp_path, monkeypatch):
    """The standby is promoted while the primary lives on. Within seconds nobody writes to the
    former primary and nobody new connects to it; and a process that knows of the later one refuses
    it even if it is the only address."""
    monkeypatch.setattr(primary_watch, "EVERY", 0.1)
    # However slow the machine is, both addresses get to answer.
    monkeypatch.setattr(sys.modules["pgshard.connect"], "OTHERS_MAX", 60.0)
    standby = made.standby("db1")
    before = made.path.read_text()
    port = Directory.open(made.path).host("db1").params["port"]
    both = f"postgres://app@127.0.0.1:{port},127.0.0.1:{standby.port}/app?target_session_attrs=read-write"
    alone = f"postgres://app@127.0.0.1:{port}/app"
    path = tmp_path / "pgshard.toml"
    path.write_text(before.replace(alone, both).replace('migrations = "migrations"', ""))
    assert both in path.read_text()
    directory = Directory.open(path)
    host = directory.host("db1")
    writers = [Writer(host, f"w{number}") for number in range(2)]
    for writer in writers:
        writer.start()
    try:
        eventually(lambda: all(len(writer.rows) > 20 for writer in writers))
        assert host.known.record.timeline == 1
        idle = connect(host)
        standby.promote()
        eventually(lambda: host.known.record.timeline == 2)
        # Every row that is acknowledged from now on must be there.
        known = time.monotonic()
        counts = [len(writer.rows) for writer in writers]
        eventually(lambda: all(len(writer.rows) > n + 20 for writer, n in zip(writers, counts)))
        with pytest.raises(psycopg.OperationalError):
            idle.execute("SELECT 1")
        idle.close()
    finally:
        for writer in writers:
            writer.stop.set()
        for writer in writers:
            writer.join()
    with psycopg.connect(
        f"host=127.0.0.1 port={standby.port} user=app dbname=app", autocommit=True
    ) as promoted:
        there = {title for (title,) in promoted.execute("SELECT title FROM shard_0000.photos")}
    after = [title for writer in writers for title, began in writer.rows if began > known]
    assert len(after) >= 40
    assert [title for title in after if title not in there] == []

    # A new process asks both addresses, although the former primary comes first.
    again = Directory.open(path)
    with connect(again.host("db1")) as connection:
        assert connection.info.port == standby.port
        assert connection.server.timeline == 2
    # A process with only the former primary's address learns of the later one from the records that
    # the hosts keep of each other.
    made.path.write_text(before.replace(alone, both))
    control(made.server("db1"), "stop", "-m", "immediate")
    made.run("bootstrap")
    control(made.server("db1"), "start")
    made.path.write_text(before)
    old = RecoveryContext(Directory.open(made.path))
    old.questions("db2").ask(3, MoveSignal.SIGNPOST)
    with pytest.raises(
        WrongServer,
        match=(
            r"db1: 127.0.0.1:\d+ is not connected to: .*former primary.*timeline 1.*at timeline 2"
        ),
    ):
        connect(old.directory.host("db1"))
    old.close()
    # Where no record says so, the former primary is all there is.
    with connect(Directory.open(made.path).host("db1")) as connection:
        assert connection.server.timeline == 1
    # A process that knows the later one goes on.
    with connect(host) as connection:
        assert connection.info.port == standby.port


def test_another_server_is_refused(made):
    host = Directory.open(made.path).host("db2")
    with connect(host):
        pass
    with made.superuser("db2") as connection:
        system = connection.execute("SELECT system_identifier FROM pg_control_system()").fetchone()[
            0
        ]
    object.__setattr__(host.known.record, "system", system + 1)
    with pytest.raises(
        WrongServer,
        match=f"another server: its system identifier is {system}, the host's is {system + 1}",
    ):
        connect(host)


def test_a_server_that_is_awaited_takes_the_hosts_place(made):
    host = Directory.open(made.path).host("db2")
    with connect(host):
        pass
    with made.superuser("db2") as connection:
        system = connection.execute("SELECT system_identifier FROM pg_control_system()").fetchone()[
            0
        ]
    object.__setattr__(host.known.record, "system", system + 1)
    host.known.learn(Record(2, system, 0))
    with connect(host):
        pass
    assert (host.known.record.generation, host.known.record.system) == (2, system)
