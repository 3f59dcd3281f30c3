"""What has taken effect is not done again, and what has not is never told as done."""

import pytest

pytestmark = pytest.mark.usefixtures("db")

U, USING = 6, "shard-6"
ENDS_ITSELF = "SELECT pg_catalog.pg_terminate_backend(pg_catalog.pg_backend_pid())"


@pytest.fixture
def stale(world, monkeypatch):
    """The directory of this process learns of moves from no file."""
    from pgshard.django.cluster import cluster

    monkeypatch.setattr(cluster().directory._follower, "glance", lambda: None)


@pytest.fixture
def interrupted(world, m, stale):
    """A transaction of its own on the shard, which meets a move the first time."""
    from django.db import transaction

    moves = []

    def run(*_, **__):
        with transaction.atomic(using=USING):
            m.Album.objects.for_key(U).count()
            if not moves:
                moves.append(world.move(U, complete=False))
            m.Album.objects.for_key(U).update(name="x")

    def once_more():
        moves.clear()
        world.run("moves", "complete", "--unaudited", "--yes", may_fail=True)

    run.once_more = once_more
    yield run
    once_more()


@pytest.fixture
def receive():
    """Connects a function with a signal, for the time of the test."""
    connected = []

    def connect(signal, function, sender):
        signal.connect(function, sender=sender)
        connected.append((signal, function, sender))

    yield connect
    for signal, function, sender in connected:
        signal.disconnect(function, sender=sender)


def ends(using=USING):
    from django.db import connections

    with connections[using].cursor() as cursor:
        cursor.execute(ENDS_ITSELF)


def test_a_hook_that_meets_a_move_does_not_repeat_what_was_committed(m, interrupted):
    from django.db import transaction

    from pgshard.django import ShardMoved, run_in_shard

    sent = []

    def work():
        m.Photo.objects.create(user_id=U, title="once")
        transaction.on_commit(lambda: sent.append(1), using=USING)
        transaction.on_commit(interrupted, using=USING)

    with pytest.raises(ShardMoved):
        run_in_shard(U, work)
    assert (m.Photo.objects.for_key(U).count(), sent) == (1, [1])


def test_a_transaction_whose_hook_retries_by_itself_is_done_once(m, interrupted):
    from django.db import transaction

    from pgshard.django import run_in_shard

    def work():
        m.Album.objects.create(user_id=U, name="y")
        transaction.on_commit(lambda: run_in_shard(U, interrupted), using=USING)

    run_in_shard(U, work)
    assert [album.name for album in m.Album.objects.for_key(U)] == ["x"]


def test_a_handler_that_meets_a_move_does_not_repeat_what_was_saved(m, interrupted, receive):
    from django.db.models import F
    from django.db.models.signals import post_save

    from pgshard.django import ShardMoved

    photo = m.Photo.objects.create(user_id=U, title="x", likes=1)
    receive(post_save, interrupted, m.Photo)
    photo.likes = F("likes") + 1
    with pytest.raises(ShardMoved):
        photo.save()
    assert m.Photo.objects.get(pk=photo.pk).likes == 2

    interrupted.once_more()
    with pytest.raises(ShardMoved):
        m.Photo.objects.create(user_id=U, title="y")
    assert m.Photo.objects.filter(user_id=U, title="y").count() == 1


def test_a_hook_that_meets_a_move_does_not_repeat_a_call_of_several_statements(
    m, interrupted, receive
):
    from django.db import transaction
    from django.db.models.signals import post_delete, post_save

    from pgshard.django import ShardMoved

    def later(**_):
        transaction.on_commit(interrupted, using=USING)

    receive(post_save, later, m.Tag)
    receive(post_delete, later, m.Tag)
    tags = m.Tag.objects.for_key(U)
    for call in (
        lambda: m.Tag.objects.get_or_create(user_id=U, word="a"),
        lambda: tags.get().delete(),
        lambda: m.Tag.objects.update_or_create(user_id=U, word="b"),
        lambda: tags.delete(),
    ):
        interrupted.once_more()
        count = tags.count()
        with pytest.raises(ShardMoved):
            call()
        assert tags.count() == 1 - count


def test_a_handler_before_a_call_may_meet_a_move(m, interrupted, receive):
    """Nothing has taken effect by then, so the call is run again."""
    from django.db.models.signals import pre_save

    receive(pre_save, interrupted, m.Tag)
    m.Tag.objects.create(user_id=U, word="a")
    assert m.Tag.objects.for_key(U).count() == 1


def test_a_call_is_not_repeated_in_a_transaction_that_was_begun_by_hand(m, interrupted, world):
    from django.db import transaction

    from pgshard.django import ShardMoved

    tag = m.Tag.objects.create(user_id=U, word="a")
    transaction.set_autocommit(False, using=USING)
    try:
        m.Tag.objects.for_key(U).count()
        world.move(U, complete=False)
        with pytest.raises(ShardMoved):
            tag.delete()
        transaction.rollback(using=USING)
    finally:
        transaction.set_autocommit(True, using=USING)
    assert m.Tag.objects.for_key(U).get() == tag


# ------------------------------------------------------------------------------
# nothing is told as done


def test_a_lost_connection_that_was_caught_is_not_taken_for_success(m):
    from django.db import DatabaseError, connections, transaction

    from pgshard.django import ConnectionLost, run_in_shard

    sent = []

    def work():
        transaction.on_commit(lambda: sent.append(1), using=USING)
        m.Tag.objects.create(user_id=U, word="x")
        try:
            with transaction.atomic(using=USING):
                ends()
        except DatabaseError:
            pass

    with pytest.raises(ConnectionLost, match="nothing has taken effect"):
        run_in_shard(U, work)
    assert (m.Tag.objects.for_key(U).count(), sent) == (0, [])
    assert connections[USING].get_autocommit()
    run_in_shard(U, lambda: m.Tag.objects.create(user_id=U, word="x"))
    assert m.Tag.objects.for_key(U).count() == 1


def test_a_mark_for_rollback_is_not_taken_for_success(m):
    from django.db import connections, transaction
    from django.db.transaction import TransactionManagementError

    from pgshard.django import run_in_shard

    def marked():
        m.Tag.objects.create(user_id=U, word="x")
        try:
            with transaction.atomic(using=USING, savepoint=False):
                raise ValueError
        except ValueError:
            pass

    def closed():
        m.Tag.objects.create(user_id=U, word="x")
        connections[USING].close()

    for work in (marked, closed):
        with pytest.raises(TransactionManagementError, match="what it did is rolled back"):
            run_in_shard(U, work)
        with pytest.raises(TransactionManagementError), transaction.atomic(using=USING):
            run_in_shard(U, work)
        assert not m.Tag.objects.for_key(U).exists()


def test_a_commit_in_doubt_is_told_also_where_the_host_is_gone_then(world, m, monkeypatch):
    """At the end of the transaction no connection is opened, whose error would take its place."""
    import psycopg

    from pgshard.django import InDoubt, run_in_shard
    from pgshard.pool import Pool

    trigger = """
        CREATE FUNCTION public.ends() RETURNS trigger LANGUAGE plpgsql AS
            'BEGIN PERFORM pg_catalog.pg_terminate_backend(pg_catalog.pg_backend_pid()); RETURN
                NULL; END';
        CREATE CONSTRAINT TRIGGER ends AFTER INSERT ON shard_0007.photos_tag DEFERRABLE INITIALLY
            DEFERRED
            FOR EACH ROW EXECUTE FUNCTION public.ends();"""

    def gone(self):
        raise psycopg.OperationalError("the host is gone")

    def work():
        m.Tag.objects.create(user_id=7, word="x")
        monkeypatch.setattr(Pool, "take", gone)

    with world.superuser(world.host_of(7)) as connection:
        connection.execute(trigger)
        try:
            with pytest.raises(InDoubt, match="lost during COMMIT"):
                run_in_shard(7, work)
        finally:
            connection.execute("DROP FUNCTION public.ends() CASCADE")
    monkeypatch.undo()
    assert not m.Tag.objects.for_key(7).exists()


def test_a_connection_that_is_lost_while_rows_are_fetched(world, m):
    from django.db import transaction

    from pgshard.django import ConnectionLost, InDoubt, run_in_shard

    m.Tag.objects.bulk_create([m.Tag(user_id=U, word=str(n)) for n in range(10)])

    def fetch():
        for number, _ in enumerate(m.Tag.objects.for_key(U).iterator(chunk_size=2)):
            if number == 3:
                with world.superuser(world.host_of(U)) as connection:
                    ended = connection.execute(
                        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE query"
                        " LIKE 'FETCH%'"
                    )
                    assert ended.fetchall() == [(True,)]

    def caught():
        try:
            fetch()
        except ConnectionLost:
            pass

    with (
        pytest.raises(ConnectionLost, match="nothing has taken effect"),
        transaction.atomic(using=USING),
    ):
        fetch()
    with pytest.raises(ConnectionLost):
        run_in_shard(U, caught)
    with pytest.raises(InDoubt, match="was lost while a statement"):
        fetch()
    assert m.Tag.objects.for_key(U).count() == 10


def test_a_statement_that_ran_is_in_doubt_where_the_host_does_not_answer_then(m, monkeypatch):
    """It asked about a name, so it counts only if the host served the shard, which nobody can
    say."""
    from django.db import connections, transaction

    from pgshard.django import InDoubt, ShardUnavailable, run_in_shard
    from pgshard.errors import LookUpFailed
    from pgshard.recovery import Recovery

    def fails(*_):
        raise LookUpFailed("the host does not answer")

    monkeypatch.setattr(Recovery, "is_own", fails)
    insert = (
        "INSERT INTO {shard}.photos_tag (user_id, word) SELECT 6, %s WHERE"
        " to_regclass('{shard}.photos_tag') IS NOT NULL"
    )
    with (
        connections[USING].cursor() as cursor,
        pytest.raises(InDoubt, match="the host does not answer"),
    ):
        cursor.executemany(insert, [["a"], ["b"]])
    assert m.Tag.objects.for_key(U).count() == 2

    def work():
        m.Tag.objects.create(user_id=U, word="c")
        with connections[USING].cursor() as cursor:
            try:
                cursor.execute(insert, ["d"])
            except ShardUnavailable:
                pass

    with pytest.raises(ShardUnavailable, match="the host does not answer"):
        run_in_shard(U, work)
    with (
        pytest.raises(ShardUnavailable, match="the host does not answer"),
        transaction.atomic(using=USING),
    ):
        work()
    assert m.Tag.objects.for_key(U).count() == 2


# ------------------------------------------------------------------------------
# transactions by hand


@pytest.fixture
def by_hand(world, stale):
    """A shard whose transactions are begun and ended by hand."""
    from django.db import connections, transaction

    transaction.set_autocommit(False, using=USING)
    yield
    if not transaction.get_autocommit(using=USING):
        transaction.rollback(using=USING)
        transaction.set_autocommit(True, using=USING)
    assert connections[USING]._own is None


def test_a_transaction_by_hand_that_met_a_move_is_over_after_its_rollback(world, m, by_hand):
    from django.db import transaction

    from pgshard.django import ShardMoved

    assert m.Tag.objects.for_key(U).count() == 0
    world.move(U, complete=False)
    with pytest.raises(ShardMoved):
        m.Tag.objects.for_key(U).count()
    transaction.rollback(using=USING)
    world.run("moves", "complete", "--unaudited", "--yes")
    m.Tag.objects.create(user_id=U, word="x")
    transaction.rollback(using=USING)
    assert m.Tag.objects.for_key(U).count() == 0, "it is still a transaction"
    m.Tag.objects.create(user_id=U, word="y")
    transaction.commit(using=USING)
    transaction.set_autocommit(True, using=USING)
    assert m.Tag.objects.for_key(U).get().word == "y"


def test_the_first_statement_of_each_transaction_by_hand_is_repeated(world, m, by_hand):
    from django.db import transaction

    assert m.Tag.objects.for_key(U).count() == 0
    transaction.commit(using=USING)
    world.move(U)
    assert m.Tag.objects.for_key(U).count() == 0
    transaction.rollback(using=USING)
    world.move(U)
    m.Tag.objects.create(user_id=U, word="x")
    transaction.commit(using=USING)
    assert m.Tag.objects.for_key(U).count() == 1


def test_a_transaction_by_hand_that_was_lost_is_over_after_its_rollback(m, by_hand):
    from django.db import transaction

    from pgshard.django import ConnectionLost

    m.Tag.objects.create(user_id=U, word="x")
    with pytest.raises(ConnectionLost):
        ends()
    with pytest.raises(ConnectionLost):
        transaction.commit(using=USING)
    transaction.rollback(using=USING)
    m.Tag.objects.create(user_id=U, word="y")
    transaction.rollback(using=USING)
    assert m.Tag.objects.for_key(U).count() == 0
