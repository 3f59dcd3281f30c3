"""SQLAlchemy on shards: all shards have the same models, transactions are run again, and a move
loses nothing."""

import asyncio
import os
import threading
import time

import pytest
from sqlalchemy import ForeignKey, MetaData, func, insert, select, text, update
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError, ProgrammingError
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship

from pgshard import Directory, HostUnreachable, ShardUnavailable
from pgshard import sqlalchemy as sa
from pgshard.sqlalchemy import SCHEMA, AsyncShards, Shards, shard_id, shard_key

TABLES = """CREATE TABLE {shard}.albums (
    id bigint PRIMARY KEY DEFAULT {shard}.next_id(), user_id bigint NOT NULL, name text NOT NULL,
        UNIQUE (user_id, name)
);
CREATE TABLE {shard}.photos (
    id bigint PRIMARY KEY DEFAULT {shard}.next_id(), user_id bigint NOT NULL, title text NOT NULL,
    likes int NOT NULL DEFAULT 0, album_id bigint REFERENCES {shard}.albums,
        number int GENERATED ALWAYS AS IDENTITY
);
"""


class Base(DeclarativeBase):
    metadata = MetaData(schema=SCHEMA)


class Album(Base):
    __tablename__ = "albums"
    id: Mapped[int] = shard_id()
    user_id: Mapped[int] = shard_key()
    name: Mapped[str]
    photos: Mapped[list["Photo"]] = relationship(back_populates="album")


class Photo(Base):
    __tablename__ = "photos"
    id: Mapped[int] = shard_id()
    user_id: Mapped[int] = shard_key()
    title: Mapped[str]
    likes: Mapped[int] = mapped_column(default=0)
    album_id: Mapped[int | None] = mapped_column(ForeignKey(Album.id))
    album: Mapped[Album | None] = relationship(back_populates="photos")


class OneWay(Base):
    """A photo, of which its album knows nothing."""

    __table__ = Photo.__table__
    album: Mapped[Album | None] = relationship(overlaps="album,photos")


def add(one):
    def work(session):
        session.add(one())
        session.flush()

    return work


def titles(shards, user):
    return shards.run(
        user, lambda session: list(session.scalars(select(Photo.title).order_by(Photo.title)))
    )


@pytest.fixture
def stale(shards, made, monkeypatch):
    """Moves a shard; this process learns of it only by the signpost."""
    monkeypatch.setattr(shards.directory._follower, "glance", lambda: None)

    def move(shard):
        before = shards.directory.place(shard)
        made.move(shard)
        assert shards.directory.place(shard) == before

    return move


def test_objects_find_their_shard(shards):
    def work(session):
        album = Album(user_id=3, name="Trips")
        album.photos = [Photo(user_id=3, title=f"p{n}") for n in range(3)]
        session.add(album)
        session.flush()
        return album.id, [photo.id for photo in album.photos]

    album, photos = shards.run(3, work)
    assert {shards.directory.shard_of_id(id) for id in (album, *photos)} == {3}
    found = shards.run_by_id(photos[0], lambda session: session.get(Photo, photos[0]))
    assert (found.title, found.user_id, found.likes) == ("p0", 3, 0)
    joined = select(Photo.title, Album.name).join(Photo.album).order_by(Photo.id)
    assert shards.run(3, lambda session: session.execute(joined).all()) == [
        (f"p{n}", "Trips") for n in range(3)
    ]
    # Another shard, with the same compiled statement.
    assert shards.run(4, lambda session: session.execute(joined).all()) == []
    count = text("SELECT count(*), '{{shard}}' FROM {shard}.photos WHERE title LIKE :like")
    assert shards.run(3, lambda session: session.execute(count, {"like": "p%"}).one()) == (
        3,
        "{shard}",
    )


def test_a_reference_by_an_object_does_not_go_astray(shards):
    """The reference's column has its value only when the row is about to be written."""

    def made(user, name):
        def work(session):
            album = Album(user_id=user, name=name)
            session.add(album)
            session.flush()
            return album

        return shards.run(user, work)

    def change(session):
        photo = OneWay(user_id=3, title="by object", album=made(3, "mine"))
        session.add(photo)
        session.flush()
        photo.album = made(4, "others, later")

    for wrong in (
        change,
        add(lambda: OneWay(user_id=3, title="by object", album=made(4, "others"))),
    ):
        with pytest.raises(sa.WrongShard, match=r"Album\.id is of shard 4"):
            shards.run(3, wrong)
    assert "by object" not in titles(shards, 3)
    shards.run(3, add(lambda: OneWay(user_id=3, title="by object", album=made(3, "mine, too"))))
    assert "by object" in titles(shards, 3)


def test_a_row_does_not_go_astray(shards):
    album = shards.run(
        3,
        lambda session: session.scalar(
            insert(Album).values(user_id=3, name="astray").returning(Album.id)
        ),
    )
    for wrong in (
        lambda: Photo(user_id=4, title="x"),
        lambda: Photo(user_id=19, title="x", album_id=album + (1 << 10)),
        lambda: Photo(id=album + (1 << 10), user_id=3, title="x"),
    ):
        with pytest.raises(sa.WrongShard, match="and the transaction is on shard 3"):
            shards.run(3, add(wrong))

    def change(session):
        photo = Photo(user_id=3, title="x")
        session.add(photo)
        session.flush()
        photo.user_id = 4

    with pytest.raises(sa.WrongShard):
        shards.run(3, change)
    shards.run(3, add(lambda: Photo(user_id=19, title="y", album_id=album)))
    assert "x" not in titles(shards, 3)


def test_errors_of_the_application_stay_its_own(shards):
    shards.run(5, add(lambda: Album(user_id=5, name="once")))
    with pytest.raises(IntegrityError):
        shards.run(5, add(lambda: Album(user_id=5, name="once")))
    with pytest.raises(ProgrammingError, match="photoz"):
        shards.run(5, lambda session: session.execute(text("SELECT 1 FROM {shard}.photoz")))
    assert shards._recovery_context.again == 0

    def caught(session):
        session.add(Album(user_id=5, name="kept"))
        session.flush()
        with pytest.raises(DBAPIError), session.begin_nested():
            session.execute(text("SELECT 1 FROM {shard}.photoz"))

    shards.run(5, caught)
    assert shards.run(5, lambda session: session.scalar(select(func.count(Album.id)))) == 2

    def swallowed(session):
        session.execute(insert(Album).values(user_id=5, name="lost"))
        try:
            session.connection().execute(text("SELECT 1 / 0"))
        except DBAPIError:
            pass

    with pytest.raises(sa.TransactionFailed, match="went on without a savepoint"):
        shards.run(5, swallowed)


def test_a_commit_within_run_is_refused(shards):
    def early(session):
        session.add(Album(user_id=5, name="early"))
        session.commit()

    def block(session):
        with session.begin():
            session.add(Album(user_id=5, name="early"))

    for work in (early, block):
        with pytest.raises(sa.TransactionFailed, match="commits when `work` has returned"):
            shards.run(5, work)
    find = select(func.count(Album.id)).where(Album.name == "early")
    assert shards.run(5, lambda session: session.scalar(find)) == 0


def test_a_move_between_two_transactions_is_not_noticed(shards, stale):
    shards.run(6, add(lambda: Photo(user_id=6, title="a")))
    stale(6)
    shards.run(6, add(lambda: Photo(user_id=6, title="b")))
    assert titles(shards, 6) == ["a", "b"]
    assert shards.directory.place(6).epoch == 2


def test_a_transaction_that_caught_the_signposts_answer_is_run_again(shards, stale):
    stale(7)
    runs = []

    def work(session):
        runs.append(1)
        try:
            with session.begin_nested():
                session.execute(insert(Photo).values(user_id=7, title="x"))
        except DBAPIError:
            pass

    shards.run(7, work)
    assert (titles(shards, 7), len(runs)) == (["x"], 2)


def test_an_answer_that_a_signpost_changed_is_not_believed(shards, stale):
    ask = text("SELECT pg_get_serial_sequence('{shard}.photos', 'number')")
    expected = "shard_0008.photos_number_seq"
    assert shards.run(8, lambda session: session.scalar(ask)) == expected
    stale(8)
    assert shards.run(8, lambda session: session.scalar(ask)) == expected


def test_a_commit_whose_connection_is_lost_is_in_doubt(made, shards):
    trigger = """
        CREATE FUNCTION public.ends() RETURNS trigger LANGUAGE plpgsql AS
            'BEGIN PERFORM pg_catalog.pg_terminate_backend(pg_catalog.pg_backend_pid()); RETURN
                NULL; END';
        CREATE CONSTRAINT TRIGGER ends AFTER INSERT ON shard_0009.photos DEFERRABLE INITIALLY
            DEFERRED
            FOR EACH ROW EXECUTE FUNCTION public.ends();"""
    with made.superuser(made.host_of(9)) as connection:
        connection.execute(trigger)
        try:
            with pytest.raises(sa.InDoubt, match="lost during COMMIT"):
                shards.run(9, add(lambda: Photo(user_id=9, title="x")))
        finally:
            connection.execute("DROP FUNCTION public.ends() CASCADE")
    assert titles(shards, 9) == []


def test_connections_that_ended_while_nobody_used_them_cost_no_error(made, shards):
    titles(shards, 10)
    with made.superuser(made.host_of(10)) as connection:
        left = "SELECT count(*) FROM pg_stat_activity WHERE usename = 'app'"
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'app'"
        )
        end = time.monotonic() + 30
        while connection.execute(left).fetchone() != (0,) and time.monotonic() < end:
            time.sleep(0.02)
    assert titles(shards, 10) == []


def test_a_host_that_is_dead_says_so(made, tmp_path):
    path = tmp_path / "pgshard.toml"
    port = Directory.open(made.path).host("db1").params["port"]
    path.write_text(
        made.path.read_text().replace(f":{port}/", ":1/").replace('migrations = "migrations"', "")
    )
    dead = Shards(Directory.open(path))
    shard = next(shard for shard in range(16) if dead.directory.place(shard).host == "db1")
    for _ in range(20):
        with pytest.raises(OperationalError, match="host db1 is out of reach") as raised:
            dead.run_on(shard, lambda session: None)
        assert isinstance(raised.value.orig, HostUnreachable)
    dead.close()


def test_the_child_of_a_fork_has_connections_of_its_own(shards):
    shards.run(3, lambda session: session.execute(text("SELECT 1")))

    def pid(session):
        return session.scalar(text("SELECT pg_backend_pid()"))

    mine = shards.run(3, pid)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(write, str(shards.run(3, pid)).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(write)
    with os.fdopen(read) as pipe:
        theirs = int(pipe.read())
    assert theirs != mine
    assert shards.run(3, pid) == mine


class Writer(threading.Thread):
    """Adds rows and increments a counter in another row, until it is stopped."""

    def __init__(self, shards, user, name):
        super().__init__()
        self.shards, self.user, self.label = shards, user, name
        self.stop, self.count, self.errors = threading.Event(), 0, []

    def work(self, session):
        album = Album(user_id=self.user, name=f"{self.label} {self.count}")
        album.photos = [Photo(user_id=self.user, title="of an album")]
        session.add(album)
        session.flush()
        session.execute(update(Photo).where(Photo.title == "counter").values(likes=Photo.likes + 1))

    def run(self):
        while not self.stop.is_set() and not self.errors:
            try:
                self.shards.run(self.user, self.work)
            except Exception as error:  # noqa: BLE001 # the test shows any error
                self.errors.append(error)
            else:
                self.count += 1
            # This leaves a processor for the mover.
            time.sleep(0.005)


def test_nothing_is_lost_while_a_shard_moves(made, shards):
    user = 11
    shards.run(user, add(lambda: Photo(user_id=user, title="counter")))
    writers = [Writer(shards, user, f"w{number}") for number in range(3)]
    for writer in writers:
        writer.start()
    try:
        for _ in range(2):
            made.move(user)
    finally:
        for writer in writers:
            writer.stop.set()
        for writer in writers:
            writer.join()
    assert [error for writer in writers for error in writer.errors] == []
    total = sum(writer.count for writer in writers)
    likes = select(Photo.likes).where(Photo.title == "counter")
    assert shards.run(user, lambda session: session.scalar(likes)) == total
    assert shards.run(user, lambda session: session.scalar(select(func.count(Album.id)))) == total
    assert shards._recovery_context.again > 0


# ------------------------------------------------------------------------------
# asyncio


def asynchronous(work):
    """Runs a coroutine function with the shards of a world."""

    def run(made, monkeypatch):
        async def whole():
            shards = AsyncShards(Directory.open(made.path))
            try:
                await work(made, shards, monkeypatch)
                for engine in shards._engines.values():
                    assert engine.sync_engine.pool.checkedout() == 0
            finally:
                await shards.close()

        asyncio.run(whole())

    run.__name__ = work.__name__
    return run


@asynchronous
async def test_asyncio(made, shards, monkeypatch):
    async def work(session):
        album = Album(user_id=3, name="async")
        session.add(album)
        await session.flush()
        return album.id

    id = await shards.run(3, work)

    async def read(session):
        return (await session.get(Album, id)).name

    assert await shards.run_by_id(id, read) == "async"
    with pytest.raises(IntegrityError):
        await shards.run(3, work)

    async def astray(session):
        session.add(Photo(user_id=4, title="x"))

    with pytest.raises(sa.WrongShard):
        await shards.run(3, astray)
    names = await asyncio.gather(*(shards.run_by_id(id, read) for _ in range(50)))
    assert names == ["async"] * 50


@asynchronous
async def test_asyncio_while_a_shard_moves(made, shards, monkeypatch):
    user, stop, counts, before = 12, asyncio.Event(), [0] * 8, shards._recovery_context.again

    async def writer(number):
        async def work(session):
            session.add(Photo(user_id=user, title=f"{number} {counts[number]}"))
            await session.flush()
            await session.execute(text("SELECT 1"))

        while not stop.is_set():
            await shards.run(user, work)
            counts[number] += 1
            await asyncio.sleep(0.01)

    writers = [asyncio.create_task(writer(number)) for number in range(8)]
    for _ in range(2):
        await asyncio.to_thread(made.move, user)
    stop.set()
    await asyncio.gather(*writers)

    async def rows(session):
        return set(await session.scalars(select(Photo.title).where(Photo.user_id == user)))

    assert await shards.run(user, rows) == {
        f"{n} {count}" for n in range(8) for count in range(counts[n])
    }
    assert shards._recovery_context.again > before


@asynchronous
async def test_asyncio_and_what_a_signpost_answers(made, shards, monkeypatch):
    monkeypatch.setattr(shards.directory._follower, "glance", lambda: None)
    ask, runs = text("SELECT pg_get_serial_sequence('{shard}.photos', 'number')"), []

    async def work(session):
        runs.append(1)
        return await session.scalar(ask)

    assert await shards.run(13, work) == "shard_0013.photos_number_seq"
    await asyncio.to_thread(made.move, 13)
    assert await shards.run(13, work) == "shard_0013.photos_number_seq"
    assert len(runs) == 3


@asynchronous
async def test_a_task_that_is_cancelled_leaves_nothing(made, shards, monkeypatch):
    began = asyncio.Event()

    async def work(session):
        session.add(Photo(user_id=14, title="cancelled"))
        await session.flush()
        began.set()
        await session.execute(text("SELECT pg_sleep(600)"))

    task = asyncio.create_task(shards.run(14, work))
    await began.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    async def count(session):
        return await session.scalar(select(func.count(Photo.id)))

    assert await shards.run(14, count) == 0


def test_waiting_has_an_end(made, tmp_path):
    path = tmp_path / "pgshard.toml"
    path.write_text(made.path.read_text().replace('migrations = "migrations"', ""))
    shards = Shards(Directory.open(path), retry_for=0.3)
    with made.superuser(made.host_of(15)) as connection:
        connection.execute(
            "UPDATE pgshard.shard SET state = 'fenced', peer = 'db2', move_id = gen_random_uuid(),"
            " attempt = 1, lease = gen_random_uuid(), fence_deadline = now() + interval '1 hour'"
            " WHERE shard_id = 15"
        )
        try:
            with pytest.raises(ShardUnavailable, match="shard 15 on"):
                shards.run(
                    15, lambda session: session.execute(text("SELECT 1 FROM {shard}.nothing"))
                )
        finally:
            connection.execute(
                "UPDATE pgshard.shard SET state = 'serving', peer = NULL, fence_deadline = NULL"
                " WHERE shard_id = 15"
            )
    shards.close()


def test_a_row_with_an_id_from_before_the_shards_is_its_keys():
    from world import World

    made = World()
    shards = None
    try:
        config = made.path.read_text()
        made.path.write_text(config.replace("[cluster]\n", "[cluster]\nlegacy_below = 1000000\n"))
        made.migrate(TABLES)
        with made.connect("db1") as connection:
            connection.execute(
                "INSERT INTO shard_0003.albums (id, user_id, name) VALUES (5, 3, 'old')"
            )
        shards = Shards(Directory.open(made.path))

        def work(session):
            album = session.get(Album, 5)
            album.name = "new"
            session.add(Photo(user_id=3, title="t", album=album))
            session.execute(insert(Photo).values(user_id=3, title="u", album_id=5))

        shards.run(3, work)
        assert shards.run(3, lambda session: session.get(Album, 5).name) == "new"
        assert titles(shards, 3) == ["t", "u"]
        with pytest.raises(sa.WrongShard, match="user_id is of shard 4"):
            shards.run(3, add(lambda: Album(id=6, user_id=4, name="astray")))
    finally:
        if shards is not None:
            shards.close()
        made.close()
