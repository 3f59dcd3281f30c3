"""What has taken effect is not done again, and what has not is never told as done."""

import pytest

pytestmark = pytest.mark.usefixtures("db")

U, USING = 6, "shard-6"
ENDS_ITSELF = "SELECT pg_catalog.pg_terminate_backend(pg_catalog.pg_backend_pid())"


@pytest.fixture
def m(world):
    from photos import models

    return models


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


def test_a_hook_that_meets_a_move_does_not_repeat_a_call_of_several_statements(m, interrupted, receive):
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
