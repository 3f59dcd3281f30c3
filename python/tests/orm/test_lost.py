"""The errors that an application gets when a connection is lost or the server is another one: they
say whether the call may have taken effect."""

import dataclasses
import threading
import time

import pytest
from proxy import Proxy

pytestmark = pytest.mark.usefixtures("db")

U = 3


@pytest.fixture
def through(world, monkeypatch):
    """Makes db1 reachable through a proxy, whose target can become another server."""
    from pgshard.circuit import Circuit
    from pgshard.django.backend import pools
    from pgshard.django.cluster import cluster
    from pgshard.identity import Known

    pools.close_all()
    directory = cluster().directory
    host = directory.host("db1")
    proxy = Proxy(int(host.params["port"]))
    params = {**host.params, "port": str(proxy.port)}
    led = dataclasses.replace(host, params=params, known=Known(), circuit=Circuit())
    monkeypatch.setattr(directory, "_hosts", {**directory._hosts, "db1": led})
    yield proxy
    pools.close_all()
    proxy.close()


ENDS_ITSELF = "SELECT pg_catalog.pg_terminate_backend(pg_catalog.pg_backend_pid())"


def test_a_statement_whose_connection_is_lost_may_have_run(m):
    from django.db import connections

    from pgshard.django import InDoubt

    with (
        connections["shard-3"].cursor() as cursor,
        pytest.raises(InDoubt, match="host db1 was lost while a statement"),
    ):
        cursor.execute(ENDS_ITSELF)
    # The next statement has a new connection.
    assert m.Tag.objects.create(user_id=U, word="x").pk


def test_of_a_transaction_whose_connection_is_lost_nothing_stays(m):
    from django.db import connections, transaction

    from pgshard.django import ConnectionLost, alias_of_key, run_in_shard

    def work():
        m.Tag.objects.create(user_id=U, word="x")
        with connections[alias_of_key(U)].cursor() as cursor:
            cursor.execute(ENDS_ITSELF)

    with pytest.raises(ConnectionLost, match="nothing has taken effect"):
        run_in_shard(U, work)
    with pytest.raises(ConnectionLost), transaction.atomic(using="shard-3"):
        work()
    assert not m.Tag.objects.for_key(U).exists()


def test_a_commit_whose_connection_is_lost_is_in_doubt(world, m):
    from pgshard.django import InDoubt, run_in_shard

    trigger = """
        CREATE FUNCTION public.ends() RETURNS trigger LANGUAGE plpgsql AS
            'BEGIN PERFORM pg_catalog.pg_terminate_backend(pg_catalog.pg_backend_pid()); RETURN
                NULL; END';
        CREATE CONSTRAINT TRIGGER ends AFTER INSERT ON shard_0003.photos_tag DEFERRABLE INITIALLY
            DEFERRED
            FOR EACH ROW EXECUTE FUNCTION public.ends();"""
    with world.superuser("db1") as connection:
        connection.execute(trigger)
        try:
            with pytest.raises(InDoubt, match="lost during COMMIT"):
                run_in_shard(U, lambda: m.Tag.objects.create(user_id=U, word="x"))
        finally:
            connection.execute("DROP FUNCTION public.ends() CASCADE")
    assert not m.Tag.objects.for_key(U).exists()


def test_a_failed_statement_that_is_caught_is_not_taken_for_success(m):
    """A COMMIT after it would roll back without an error."""
    from django.db import DatabaseError, connections
    from django.db.transaction import TransactionManagementError

    from pgshard.django import run_in_shard

    def work():
        m.Tag.objects.create(user_id=U, word="x")
        with connections["shard-3"].cursor() as cursor:
            try:
                cursor.execute("SELECT 1 / 0")
            except DatabaseError:
                pass

    with pytest.raises(TransactionManagementError, match="shard-3 failed and `work` went on"):
        run_in_shard(U, work)
    assert not m.Tag.objects.for_key(U).exists()


def test_a_transaction_that_is_to_read_only_is_the_applications_own(m):
    from django.db import DatabaseError, connections

    from pgshard.django import ShardMoved, run_in_shard

    def work():
        with connections["shard-3"].cursor() as cursor:
            cursor.execute("SET TRANSACTION READ ONLY")
        m.Tag.objects.create(user_id=U, word="x")

    with pytest.raises(DatabaseError, match="read-only transaction") as raised:
        run_in_shard(U, work)
    assert not isinstance(raised.value, ShardMoved)


def test_a_host_that_is_a_standby_for_a_moment_is_no_error(world, m, through):
    """The host's address leads to the standby first, as during a switch-over, and to the primary
    afterwards."""
    from pgshard.django import release, run_in_shard
    from pgshard.django.cluster import cluster

    standby = world.standby("db1")
    primary, through.target = through.target, standby.port
    try:
        calls = [
            lambda: m.Tag.objects.create(user_id=U, word="statement"),
            lambda: run_in_shard(
                U, lambda: m.Tag.objects.create(user_id=U, word="first of a transaction")
            ),
            lambda: run_in_shard(U, read_and_write),
        ]
        errors = []

        def read_and_write():
            assert m.Album.objects.for_key(U).count() == 0
            m.Tag.objects.create(user_id=U, word="after a read")

        def make(call):
            try:
                call()
            except Exception as error:  # noqa: BLE001 # the test shows any error
                errors.append(error)
            finally:
                release()

        threads = [threading.Thread(target=make, args=(call,)) for call in calls]
        for thread in threads:
            thread.start()
        before, end = cluster().recovery_context.again, time.monotonic() + 60
        while (
            cluster().recovery_context.again < before + 6 and not errors and time.monotonic() < end
        ):
            time.sleep(0.02)
        through.target = primary
        for thread in threads:
            thread.join()
        assert errors == []
        words = m.Tag.objects.for_key(U).order_by("word").values_list("word", flat=True)
        assert list(words) == ["after a read", "first of a transaction", "statement"]
    finally:
        through.target = primary
        standby.control("stop", "-m", "immediate")


def test_a_host_that_is_dead_fails_at_once_and_its_neighbours_go_on(world, m, through):
    """The first call finds it out, and the others get an error at once. When the host answers again
    it is used again."""
    from django.db import OperationalError

    from pgshard.django import ShardUnavailable, alias_of_key, release
    from pgshard.django.cluster import cluster

    other = next(user for user in range(16) if world.host_of(user) == "db2")
    m.Tag.objects.create(user_id=U, word="before")
    release()
    port = through.port
    through.close()
    with pytest.raises(OperationalError):
        m.Tag.objects.for_key(U).count()
    for _ in range(100):
        with pytest.raises(ShardUnavailable, match=r"host db1 is out of reach: .*refused"):
            m.Tag.objects.for_key(U).count()
        m.Tag.objects.create(user_id=other, word="x").delete()
    assert cluster().directory.host("db1").circuit.is_open
    gathered = m.Tag.objects.across_shards().run(lambda rows: rows.count())
    failed = {alias_of_key(shard) for shard in gathered.errors}
    assert failed == {f"shard-{shard}" for shard in range(16) if world.host_of(shard) == "db1"}
    again = Proxy(through.target, port)
    try:
        end = time.monotonic() + 60
        while time.monotonic() < end:
            try:
                found = m.Tag.objects.for_key(U).count()
                break
            except ShardUnavailable:
                time.sleep(0.01)
        assert found == 1
    finally:
        release()
        again.close()
