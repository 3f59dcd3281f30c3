"""A client made of the core alone, against real servers: it loses nothing while its shard moves,
whatever happens to the mover."""

import os
import signal
import subprocess
import threading
import time

import psycopg
import pytest

from pgshard import (
    Directory,
    LookUpFailed,
    NotHere,
    Placement,
    Recovery,
    RecoveryContext,
    ShardUnavailable,
    UnknownHost,
    connect,
    met,
)
from pgshard.stale import MoveSignal
from pgshard.template import render


class Client:
    """Runs statements on the host where their shard is, in the way the documentation shows."""

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


@pytest.fixture
def recovery_context(world):
    made = RecoveryContext(Directory.open(world.path))
    yield made
    made.close()


@pytest.fixture
def client(recovery_context):
    made = Client(recovery_context)
    yield made
    made.close()


INSERT = "INSERT INTO {shard}.photos (user_id, title) VALUES (%s, %s) RETURNING id"


class Writer(threading.Thread):
    """Inserts rows into a shard until it is stopped, and remembers which were acknowledged."""

    def __init__(self, recovery_context: RecoveryContext, shard: int, name: str) -> None:
        super().__init__()
        self.client, self.shard, self.label = Client(recovery_context), shard, name
        self.stop, self.acknowledged, self.errors, self.longest = threading.Event(), [], [], 0.0

    def run(self) -> None:
        number = 0
        while not self.stop.is_set() and not self.errors:
            number += 1
            began = time.monotonic()
            try:
                self.acknowledged += self.client.run(
                    self.shard, INSERT, (self.shard, f"{self.label} {number}")
                )
            except Exception as error:  # noqa: BLE001 # the test shows any error
                self.errors.append(error)
            self.longest = max(self.longest, time.monotonic() - began)
            # This leaves a processor for the mover.
            time.sleep(0.002)
        self.client.close()


def writing(recovery_context, shard, name, work):
    """Does `work` while two threads write. Checks that each row is there once, and returns the
    rows' IDs."""
    writers = [Writer(recovery_context, shard, f"{name} {number}") for number in range(2)]
    for writer in writers:
        writer.start()
    try:
        work()
        seen = [len(writer.acknowledged) for writer in writers]
        # Both threads must still write afterwards.
        end = time.monotonic() + 60
        while (
            any(len(w.acknowledged) <= n and not w.errors for w, n in zip(writers, seen))
            and time.monotonic() < end
        ):
            time.sleep(0.01)
    finally:
        for writer in writers:
            writer.stop.set()
        for writer in writers:
            writer.join()
    assert [error for writer in writers for error in writer.errors] == []
    assert all(len(writer.acknowledged) > n for writer, n in zip(writers, seen))
    client = Client(recovery_context)
    rows = client.run(shard, "SELECT id FROM {shard}.photos WHERE title LIKE %s", (f"{name} %",))
    client.close()
    assert sorted(rows) == sorted(row for writer in writers for row in writer.acknowledged)


def test_nothing_is_lost_while_a_shard_moves_to_and_fro(world, recovery_context):
    def work():
        for _ in range(2):
            world.move(3)

    writing(recovery_context, 3, "to and fro", work)
    assert recovery_context.again > 0
    assert recovery_context.directory.place(3) == Placement(world.host_of(3), 3)


def test_an_error_of_the_applications_own_stays_its_own(client):
    for sql, error in (
        ("SELECT * FROM {shard}.photoz", psycopg.errors.UndefinedTable),
        ("SELECT colour FROM {shard}.photos", psycopg.errors.UndefinedColumn),
        (
            "INSERT INTO {shard}.photos (title) VALUES ('x') ON CONFLICT (user_id) DO NOTHING",
            psycopg.errors.InvalidColumnReference,
        ),
        (
            "INSERT INTO {shard}.photos (user_id, title) VALUES (1, NULL)",
            psycopg.errors.NotNullViolation,
        ),
    ):
        with pytest.raises(error):
            client.run(5, sql)
    assert client.recovery_context.again == 0


def test_what_the_parser_finds_missing_at_a_signpost_is_a_relative(world, tmp_path):
    # A copy of the config that nothing rewrites.
    path = tmp_path / "pgshard.toml"
    path.write_text(world.path.read_text().replace('migrations = "migrations"', ""))
    client = Client(RecoveryContext(Directory.open(path)))
    world.move(6)
    sql = (
        "INSERT INTO {shard}.photos (user_id, title) VALUES (6, 'conflict') ON CONFLICT (title) DO"
        " NOTHING RETURNING 1"
    )
    # It was sent to the old host, where it fails with 42P10.
    assert client.recovery_context.directory.place(6).epoch == 1
    assert client.run(6, sql) == [(1,)]
    assert client.recovery_context.directory.place(6).epoch == 2
    client.close()
    client.recovery_context.close()


def test_a_mover_that_is_killed_while_the_shard_is_fenced_is_no_error(world, recovery_context):
    shard = 7
    host = world.host_of(shard)

    def work():
        killed = world.run(
            *(
                "move",
                str(shard),
                "--to",
                "db2" if host == "db1" else "db1",
                "--yes",
                "--failpoint",
                "after swap=kill",
            ),
            may_fail=True,
            PGSHARD_LEASE_MS="1500",
        )
        assert killed.returncode == -signal.SIGKILL
        with world.connect(host) as connection:
            state = "SELECT state FROM pgshard.look(%s)"
            end = time.monotonic() + 60
            # The writers end the fence themselves.
            while (
                connection.execute(state, [shard]).fetchone() != ("serving",)
                and time.monotonic() < end
            ):
                time.sleep(0.02)
            assert connection.execute(state, [shard]).fetchone() == ("serving",)

    writing(recovery_context, shard, "killed", work)
    world.run("moves", "abort")


def test_a_move_that_is_decided_and_not_opened_is_opened(world, recovery_context):
    shard = 8
    target = "db2" if world.host_of(shard) == "db1" else "db1"

    def work():
        line = ("move", str(shard), "--to", target, "--yes", "--failpoint", "after decide=kill")
        assert (
            world.run(*line, may_fail=True, PGSHARD_LEASE_MS="1500").returncode == -signal.SIGKILL
        )
        with world.connect(target) as connection:
            state = "SELECT state FROM pgshard.look(%s)"
            end = time.monotonic() + 60
            while (
                connection.execute(state, [shard]).fetchone() != ("serving",)
                and time.monotonic() < end
            ):
                time.sleep(0.02)
            assert connection.execute(state, [shard]).fetchone() == ("serving",)

    writing(recovery_context, shard, "decided", work)
    assert recovery_context.directory.place(shard) == Placement(target, 2)
    # The audit would wait ten seconds for a moment in which nothing is written.
    world.run("moves", "resume", "--audit-max-s", "0")
    # The shard was written to before any audit could finish; the rows were compared above.
    world.run("moves", "complete", "--unaudited", "--yes")


def test_waiting_has_an_end(world):
    shard = 9
    host = world.host_of(shard)
    with world.superuser(host) as connection:
        schema = f"shard_{shard:04d}"
        # This looks like a fence that nobody may end: a signpost whose host says so as long as the
        # test wants.
        fenced = (
            "UPDATE pgshard.shard SET state = 'fenced', peer = 'db2', move_id = gen_random_uuid(),"
            " attempt = 1, lease = gen_random_uuid(), fence_deadline = now() + interval '1 hour'"
            " WHERE shard_id = %s"
        )
        connection.execute(f"ALTER SCHEMA {schema} RENAME TO {schema}_away")
        connection.execute(fenced, [shard])
        try:
            patient = RecoveryContext(Directory.open(world.path), retry_for=0.3)
            client = Client(patient)
            with pytest.raises(ShardUnavailable, match=rf"shard {shard} on {host} .*being moved"):
                client.run(shard, "SELECT 1 FROM {shard}.photos")
            client.close()
            patient.close()
        finally:
            connection.execute(f"ALTER SCHEMA {schema}_away RENAME TO {schema}")
            unfenced = (
                "UPDATE pgshard.shard SET state = 'serving', peer = NULL, fence_deadline = NULL"
                " WHERE shard_id = %s"
            )
            connection.execute(unfenced, [shard])


def test_a_shard_that_the_map_places_wrongly_is_said_to_be_nowhere(world, client):
    client.recovery_context.directory.learn(
        10, Placement("db2" if world.host_of(10) == "db1" else "db1", 9)
    )
    with pytest.raises(NotHere, match="never had shard 10"):
        client.run(10, "SELECT 1 FROM {shard}.photos")


def test_a_signpost_to_a_host_that_has_left_leads_to_the_shard_all_the_same(world, tmp_path):
    # A copy of the config that nothing rewrites, with the map from before.
    path = tmp_path / "pgshard.toml"
    path.write_text(world.path.read_text().replace('migrations = "migrations"', ""))
    client = Client(RecoveryContext(Directory.open(path)))
    before = world.host_of(5)
    epoch = client.recovery_context.directory.place(5).epoch
    to = world.move(5)
    assert client.recovery_context.directory.place(5).host == before
    # As if it had gone to a third host first, which was removed since.
    astray = "UPDATE pgshard.shard SET peer = 'db9', epoch = %s WHERE shard_id = 5"
    later = "UPDATE pgshard.shard SET epoch = %s WHERE shard_id = 5"
    with world.connect(before) as connection:
        connection.execute(astray, [epoch + 1])
    with pytest.raises(UnknownHost, match=r"there is no \[hosts.db9\]"):
        client.run(5, "SELECT count(*) FROM {shard}.photos")
    with world.connect(to) as connection:
        connection.execute(later, [epoch + 2])
    assert client.run(5, "SELECT count(*) FROM {shard}.photos") == [(0,)]
    assert client.recovery_context.directory.place(5) == Placement(to, epoch + 2)
    client.close()
    client.recovery_context.close()
    with world.connect(before) as connection:
        connection.execute(
            "UPDATE pgshard.shard SET peer = %s, epoch = %s WHERE shard_id = 5", [to, epoch + 2]
        )
    world.run("map", "rebuild", "--yes")


def test_a_host_that_nobody_knows_is_named(client):
    with pytest.raises(UnknownHost, match=r"there is no \[hosts.db9\]"):
        client.recovery_context.directory.host("db9")


def test_a_host_of_another_cluster_is_refused(world, tmp_path):
    text = (
        world.path.read_text()
        .replace("shards = 16", "shards = 8")
        .replace('"0-7"', '"0-3"')
        .replace('"8-15"', '"4-7"')
    )
    path = tmp_path / "pgshard.toml"
    path.write_text(
        "\n".join(line for line in text.splitlines() if not line.startswith(("migrations", "db")))
    )
    path.write_text(path.read_text() + '\ndb1 = "0-3"\ndb2 = "4-7"\n')
    recovery_context = RecoveryContext(Directory.open(path))
    with pytest.raises(Exception, match="recorded 16 shards, the config says 8"):
        recovery_context.questions("db1").ask(0, MoveSignal.SIGNPOST)
    recovery_context.close()


def test_many_that_ask_at_once_ask_few_questions(recovery_context):
    questions = recovery_context.questions("db1")
    questions.ask(0, MoveSignal.SIGNPOST)
    before = questions.asked
    threads = [
        threading.Thread(target=questions.ask, args=(number % 16, MoveSignal.RELATIVE))
        for number in range(64)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert questions.asked - before < 64


def test_a_host_that_is_silent_is_no_end_to_waiting(world, monkeypatch):
    """The server takes the question and never answers, as if it were stopped."""
    from pgshard import control

    recovery_context = RecoveryContext(Directory.open(world.path))
    recovery_context.questions("db1").ask(0, MoveSignal.SIGNPOST)
    monkeypatch.setattr(control, "ANSWER_MAX", 0.3)
    with world.superuser("db1") as connection, connection.transaction():
        connection.execute("LOCK TABLE pgshard.shard IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(LookUpFailed, match=r"db1 .* no answer within 0\.3 s"):
            recovery_context.questions("db1").ask(0, MoveSignal.SIGNPOST)
    monkeypatch.undo()
    assert recovery_context.questions("db1").ask(0, MoveSignal.SIGNPOST)[1].epoch == 1
    recovery_context.close()


def test_look_ups_survive_the_end_of_their_connections(world, recovery_context):
    recovery_context.questions("db1").ask(0, MoveSignal.SIGNPOST)
    with world.superuser("db1") as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name ="
            " 'pgshard look'"
        )
    assert recovery_context.questions("db1").ask(0, MoveSignal.SIGNPOST)[1].state == "serving"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_the_child_of_a_fork_asks_on_connections_of_its_own(world, recovery_context):
    questions = recovery_context.questions("db1")
    questions.ask(0, MoveSignal.SIGNPOST)
    script = (
        "import os, sys\n"
        "from pgshard import RecoveryContext, Directory, MoveSignal\n"
        "recovery_context = RecoveryContext(Directory.open(sys.argv[1]))\n"
        "ask = lambda: recovery_context.questions('db1').ask(0, MoveSignal.SIGNPOST)[1].state\n"
        "control = recovery_context.questions('db1').control\n"
        "def pid(): return control.run(lambda c: c.info.backend_pid)\n"
        "ask(); mine = pid()\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    os._exit(0 if ask() == 'serving' and pid() != mine else 1)\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0\n"
        "assert ask() == 'serving' and pid() == mine\n"
    )
    subprocess.run(
        ["python3" if not os.sys.executable else os.sys.executable, "-c", script, str(world.path)],
        check=True,
    )


def test_an_application_that_says_it_has_moved(client):
    """A function that raises SH001 runs twice, and the application gets its error."""
    host = client.recovery_context.directory.place(1).host
    client.connection(host).execute("""CREATE SEQUENCE public.runs;
        CREATE FUNCTION public.moved() RETURNS int LANGUAGE plpgsql AS $$ BEGIN
            PERFORM nextval('public.runs');
            RAISE EXCEPTION 'no' USING ERRCODE = 'SH001';
        END $$""")
    for called in (1, 2):
        with pytest.raises(psycopg.Error) as raised:
            client.run(1, "SELECT public.moved()")
        assert raised.value.sqlstate == "SH001"
        assert client.run(1, "SELECT last_value FROM public.runs") == [(2 * called,)]
    client.connection(host).execute("DROP FUNCTION public.moved(); DROP SEQUENCE public.runs")
