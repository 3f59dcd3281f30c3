"""Connections: each thread has one for each host, work that must not be disturbed has its own, and
none is left behind."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[1] / "project"

pytestmark = pytest.mark.usefixtures("db")

U, V = 3, 12


@pytest.fixture
def pools(world):
    from pgshard.django.backend import pools

    pools.release()
    return pools


def in_use(pools):
    return {name: pool.in_use for name, pool in pools._pools.by_host.items() if pool.in_use}


def test_all_aliases_of_a_thread_share_one_connection_a_host(m, pools):
    for user in range(16):
        m.Photo.objects.create(user_id=user, title="x")
    assert in_use(pools) == {"db1": 1, "db2": 1}
    assert len(pools.slots().touched) == 16
    pools.release()
    assert in_use(pools) == {}
    pools.close_all()
    assert len(pools.slots().touched) == 0


def test_connection_objects_stay_for_the_next_request_without_their_connection(m, pools):
    from django.db import connections, transaction

    wrapper = connections["shard-3"]
    wrapper.force_debug_cursor = True
    assert m.Photo.objects.for_key(U).count() == 0
    wrapper.force_debug_cursor = False
    other = connections["shard-4"]
    with transaction.atomic(using="shard-4"):
        assert m.Photo.objects.for_key(4).count() == 0
        mine = other.connection
        pools.release()
        assert other.connection is mine
        assert m.Photo.objects.for_key(4).count() == 0
    assert connections["shard-3"] is wrapper
    assert (wrapper.connection, len(wrapper.queries_log)) == (None, 0)
    pools.release()
    assert (other.connection, in_use(pools)) == (None, {})
    # The connection is another thread's by now.
    pool = pools._pools.by_host["db1"]
    held = pool.take()
    assert m.Photo.objects.for_key(U).count() == 0
    assert wrapper.connection is not held
    pool.give_back(held)


def test_connection_objects_are_bounded(m, pools, monkeypatch):
    monkeypatch.setattr(pools, "WRAPPERS_MAX", 4)
    pools.close_all()
    for user in range(16):
        assert m.Photo.objects.for_key(user).count() == 0
    assert len(pools.slots().touched) <= 5


def test_an_open_iterator_has_a_connection_of_its_own(m, pools):
    from django.db import DatabaseError, connections, transaction

    m.Photo.objects.for_key(U).bulk_create(
        [m.Photo(user_id=U, title=f"{n:03d}") for n in range(300)]
    )
    rows = m.Photo.objects.filter(user_id=U).order_by("title").iterator(chunk_size=10)
    titles = [next(rows).title]
    # Another alias, on the connection that both would share.
    with (
        pytest.raises(DatabaseError),
        transaction.atomic(using="shard-4"),
        connections["shard-4"].cursor() as cursor,
    ):
        cursor.execute("SELECT 1 / 0")
    with pytest.raises(DatabaseError), connections["shard-4"].cursor() as cursor:
        cursor.execute("SELECT 1 / 0")
    assert in_use(pools) == {"db1": 2}
    titles += [row.title for row in rows]
    assert titles == [f"{n:03d}" for n in range(300)]
    assert in_use(pools) == {"db1": 1}
    # An iterator that is dropped in the middle, after the request.
    rows = m.Photo.objects.filter(user_id=U).iterator(chunk_size=10)
    next(rows)
    pools.release()
    assert in_use(pools) == {"db1": 1}
    rows.close()
    assert in_use(pools) == {}


def test_a_cursor_of_before_does_not_run_in_anothers_transaction(m, pools):
    from django.db import connections, transaction

    insert = "INSERT INTO {shard}.photos_tag (user_id, word) VALUES (3, %s)"
    with connections["shard-3"].cursor() as cursor:
        cursor.execute(insert, ["before"])
        with transaction.atomic(using="shard-4"):
            m.Tag.objects.create(user_id=4, word="x")
            cursor.execute(insert, ["within"])
            with cursor.copy("COPY {shard}.photos_tag (user_id, word) FROM STDIN") as copy:
                copy.write_row((U, "copied"))
            transaction.set_rollback(True, using="shard-4")
    assert set(m.Tag.objects.for_key(U).values_list("word", flat=True)) == {
        "before",
        "within",
        "copied",
    }
    assert not m.Tag.objects.for_key(4).exists()


def test_transactions_on_two_shards_of_one_host_are_two(m, pools):
    from django.db import transaction

    with transaction.atomic(using="shard-3"):
        m.Tag.objects.create(user_id=U, word="kept")
        with transaction.atomic(using="shard-4"):
            m.Tag.objects.create(user_id=4, word="gone")
            transaction.set_rollback(True, using="shard-4")
        with transaction.atomic(using="shard-3"):
            m.Tag.objects.create(user_id=U, word="gone")
            transaction.set_rollback(True, using="shard-3")
        m.Tag.objects.create(user_id=U, word="kept too")
    assert set(m.Tag.objects.for_key(U).values_list("word", flat=True)) == {"kept", "kept too"}
    assert not m.Tag.objects.for_key(4).exists()
    assert in_use(pools) == {"db1": 1}


def test_a_pool_that_is_exhausted_says_so(m, pools, monkeypatch):
    from django.db import OperationalError

    m.Photo.objects.for_key(U).count()
    pool = pools._pools.by_host["db1"]
    pools.release()
    monkeypatch.setattr(pool, "_wait_max", 0.05)
    taken = [pool.take() for _ in range(pool.host.pool_size)]
    try:
        with pytest.raises(
            OperationalError,
            match=(
                r"all 16 connections .* taken .*a thread .*release\(\); or raise pool_size in"
                r" \[hosts.db1\]"
            ),
        ):
            m.Photo.objects.for_key(U).count()
        # Look-ups have connections of their own.
        from pgshard import MoveSignal
        from pgshard.django.cluster import cluster

        assert (
            cluster().recovery_context.questions("db1").ask(U, MoveSignal.SIGNPOST)[1].state
            == "serving"
        )
    finally:
        for connection in taken:
            pool.give_back(connection)
    assert m.Photo.objects.for_key(U).count() == 0


def test_a_connection_has_the_time_zone_of_the_settings(m, pools):
    """Also for a connection that was opened under other settings, as in tests that override
    them."""
    from django.db import connections
    from django.test import override_settings

    def zone():
        try:
            with connections["shard-3"].cursor() as cursor:
                cursor.execute("SHOW timezone")
                return cursor.fetchone()
        finally:
            pools.release()

    assert zone() == ("UTC",)
    with override_settings(USE_TZ=False, TIME_ZONE="Asia/Tokyo"):
        assert zone() == ("Asia/Tokyo",)
    assert zone() == ("UTC",)


def test_a_connection_assumes_the_role_of_the_options(world, m, pools, monkeypatch):
    from django.db import ProgrammingError, connections

    m.Photo.objects.create(user_id=U, title="x")
    role = '"a reader\'s"'
    with world.superuser("db1") as server:
        server.execute(f"CREATE ROLE {role}; GRANT {role} TO app")
        server.execute(f"GRANT USAGE ON SCHEMA shard_0003 TO {role}")
        server.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA shard_0003 TO {role}")
    pools.close_all()
    try:
        monkeypatch.setitem(connections.settings._options, "assume_role", "a reader's")
        with connections["shard-3"].cursor() as cursor:
            cursor.execute("SELECT current_user::text, session_user::text")
            assert cursor.fetchone() == ("a reader's", "app")
        assert [photo.title for photo in m.Photo.objects.for_key(U).iterator()] == ["x"]
        with pytest.raises(ProgrammingError, match="permission denied"):
            m.Photo.objects.create(user_id=U, title="y")
    finally:
        monkeypatch.undo()
        pools.close_all()
        with world.superuser("db1") as server:
            server.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_the_compilers_are_those_of_postgresql():
    """The classes for PostgreSQL refuse dangerous aliases, and insert many rows faster."""
    from django.db.backends.postgresql import compiler as djangos

    from pgshard.django.backend import compiler as ours

    for name in (
        "SQLCompiler",
        "SQLAggregateCompiler",
        "SQLInsertCompiler",
        "SQLUpdateCompiler",
        "SQLDeleteCompiler",
    ):
        assert issubclass(getattr(ours, name), getattr(djangos, name, object))


def end_all(world, host):
    with world.superuser(host) as connection:
        sql = (
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE usename = 'app'"
            " AND datname = 'app'"
        )
        connection.execute(sql)
        end = time.monotonic() + 30
        left = "SELECT count(*) FROM pg_stat_activity WHERE usename = 'app' AND datname = 'app'"
        while connection.execute(left).fetchone() != (0,) and time.monotonic() < end:
            time.sleep(0.02)


def test_connections_that_ended_while_nobody_used_them_cost_no_error(world, m, pools):
    m.Photo.objects.create(user_id=U, title="x")
    # The thread still holds it, as between two statements of a request.
    end_all(world, "db1")
    assert m.Photo.objects.create(user_id=U, title="y").pk
    pools.release()
    end_all(world, "db1")
    assert m.Photo.objects.filter(user_id=U).count() == 2
    assert in_use(pools) == {"db1": 1}


def test_a_connection_that_is_lost_in_a_transaction_ends_it(world, m, pools):
    from django.db import OperationalError, transaction

    def work():
        with transaction.atomic(using="shard-3"):
            m.Tag.objects.create(user_id=U, word="x")
            end_all(world, "db1")
            m.Tag.objects.create(user_id=U, word="y")

    with pytest.raises(OperationalError):
        work()
    assert not m.Tag.objects.for_key(U).exists()
    m.Tag.objects.create(user_id=U, word="z")
    assert in_use(pools) == {"db1": 1}


def test_a_thread_that_ends_gives_back_what_it_held(m, pools):
    def work():
        m.Photo.objects.for_key(U).count()
        held.append(in_use(pools))

    held = []
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert held == [{"db1": 1}]
    assert in_use(pools) == {}


def test_a_request_gives_back_what_it_held(m, pools):
    from django.test import Client

    photo = m.Photo.objects.create(user_id=U, title="x")
    pools.release()
    # The test client keeps Django from closing connections; Django does not close this package's.
    answer = Client().get(f"/photos/{photo.pk}")
    assert answer.json() == {"id": str(photo.pk), "title": "x"}
    assert in_use(pools) == {}


def test_async_calls_and_views_give_their_connections_back(m, pools):
    import asyncio

    from asgiref.sync import sync_to_async
    from django.test import AsyncClient

    async def work():
        photo = await m.Photo.objects.acreate(user_id=U, title="x")
        await m.Photo.objects.acreate(user_id=V, title="y")
        assert (await m.Photo.objects.aget(pk=photo.pk)).title == "x"
        assert [row.title async for row in m.Photo.objects.filter(user_id=V)] == ["y"]
        await asyncio.gather(*(m.Photo.objects.for_key(user).acount() for user in range(50)))
        answers = await asyncio.gather(
            *(AsyncClient().get(f"/users/{user}/photos") for user in (U, V) * 10)
        )
        # Everything that was called without a request ran in one thread of asgiref's.
        assert in_use(pools) == {"db1": 1, "db2": 1}
        await sync_to_async(pools.release)()
        return [answer.json()["titles"] for answer in answers]

    assert asyncio.run(work()) == [["x"], ["y"]] * 10
    assert in_use(pools) == {}


SCRIPT = """
import os, sys, django
django.setup()
from photos.models import Photo
from pgshard.django import release
from pgshard.django.backend import pools

photo = Photo.objects.create(user_id=3, title="x")
rows = Photo.objects.filter(user_id=3).iterator(chunk_size=1)
next(rows)

def pid():
    from django.db import connections
    connections["shard-3"].ensure_connection()
    return connections["shard-3"].connection.info.backend_pid

mine = pid()
for _ in range(3):
    child = os.fork()
    if not child:
        assert Photo.objects.get(pk=photo.pk).title == "x"
        assert Photo.objects.create(user_id=12, title="y").pk
        assert pid() != mine
        # As a worker of Celery or gunicorn ends: with all finalizers.
        sys.exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert pid() == mine
assert Photo.objects.get(pk=photo.pk).title == "x"
assert len(list(rows)) == 0
Photo.objects.filter(user_id=3).iterator(chunk_size=1).__next__()
"""


def test_forks_leave_connections_in_use_alone(world):
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=env, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr


def test_thousands_of_aliases_cost_nothing(tmp_path):
    path = tmp_path / "pgshard.toml"
    lists = 'db1 = "0-4095"'
    head = (
        '[cluster]\nshards = 4096\nepoch = "2011-01-01T00:00:00Z"\n[hosts.db1]\nurl ='
        ' "postgres://app@127.0.0.1:1/app"\n'
    )
    path.write_text(f"{head}[map]\nversion = 1\n[map.placement]\n{lists}\n")
    from pgshard.django.cluster import databases, state

    before = state.cluster
    try:
        made = databases(path, default={"ENGINE": "x"})
        assert list(made) == ["default"]
        assert "shard-4095" in made
        assert "shard-4096" not in made
        assert all(
            name not in made
            for name in ("shard-", "shard-01", "shard--1", "shard-٣", "shard-1x", None)
        )
        assert made["shard-4095"]["NAME"] == "shard-4095"
        with pytest.raises(KeyError):
            made["shard-4096"]
    finally:
        state.cluster = before


def test_behind_a_pooler_no_cursor_stays_on_the_server(world, m, pools, monkeypatch):
    import dataclasses

    from pgshard.django.cluster import cluster

    m.Photo.objects.create(user_id=U, title="x")
    directory = cluster().directory
    host = dataclasses.replace(directory.host("db1"), named=False)
    monkeypatch.setattr(directory, "_hosts", {**directory._hosts, "db1": host})
    rows = m.Photo.objects.filter(user_id=U).iterator(chunk_size=1)
    next(rows)
    assert in_use(pools) == {"db1": 1}, "the rows are here already"
    rows.close()


def test_celery_runs_tasks_in_processes_of_its_own(world, m, tmp_path):
    """Tasks run in processes that are forked from one with open connections. Each task gives back
    what it took, also one that fails."""
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "CELERY_FOLDER": str(tmp_path),
    }
    line = [
        sys.executable,
        "-m",
        "celery",
        "--app",
        "worker",
        "worker",
        "--concurrency",
        "2",
        "--loglevel",
        "warning",
    ]
    with (tmp_path / "log").open("w") as log:
        worker = subprocess.Popen(
            [*line, "--without-gossip", "--without-mingle", "--without-heartbeat"],
            env=env,
            cwd=PROJECT,
            stdout=log,
            stderr=log,
        )
        try:
            send = "import worker; [worker.add.delay(user, user % 4 == 0) for user in range(16)]"
            subprocess.run([sys.executable, "-c", send], env=env, cwd=PROJECT, check=True)
            end = time.monotonic() + 120
            while (
                m.Photo.objects.across_shards().count() < 17
                and time.monotonic() < end
                and worker.poll() is None
            ):
                time.sleep(0.1)
        finally:
            worker.terminate()
            code = worker.wait(timeout=120)
    said = (tmp_path / "log").read_text()
    titles = sorted(photo.title for photo in m.Photo.objects.across_shards().list(limit=100))
    assert code == 0, said
    parents = [title for title in titles if title.startswith("parent")]
    assert parents == ["parent", "parent ended"], said
    tasks = [title.split(" had ") for title in titles if not title.startswith("parent")]
    assert len(tasks) == 16, said
    assert len({pid for pid, _ in tasks}) == 2
    assert {before for _, before in tasks} == {"0"}
