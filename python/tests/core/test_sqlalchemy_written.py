"""What SQLAlchemy writes past its objects, and objects that come from elsewhere: no row goes astray, is lost or doubled."""

import pytest
from sqlalchemy import Column, ForeignKey, MetaData, Table, func, insert, select, text
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    column_property,
    foreign,
    mapped_column,
    relationship,
    remote,
)
from world import World

from pgshard import Directory
from pgshard import sqlalchemy as sa
from pgshard.sqlalchemy import SCHEMA, Shards, shard_id, shard_key

TABLES = """CREATE TABLE {shard}.albums (
    id bigint PRIMARY KEY DEFAULT {shard}.next_id(), user_id bigint NOT NULL, name text NOT NULL UNIQUE, cover_id bigint
);
CREATE TABLE {shard}.photos (
    id bigint PRIMARY KEY DEFAULT {shard}.next_id(), user_id bigint NOT NULL, title text NOT NULL,
    likes int NOT NULL DEFAULT 0, album_id bigint, parent_id bigint
);
CREATE TABLE {shard}.tags (name text PRIMARY KEY, uses int NOT NULL);
CREATE TABLE {shard}.album_photos (album_id bigint, photo_id bigint, PRIMARY KEY (album_id, photo_id));
CREATE TABLE {shard}.photo_tags (photo_id bigint, tag text, PRIMARY KEY (photo_id, tag));
CREATE TABLE {shard}.prints (photo_id bigint PRIMARY KEY, size text NOT NULL);
CREATE TABLE {shard}.orders (id bigint PRIMARY KEY DEFAULT {shard}.next_id(), print_id bigint, buyer bigint);
CREATE TABLE {shard}.owners (id bigint PRIMARY KEY, name text NOT NULL UNIQUE DEFERRABLE INITIALLY DEFERRED);
"""


class Base(DeclarativeBase):
    metadata = MetaData(schema=SCHEMA)


album_photos = Table(
    "album_photos",
    Base.metadata,
    Column("album_id", ForeignKey("shard.albums.id"), primary_key=True),
    Column("photo_id", ForeignKey("shard.photos.id"), primary_key=True),
)
photo_tags = Table(
    "photo_tags",
    Base.metadata,
    Column("photo_id", ForeignKey("shard.photos.id"), primary_key=True),
    Column("tag", ForeignKey("shard.tags.name"), primary_key=True),
)


class Album(Base):
    __tablename__ = "albums"
    id: Mapped[int] = shard_id()
    user_id: Mapped[int] = shard_key()
    name: Mapped[str]
    cover_id: Mapped[int | None] = mapped_column(ForeignKey("shard.photos.id"))
    cover: Mapped["Photo | None"] = relationship(foreign_keys=cover_id, post_update=True)
    photos: Mapped[list["Photo"]] = relationship(back_populates="album", foreign_keys="Photo.album_id")
    chosen: Mapped[list["Photo"]] = relationship(secondary=album_photos)


class Tag(Base):
    """Each shard has tags of its own: nothing in a tag tells its shard."""

    __tablename__ = "tags"
    name: Mapped[str] = mapped_column(primary_key=True)
    uses: Mapped[int] = mapped_column(default=0)


class Photo(Base):
    __tablename__ = "photos"
    id: Mapped[int] = shard_id()
    user_id: Mapped[int] = shard_key()
    title: Mapped[str]
    likes: Mapped[int] = mapped_column(default=0)
    album_id: Mapped[int | None] = mapped_column(ForeignKey(Album.id))
    parent_id: Mapped[int | None] = mapped_column()
    album: Mapped[Album | None] = relationship(back_populates="photos", foreign_keys=album_id)
    parent: Mapped["Photo | None"] = relationship(primaryjoin=lambda: remote(Photo.id) == foreign(Photo.parent_id))
    tags: Mapped[list[Tag]] = relationship(secondary=photo_tags)


Photo.letters = column_property(func.length(Photo.title))


class Print(Base):
    __tablename__ = "prints"
    photo_id: Mapped[int] = mapped_column(ForeignKey(Photo.id), primary_key=True)
    size: Mapped[str]


class Owner(Base):
    __tablename__ = "owners"
    id: Mapped[int] = shard_key(primary_key=True, autoincrement=False)
    name: Mapped[str]


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = shard_id()
    print_id: Mapped[int | None] = mapped_column(ForeignKey(Print.photo_id))
    buyer: Mapped[int | None] = mapped_column(ForeignKey(Owner.id))


@pytest.fixture(scope="module")
def made():
    made = World()
    try:
        made.migrate(TABLES)
        yield made
    finally:
        made.close()


@pytest.fixture
def shards(made):
    opened = Shards(Directory.open(made.path))
    yield opened
    for engine in opened._engines.values():
        assert engine.pool.checkedout() == 0
    opened.close()


def new(shards, one):
    """Adds an object, to its user's shard. Returns it."""

    def work(session):
        session.add(one)
        session.flush()
        return one

    return shards.run(one.user_id, work)


def photo(shards, user, title="x"):
    return new(shards, Photo(user_id=user, title=title))


def album(shards, user, name):
    return new(shards, Album(user_id=user, name=name))


def count(shards, user, what):
    return shards.run(user, lambda session: session.scalar(select(func.count()).select_from(what)))


def rows(shards, user):
    return {table.name: count(shards, user, table) for table in Base.metadata.sorted_tables}


# ------------------------------------------------------------------------------------------------ statements' values


# ----------------------------------------------------------------------------------- objects that come from elsewhere


# ------------------------------------------------------------------------------------- transactions that do not succeed


def test_a_caught_error_about_a_name_does_not_pass_for_success(shards):
    def swallowed(session):
        session.execute(insert(Album).values(user_id=3, name="swallowed"))
        try:
            session.connection().execute(text("SELECT 1 FROM {shard}.nothing"))
        except DBAPIError:
            pass

    with pytest.raises(sa.TransactionFailed, match="went on without a savepoint"):
        shards.run(3, swallowed)


def rolls_back(session):
    session.add(Album(user_id=3, name="rolled back"))
    session.flush()
    session.rollback()
    session.add(Album(user_id=3, name="after it"))


def fails_to_flush(session):
    session.add(Album(user_id=3, name="flushed"))
    session.flush()
    session.add(Album(user_id=3, name="flushed"))
    try:
        session.flush()
    except IntegrityError:
        pass


@pytest.mark.parametrize("work", [rolls_back, fails_to_flush])
def test_work_that_ended_its_transaction_is_told_so(shards, work):
    with pytest.raises(sa.TransactionFailed, match="rolled back"):
        shards.run(3, work)
    assert shards.run(3, lambda session: session.scalars(select(Album).where(Album.name == "flushed")).all()) == []


def test_a_new_object_is_written_when_the_same_call_is_made_again(shards):
    """The first transaction failed after the object was flushed: it must not pass for stored."""
    one = Photo(user_id=3, title="again", tags=[Tag(name="again")])
    fails = [True]

    def work(session):
        session.add(one)
        session.flush()
        if fails:
            fails.clear()
            raise ValueError("of the application")

    with pytest.raises(ValueError, match="of the application"):
        shards.run(3, work)
    shards.run(3, work)
    assert shards.run(3, lambda session: session.get(Photo, one.id)) is not None
    assert shards.run(3, lambda session: session.get(Tag, "again")) is not None
    assert shards.run(3, lambda s: s.scalar(select(func.count()).where(photo_tags.c.photo_id == one.id))) == 1


def test_a_new_object_is_written_after_a_commit_that_failed(shards):
    shards.run(3, lambda session: session.add(Owner(id=3, name="taken")))
    one = Owner(id=19, name="taken")
    with pytest.raises(IntegrityError):
        shards.run(3, lambda session: session.add(one))
    one.name = "free"
    shards.run(3, lambda session: session.add(one))
    assert shards.run(3, lambda session: session.get(Owner, 19).name) == "free"


@pytest.fixture
def once(shards, monkeypatch):
    """The next transaction's COMMIT finds that its shard has moved, so it is run again."""
    asked = []

    def believe(attempt):
        asked.append(1)
        if len(asked) == 1:
            raise sa.ShardMoved("it has moved")
        attempt.met = None

    monkeypatch.setattr(sa._Attempt, "believe", believe)
    monkeypatch.setattr(sa._Attempt, "is_worth_another_try", lambda attempt, recovery: attempt.met is not None)
    return lambda session: session.execute(text("SELECT to_regclass('{shard}.photos')"))


def test_objects_from_outside_are_written_by_the_second_run(shards, once):
    one = Photo(user_id=5, title="outside", tags=[Tag(name="outside")])
    owner = album(shards, 5, "outside")

    def work(session):
        session.add(one)
        session.add(Photo(user_id=5, title="inside", album=owner))
        session.flush()
        once(session)

    shards.run(5, work)
    assert count(shards, 5, Photo) == 2
    assert count(shards, 5, photo_tags) == 1


def test_what_a_second_run_would_double_or_lose_is_refused(shards, once):
    loaded = photo(shards, 6, "before")
    loaded.title = "after"

    def changed_outside(session):
        session.add(loaded)
        session.flush()
        once(session)

    with pytest.raises(sa.NotRepeatable, match="a Photo had changed"):
        shards.run(6, changed_outside)
    assert shards.run(6, lambda session: session.get(Photo, loaded.id).title) == "before"
    # Its change is still one, for another call.
    shards.run(6, lambda session: session.add(loaded))
    assert shards.run(6, lambda session: session.get(Photo, loaded.id).title) == "after"


def test_an_object_that_an_earlier_run_made_does_not_come_in(shards, once):
    shared = Album(user_id=7, name="shared")

    def work(session):
        session.add(Photo(user_id=7, title="doubled", album=shared))
        session.flush()
        once(session)

    with pytest.raises(sa.NotRepeatable, match="made this Photo"):
        shards.run(7, work)
    assert count(shards, 7, Photo) == 0
