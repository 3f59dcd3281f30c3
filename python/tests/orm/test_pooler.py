"""Through PgBouncer in transaction mode, where each transaction may get another session."""

import dataclasses
import threading
import time

import pytest
from pooler import Pooler

pytestmark = pytest.mark.usefixtures("db")

U = 3


@pytest.fixture
def poolers(world, monkeypatch):
    """Both hosts are reached through poolers, with `router_url` and `prepare = "unnamed"` in the
    config."""
    from pgshard.django.backend import pools
    from pgshard.django.cluster import cluster

    pools.close_all()
    directory = cluster().directory
    made = {host: Pooler(world, host) for host in ("db1", "db2")}

    def through(name, pooler):
        host = directory.host(name)
        return dataclasses.replace(
            host, params={**host.params, "port": str(pooler.port)}, named=False
        )

    hosts = {name: through(name, pooler) for name, pooler in made.items()}
    monkeypatch.setattr(directory, "_hosts", {**directory._hosts, **hosts})
    yield made
    pools.close_all()
    for pooler in made.values():
        pooler.close()


def test_each_thread_gets_its_own_shards_rows_while_they_move(world, m, poolers):
    """Four threads, each on a shard of its own, share three sessions of each server."""
    from pgshard.django import release, run_in_shard

    stop, errors, wrote = threading.Event(), [], {}

    def work(user):
        number = 0
        try:
            while not stop.is_set() or number < 20:
                number += 1
                m.Tag.objects.create(user_id=user, word=f"{number}")
                run_in_shard(user, lambda: m.Photo.objects.create(user_id=user, title=f"{user}"))
                rows = set(m.Photo.objects.for_key(user).values_list("user_id", "title"))
                assert rows == {(user, f"{user}")}
                assert sum(1 for _ in m.Tag.objects.for_key(user).iterator(chunk_size=5)) == number
                if number % 5 == 0:
                    release()
                # This leaves a processor for the mover.
                time.sleep(0.02)
        except Exception as error:  # noqa: BLE001 # the test shows any error
            errors.append((user, error))
        finally:
            wrote[user] = number
            release()

    threads = [threading.Thread(target=work, args=(user,)) for user in (2, U, 4, 12)]
    for thread in threads:
        thread.start()
    try:
        world.move(U)
        world.move(U)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert errors == []
    counts = {
        user: (m.Tag.objects.for_key(user).count(), m.Photo.objects.for_key(user).count())
        for user in wrote
    }
    assert counts == {user: (number, number) for user, number in wrote.items()}


def test_what_the_pooler_itself_says_is_a_lost_connection(world, m, poolers):
    """The pooler's errors lack the untranslated severity, and have an SQLSTATE of their own."""
    from django.db import connections, transaction

    from pgshard.django import ConnectionLost, InDoubt

    def end():
        if connections["shard-3"].in_atomic_block:
            m.Tag.objects.create(user_id=U, word="x")
        with connections["shard-3"].cursor() as cursor:
            cursor.execute("SELECT pg_catalog.pg_terminate_backend(pg_catalog.pg_backend_pid())")

    with pytest.raises(InDoubt):
        end()
    with pytest.raises(ConnectionLost), transaction.atomic(using="shard-3"):
        end()
    assert not m.Tag.objects.for_key(U).exists()
