"""The package as exactly the roles that `pgshard rights` prints: no superuser, no owner, nothing
that is PUBLIC's."""

import json
import time

import psycopg
import pytest
from world import World

from pgshard import Directory, Recovery, RecoveryContext, connect, met
from pgshard.template import render

TABLE = """CREATE TABLE {shard}.notes (id bigint PRIMARY KEY DEFAULT {shard}.next_id(),
    text text NOT NULL);
"""
INSERT = "INSERT INTO {shard}.notes (text) VALUES (%s) RETURNING id"
READ = "SELECT text FROM {shard}.notes WHERE id = %s"


class Client:
    """Runs statements on the host where their shard is, as the documentation shows."""

    def __init__(self, recovery_context: RecoveryContext) -> None:
        self.recovery_context = recovery_context
        self.connections: dict[str, psycopg.Connection] = {}

    def connection(self, host: str) -> psycopg.Connection:
        found = self.connections.get(host)
        if found is None or found.closed:
            found = self.connections[host] = connect(self.recovery_context.directory.host(host))
        return found

    def run(self, shard: int, sql: str, params=()):
        directory, recovery = (
            self.recovery_context.directory,
            Recovery(self.recovery_context, shard),
        )
        while True:
            place, began = directory.place(shard), time.monotonic()
            try:
                return (
                    self.connection(place.host)
                    .execute(render(sql, directory.schema(shard)), params)
                    .fetchall()
                )
            except psycopg.Error as error:
                how = met(error.sqlstate, error.diag.message_primary or "")
                if how is None or not recovery.after(
                    how, place, began, self.connection(place.host).close
                ):
                    raise

    def close(self) -> None:
        for connection in self.connections.values():
            connection.close()


@pytest.fixture(scope="module")
def closed():
    """Two hosts whose databases are closed to PUBLIC. The roles have what `pgshard rights` prints,
    and nothing else."""
    world = World(shards=4)
    try:
        for host in ("db1", "db2"):
            with world.superuser(host) as superuser:
                superuser.execute("REVOKE ALL ON DATABASE app FROM PUBLIC")
        world.migrate(TABLE)
        for purpose, role in (("router", "web"), ("reader", "report")):
            said = world.run("rights", "--for", purpose, "--role", role, "--json").stdout
            for host in ("db1", "db2"):
                for part, connection in zip(
                    json.loads(said)["parts"], (world.superuser(host), world.connect(host))
                ):
                    with connection:
                        for statement in part["statements"]:
                            connection.execute(statement)
        yield world
    finally:
        world.close()


@pytest.fixture
def as_role(closed):
    opened = []

    def made(role: str) -> Client:
        path = closed.path.with_name(f"{role}.toml")
        path.write_text(closed.path.read_text().replace("//app@", f"//{role}@"))
        recovery_context = RecoveryContext(Directory.open(path))
        client = Client(recovery_context)
        opened.extend((client, recovery_context))
        return client

    yield made
    for one in opened:
        one.close()


def test_a_router_writes_reads_and_follows(closed, as_role):
    web = as_role("web")
    ids = {shard: web.run(shard, INSERT, ["first"])[0][0] for shard in range(4)}
    # Online or closed, and back: by the directory, or by asking hosts where it has not heard yet.
    for mode in ("online", "blocking"):
        closed.run(
            "move",
            "1",
            "--to",
            {"db1": "db2", "db2": "db1"}[closed.host_of(1)],
            "--yes",
            "--mode",
            mode,
        )
        assert web.run(1, READ, [ids[1]]) == [("first",)]
        web.run(1, INSERT, ["later"])
        closed.run("moves", "complete", "--yes", "--unaudited", may_fail=True)


def test_a_router_opens_what_a_dead_mover_left(closed, as_role):
    web = as_role("web")
    kept = web.run(2, INSERT, ["kept"])[0][0]
    to = {"db1": "db2", "db2": "db1"}[closed.host_of(2)]
    closed.run(
        "move", "2", "--to", to, "--yes", may_fail=True, PGSHARD_FAILPOINT="after decide=kill"
    )
    assert web.run(2, READ, [kept]) == [("kept",)]
    web.run(2, INSERT, ["after it"])


def test_a_reader_reads_and_writes_nothing(closed, as_role):
    kept = as_role("web").run(3, INSERT, ["kept"])[0][0]
    report = as_role("report")
    assert report.run(3, READ, [kept]) == [("kept",)]
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        report.run(3, INSERT, ["no"])


def test_nothing_more_is_theirs(closed):
    for role in ("web", "report"):
        with psycopg.connect(closed.url("db1"), user=role, autocommit=True) as connection:
            for sql in (
                "SELECT * FROM pgshard.shard",
                "SELECT * FROM pgshard.move",
                "CREATE TABLE shard_0000.mine (id int)",
                "CREATE SCHEMA mine",
                "DELETE FROM pgshard.cluster",
            ):
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    connection.execute(sql)
