"""Shards move, and no call of the ORM notices."""

import itertools
import os
import signal
import threading
import time

import pytest

pytestmark = pytest.mark.usefixtures("db")

LONG = bool(os.environ.get("PGSHARD_TEST_LONG"))


class Calls:
    """Every kind of call on one shard, each with the numbers of rows and likes that it adds."""

    def __init__(self, m, user):
        self.m, self.user = m, user
        self.tags = [m.Tag.objects.create(user_id=user, word=f"t{n}") for n in range(3)]
        self.first = m.Photo.objects.create(user_id=user, title="first")

    def create(self, name):
        self.m.Photo.objects.create(user_id=self.user, title=name)
        return 1, 0

    def save(self, name):
        photo = self.m.Photo(user_id=self.user, title=name)
        photo.save()
        photo.title += " again"
        photo.save(update_fields=["title"])
        return 1, 0

    def bulk_create(self, name):
        photos = [self.m.Photo(user_id=self.user, title=f"{name} {n}") for n in range(9)]
        assert len(self.m.Photo.objects.bulk_create(photos, batch_size=4)) == 9
        return 9, 0

    def get_or_create(self, name):
        assert self.m.Album.objects.get_or_create(user_id=self.user, name=name)[1] is True
        assert self.m.Album.objects.get_or_create(user_id=self.user, name=name)[1] is False
        return 0, 0

    def update(self, name):
        assert (
            self.m.Photo.objects.filter(pk=self.first.pk).update(likes=self.m.models.F("likes") + 1)
            == 1
        )
        return 0, 1

    def ignore_conflicts(self, name):
        self.m.Tag.objects.bulk_create(
            [self.m.Tag(user_id=self.user, word="t0")],
            update_conflicts=True,
            unique_fields=["user_id", "word"],
            update_fields=["word"],
        )
        return 0, 0

    def many_to_many(self, name):
        photo = self.m.Photo.objects.create(user_id=self.user, title=name)
        photo.tags.add(*self.tags)
        photo.tags.set(self.tags[:1])
        assert [tag.pk for tag in photo.tags.all()] == [self.tags[0].pk]
        return 1, 0

    def delete(self, name):
        photo = self.m.Photo.objects.create(user_id=self.user, title=name)
        photo.tags.add(self.tags[0])
        assert photo.delete()[0] == 2
        return 0, 0

    def transaction(self, name):
        from pgshard.django import run_in_shard

        def work():
            album = self.m.Album.objects.create(user_id=self.user, name=name)
            for n in range(3):
                self.m.Photo.objects.create(user_id=self.user, album=album, title=f"{name} {n}")

        run_in_shard(self.user, work)
        return 3, 0

    def savepoint(self, name):
        from django.db import IntegrityError, transaction

        from pgshard.django import alias_of_key, run_in_shard

        def work():
            try:
                with transaction.atomic(using=alias_of_key(self.user)):
                    self.m.Tag.objects.create(user_id=self.user, word="t0")
            except IntegrityError:
                pass
            self.m.Photo.objects.create(user_id=self.user, title=name)

        run_in_shard(self.user, work)
        return 1, 0

    def iterator(self, name):
        assert sum(1 for _ in self.m.Photo.objects.for_key(self.user).iterator(chunk_size=50)) >= 1
        return 0, 0

    def get(self, name):
        assert self.m.Photo.objects.select_related("album").get(pk=self.first.pk).title == "first"
        return 0, 0

    def all(self):
        names = [name for name in vars(Calls) if not name.startswith("_") and name != "all"]
        return [getattr(self, name) for name in names]


class Worker(threading.Thread):
    """Makes the calls in turn until it is stopped."""

    def __init__(self, calls, label):
        super().__init__()
        self.calls, self.label, self.stop = calls, label, threading.Event()
        self.rows = self.likes = self.done = 0
        self.errors = []

    def run(self):
        from pgshard.django import release

        for number, call in enumerate(itertools.cycle(self.calls.all())):
            if self.stop.is_set() or self.errors:
                break
            try:
                rows, likes = call(f"{self.label} {number}")
            except Exception as error:  # noqa: BLE001 # the test shows any error
                self.errors.append((call.__name__, error))
                break
            self.rows, self.likes, self.done = self.rows + rows, self.likes + likes, self.done + 1
            if number % 7 == 0:
                release()
            # This leaves a processor for the mover.
            time.sleep(0.005)
        release()


def working(calls, work, threads=2):
    """Does `work` while threads make calls. Each thread finishes a round of all calls after it."""
    workers = [Worker(calls, f"w{number}") for number in range(threads)]
    for worker in workers:
        worker.start()
    try:
        work()
        goals = [worker.done + len(calls.all()) for worker in workers]
        end = time.monotonic() + 90
        while (
            any(w.done < goal and not w.errors for w, goal in zip(workers, goals))
            and time.monotonic() < end
        ):
            time.sleep(0.02)
    finally:
        for worker in workers:
            worker.stop.set()
        for worker in workers:
            worker.join()
    assert [error for worker in workers for error in worker.errors] == []
    assert all(worker.done >= goal for worker, goal in zip(workers, goals))
    m, user = calls.m, calls.user
    assert m.Photo.objects.filter(user_id=user).count() == 1 + sum(
        worker.rows for worker in workers
    )
    assert m.Photo.objects.get(pk=calls.first.pk).likes == sum(worker.likes for worker in workers)
    found = m.Photo.objects.across_shards().count()
    assert found == m.Photo.objects.filter(user_id=user).count(), "nothing is anywhere else"


def test_no_call_notices_moves(world, m):
    from pgshard.django.cluster import cluster

    before = cluster().recovery_context.again

    def work():
        for _ in range(8 if LONG else 2):
            world.move(2)

    working(Calls(m, 2), work)
    assert cluster().recovery_context.again > before


def test_a_mover_that_is_killed_is_not_noticed(world, m):
    shard = 5
    source = world.host_of(shard)
    target = "db2" if source == "db1" else "db1"

    def serving(host):
        with world.connect(host) as connection:
            end = time.monotonic() + 60
            while time.monotonic() < end:
                if connection.execute("SELECT state FROM pgshard.look(%s)", [shard]).fetchone() == (
                    "serving",
                ):
                    return
                time.sleep(0.02)
        raise AssertionError(f"nobody has opened the shard on {host}")

    def work():
        line = ("move", str(shard), "--to", target, "--yes", "--failpoint")
        fenced = world.run(*line, "after swap=kill", may_fail=True, PGSHARD_LEASE_MS="1500")
        assert fenced.returncode == -signal.SIGKILL
        serving(source)
        world.run("moves", "abort")
        decided = world.run(*line, "after decide=kill", may_fail=True, PGSHARD_LEASE_MS="1500")
        assert decided.returncode == -signal.SIGKILL
        serving(target)
        # The audit would wait ten seconds for a moment in which nothing is written.
        world.run("moves", "resume", "--audit-max-s", "0")

    working(Calls(m, shard), work)
    world.run("moves", "complete", "--unaudited", "--yes")


@pytest.fixture
def stale(world, monkeypatch):
    """The directory of this process, which learns of moves from no file."""
    from pgshard.django.cluster import cluster

    directory = cluster().directory
    monkeypatch.setattr(directory._follower, "glance", lambda: None)
    return directory


def test_a_transaction_that_meets_a_move_in_its_middle_says_so(world, m, stale):
    from django.db import connections, transaction

    from pgshard.django import ShardMoved

    user, committed = 10, []

    def work(between):
        with transaction.atomic(using=f"shard-{user}"):
            transaction.on_commit(lambda: committed.append(1), using=f"shard-{user}")
            assert m.Tag.objects.for_key(user).count() == 0
            with transaction.atomic(using=f"shard-{user}"):
                between()
                m.Tag.objects.create(user_id=user, word="x")

    with pytest.raises(ShardMoved, match="run all of it again"):
        # The transaction only reads, so it does not delay a fence.
        work(lambda: world.move(user, complete=False))
    world.run("moves", "complete", "--yes")
    assert not connections[f"shard-{user}"].in_atomic_block
    work(lambda: None)
    assert committed == [1]
    assert m.Tag.objects.for_key(user).count() == 1


def test_the_first_statement_of_a_transaction_is_repeated_below_savepoints_too(world, m, stale):
    from django.db import transaction

    user = 11
    m.Tag.objects.create(user_id=user, word="there")
    world.move(user)
    using = f"shard-{user}"
    with transaction.atomic(using=using), transaction.atomic(using=using):
        m.Tag.objects.create(user_id=user, word="a")
        with transaction.atomic(using=using):
            m.Tag.objects.create(user_id=user, word="gone")
            transaction.set_rollback(True, using=using)
        m.Tag.objects.create(user_id=user, word="b")
    assert set(m.Tag.objects.for_key(user).values_list("word", flat=True)) == {"there", "a", "b"}
    assert stale.place(user).epoch == 2


def test_run_in_shard_runs_again_and_hooks_run_once(world, m, stale):
    from django.db import DatabaseError, transaction

    from pgshard.django import run_in_shard

    user, tries, committed = 12, [], []

    def work():
        tries.append(1)
        transaction.on_commit(lambda: committed.append(len(tries)), using=f"shard-{user}")
        assert m.Tag.objects.count() == 0
        if len(tries) == 1:
            world.move(user, complete=False)
        try:
            m.Tag.objects.create(user_id=user, word="x")
        except DatabaseError:
            pass  # An application may do this; nothing of this try counts.

    run_in_shard(user, work)
    world.run("moves", "complete", "--yes")
    assert (len(tries), committed) == (2, [2])
    assert m.Tag.objects.for_key(user).count() == 1


def test_what_may_have_taken_effect_in_part_is_not_repeated(world, m, stale):
    from django.db import ProgrammingError, connections

    from pgshard.django import ShardMoved

    user = 13
    m.Tag.objects.create(user_id=user, word="x")
    world.move(user)
    insert = "INSERT INTO {shard}.photos_tag (user_id, word) VALUES (13, %s)"

    def each():
        yield lambda cursor: cursor.execute("DO $$ BEGIN PERFORM 1 FROM {shard}.photos_tag; END $$")
        yield lambda cursor: cursor.execute(
            "INSERT INTO {shard}.photos_tag (user_id, word) VALUES (13, 'a'); SELECT 1"
        )
        yield lambda cursor: cursor.executemany(insert, [["a"], ["b"]])
        yield lambda cursor: cursor.execute(
            "CREATE INDEX CONCURRENTLY ON {shard}.photos_tag (word)"
        )

        def copy(cursor):
            with cursor.copy("COPY {shard}.photos_tag (user_id, word) FROM STDIN") as rows:
                rows.write_row((13, "a"))

        yield copy

    for call in each():
        with (
            connections[f"shard-{user}"].cursor() as cursor,
            pytest.raises(ShardMoved, match="not repeated"),
        ):
            call(cursor)
    assert stale.place(user).epoch == 1
    # But an error that is the application's own is raised.
    with (
        connections[f"shard-{user}"].cursor() as cursor,
        pytest.raises(ProgrammingError, match="photoz"),
    ):
        cursor.execute("SELECT * FROM {shard}.photoz")
    assert set(m.Tag.objects.for_key(user).values_list("word", flat=True)) == {"x"}


def test_a_conflict_clause_at_a_signpost_is_repeated_and_a_mistake_is_not(world, m, stale):
    from django.db import ProgrammingError

    user = 14
    tag = m.Tag.objects.create(user_id=user, word="x")
    world.move(user)
    same = [m.Tag(user_id=user, word="x")]
    m.Tag.objects.bulk_create(
        same, update_conflicts=True, unique_fields=["user_id", "word"], update_fields=["word"]
    )
    assert m.Tag.objects.for_key(user).get() == tag
    with pytest.raises(ProgrammingError, match="no unique or exclusion constraint"):
        m.Tag.objects.bulk_create(
            same, update_conflicts=True, unique_fields=["word"], update_fields=["word"]
        )


def test_a_shard_that_moved_twice_is_found(world, m, stale):
    user = 15
    m.Tag.objects.create(user_id=user, word="x")
    world.move(user)
    world.move(user)
    assert stale.place(user).epoch == 1
    assert m.Tag.objects.for_key(user).count() == 1
    m.Tag.objects.create(user_id=user, word="y")
    rows = m.Tag.objects.for_key(user).iterator()
    assert len(list(rows)) == 2


def test_an_answer_that_a_signpost_changed_is_not_believed(world, m, monkeypatch):
    """On the host that the shard has left, questions about names get an answer without an error:
    NULL, or an answer about the signpost's views."""
    from django.db import connections, transaction

    from pgshard.django import ShardMoved, release
    from pgshard.django.cluster import cluster

    user = 13
    ask = "SELECT pg_get_serial_sequence('{shard}.photos_photo_tags', 'id'), %s::text"

    def answer(using):
        with connections[using].cursor() as cursor:
            cursor.execute(ask, ["x"])
            return cursor.fetchone()

    expected = ("shard_0013.photos_photo_tags_id_seq", "x")
    directory = cluster().directory
    assert answer("shard-13") == expected
    # The map's file is not read, so this process still knows the old place.
    monkeypatch.setattr(directory._follower, "glance", lambda: None)

    before = directory._snapshot
    world.move(user)
    assert directory._snapshot is before
    assert answer("shard-13") == expected

    def forget():
        """Makes this process forget that the shard has moved."""
        assert directory.place(user) != before.placement(user)
        directory._snapshot = before
        release()

    forget()
    with transaction.atomic(using="shard-13"):
        assert answer("shard-13") == expected, "as the first statement it is run again"
        m.Tag.objects.create(user_id=user, word="x")
    forget()

    def read_and_ask():
        with transaction.atomic(using="shard-13"):
            with connections["shard-13"].cursor() as cursor:
                cursor.execute("SELECT 1")
            return answer("shard-13")

    with pytest.raises(ShardMoved):
        read_and_ask()
    # A call that meets the signpost itself learns where the shard is.
    assert m.Tag.objects.for_key(user).count() == 1
    assert read_and_ask() == expected
    # A column with the name of such a function costs nothing.
    asked = cluster().recovery_context.questions(world.host_of(user)).asked
    with connections["shard-13"].cursor() as cursor:
        cursor.execute("SELECT word AS short_description FROM {shard}.photos_tag")
    assert cluster().recovery_context.questions(world.host_of(user)).asked == asked


def test_rows_of_many_shards_are_found_when_one_has_moved(world, m, monkeypatch):
    """One statement for all shards of a host meets a signpost; then the shards are asked one by
    one."""
    from pgshard.django import batch
    from pgshard.django.cluster import cluster

    photos = [m.Photo.objects.create(user_id=user, title="x") for user in range(16)]
    monkeypatch.setattr(cluster().directory._follower, "glance", lambda: None)
    plain, given = batch._in_thread, []
    monkeypatch.setattr(batch, "_in_thread", lambda *args: given.append(plain(*args)) or given[-1])
    world.move(14)
    assert m.Photo.objects.by_ids([photo.pk for photo in photos]) == photos
    assert sorted(map(bool, given)) == [False, True]
