"""What SQLAlchemy writes past its objects, and objects from elsewhere: no row is misplaced, lost or
doubled."""

import asyncio
import uuid
from types import SimpleNamespace

import pytest
from sqlalchemy import (
    BigInteger,
    Column,
    ForeignKey,
    MetaData,
    String,
    Table,
    TypeDecorator,
    bindparam,
    case,
    func,
    insert,
    lambda_stmt,
    literal,
    null,
    select,
    text,
    update,
)
from sqlalchemy.dialects.postgresql import insert as upsert
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
from sqlalchemy.orm.exc import StaleDataError

from pgshard import Directory
from pgshard import sqlalchemy as sa
from pgshard.keys import KeyKind, key_of_text, shard_of_key
from pgshard.sqlalchemy import SCHEMA, AsyncShards, Shards, shard_id, shard_key
from pgshard.sqlalchemy.shards import _Attempt

TABLES = """CREATE TABLE {shard}.albums (
    id bigint PRIMARY KEY DEFAULT {shard}.next_id(), user_id bigint NOT NULL,
        name text NOT NULL UNIQUE, cover_id bigint
);
CREATE TABLE {shard}.photos (
    id bigint PRIMARY KEY DEFAULT {shard}.next_id(), user_id bigint NOT NULL, title text NOT NULL,
    likes int NOT NULL DEFAULT 0, album_id bigint, parent_id bigint
);
CREATE TABLE {shard}.tags (name text PRIMARY KEY, uses int NOT NULL);
CREATE TABLE {shard}.album_photos (album_id bigint, photo_id bigint, PRIMARY KEY (album_id,
    photo_id));
CREATE TABLE {shard}.photo_tags (photo_id bigint, tag text, PRIMARY KEY (photo_id, tag));
CREATE TABLE {shard}.prints (photo_id bigint PRIMARY KEY, size text NOT NULL);
CREATE TABLE {shard}.orders (id bigint PRIMARY KEY DEFAULT {shard}.next_id(), print_id bigint,
    buyer bigint);
CREATE TABLE {shard}.owners (id bigint PRIMARY KEY,
    name text NOT NULL UNIQUE DEFERRABLE INITIALLY DEFERRED);
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
    photos: Mapped[list["Photo"]] = relationship(
        back_populates="album", foreign_keys="Photo.album_id"
    )
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
    parent_id: Mapped[int | None] = mapped_column(BigInteger)
    album: Mapped[Album | None] = relationship(back_populates="photos", foreign_keys=album_id)
    parent: Mapped["Photo | None"] = relationship(
        primaryjoin=lambda: remote(Photo.id) == foreign(Photo.parent_id)
    )
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


def stored(shards, one):
    return shards.run(one.user_id, lambda session: session.get(type(one), one.id))


def count(shards, user, what):
    return shards.run(user, lambda session: session.scalar(select(func.count()).select_from(what)))


def rows(shards, user):
    return {name: count(shards, user, table) for name, table in Base.metadata.tables.items()}


def refused(shards, match, work, user=3):
    """A transaction on a user's shard is refused, and leaves nothing there."""
    before = rows(shards, user)
    with pytest.raises(sa.WrongShard, match=match):
        shards.run(user, work)
    assert rows(shards, user) == before


# ------------------------------------------------------------------------------
# statements' values


def test_rows_that_link_two_rows_do_not_go_astray(shards):
    mine, theirs = photo(shards, 3), photo(shards, 4)

    def link(*photos):
        def work(session):
            session.add(Album(user_id=3, name=f"links {len(photos)}", chosen=list(photos)))

        return work

    refused(shards, "is of shard 4", link(mine, theirs))
    shards.run(3, link(mine))
    assert count(shards, 3, album_photos) == 1
    row = {"album_id": mine.id, "photo_id": theirs.id}
    refused(
        shards,
        r"album_photos\.photo_id is of shard 4",
        lambda session: session.execute(album_photos.insert(), [row]),
    )


def test_what_post_update_writes_does_not_go_astray(shards):
    theirs = photo(shards, 4)

    def work(session):
        cover = Photo(user_id=3, title="cover")
        session.add(Album(user_id=3, name="covered", cover=cover))
        session.flush()
        # The object lies about its ID, as one from a cache might.
        cover.__dict__["id"] = theirs.id
        session.add(Album(user_id=3, name="covered, too", cover=cover))

    refused(shards, r"albums\.cover_id is of shard 4|Album\.cover_id is of shard 4", work)


BULK = {
    "bulk_save_objects": lambda session, row: session.bulk_save_objects([Photo(**row)]),
    "bulk_insert_mappings": lambda session, row: session.bulk_insert_mappings(Photo, [row]),
    "many rows": lambda session, row: session.execute(
        insert(Photo), [{"user_id": 3, "title": "x"}, row]
    ),
    "returning": (
        lambda session, row: session.scalars(insert(Photo).returning(Photo), [row, row]).all()
    ),
    "values": lambda session, row: session.execute(insert(Photo).values(**row)),
    "many values": lambda session, row: session.execute(
        insert(Photo).values([{"user_id": 3, "title": "x"}, row])
    ),
    "core": lambda session, row: session.connection().execute(Photo.__table__.insert(), row),
    "core values": (
        lambda session, row: session.connection().execute(Photo.__table__.insert().values(row))
    ),
    "legacy add": lambda session, row: session.add(Photo(**row)),
    "in a WITH": lambda session, row: session.execute(
        select(insert(Photo).values(**row).returning(Photo.id).cte("made"))
    ),
    "many in a WITH": lambda session, row: session.execute(
        select(insert(Photo.__table__).values([row, row]).returning(Photo.id).cte("made"))
    ),
    "from a select": lambda session, row: session.execute(
        insert(Photo).from_select(list(row), select(*(literal(value) for value in row.values())))
    ),
}


@pytest.mark.parametrize("way", BULK)
def test_bulk_methods_and_inserts_do_not_go_astray(shards, way):
    theirs = photo(shards, 4).id
    for wrong in ({"user_id": 4}, {"user_id": 3, "album_id": theirs}, {"user_id": 3, "id": theirs}):
        refused(
            shards,
            r"is of shard 4",
            lambda session, row={**wrong, "title": "bulk"}: BULK[way](session, row),
        )
    before = count(shards, 3, Photo)
    # A key of the same shard.
    shards.run(
        3, lambda session: BULK[way](session, {"user_id": 19, "title": "bulk", "album_id": None})
    )
    assert count(shards, 3, Photo) > before


def test_updates_do_not_set_what_is_another_shards(shards):
    mine, theirs = photo(shards, 3), photo(shards, 4)
    wrongs = (
        lambda session: session.execute(update(Photo).values(user_id=4)),
        lambda session: session.execute(update(Photo).values({Photo.album_id: theirs.id})),
        lambda session: session.execute(update(Photo), [{"id": mine.id, "parent_id": theirs.id}]),
        lambda session: session.bulk_update_mappings(Photo, [{"id": mine.id, "user_id": 4}]),
        lambda session: session.query(Photo).update({"user_id": 4}),
        lambda session: session.execute(
            upsert(Photo)
            .values(id=mine.id, user_id=3, title="x")
            .on_conflict_do_update(index_elements=["id"], set_={"user_id": 4})
        ),
    )
    for wrong in wrongs:
        refused(shards, "is of shard 4", wrong)
    assert shards.run(3, lambda session: set(session.scalars(select(Photo.user_id)))) <= {3, 19}
    # SQLAlchemy notices rows that are not there.
    for missed in (
        lambda session: session.bulk_update_mappings(Photo, [{"id": theirs.id, "title": "y"}]),
        lambda session: session.execute(update(Photo), [{"id": theirs.id, "title": "y"}]),
    ):
        with pytest.raises(StaleDataError):
            shards.run(3, missed)
    likes = update(Photo).where(Photo.id == theirs.id).values(likes=Photo.likes + 1)
    assert shards.run(3, lambda session: session.execute(likes).rowcount) == 0


def test_what_the_server_computes_is_refused_unless_it_comes_from_the_shard(shards):
    mine = album(shards, 3, "computed")

    def unclear(what):
        return rf"{what} .* expression"

    wrongs = (
        ("photos.user_id", update(Photo).values(user_id=Photo.user_id + 1)),
        ("photos.user_id", update(Photo).values(user_id=func.abs(Photo.user_id))),
        ("photos.user_id", insert(Photo).values(user_id=text("4"), title="x")),
        ("photos.album_id", update(Photo).values(album_id=Photo.likes)),
        (
            "photos.user_id",
            insert(Photo).from_select(["user_id", "title"], select(Photo.likes, Photo.title)),
        ),
    )
    for what, wrong in wrongs:
        refused(shards, unclear(what), lambda session, wrong=wrong: session.execute(wrong))

    def by_object(session):
        one = session.scalars(select(Photo).limit(1)).one()
        one.user_id = Photo.user_id + 1

    photo(shards, 3)
    refused(shards, unclear("photos.user_id"), by_object)
    found = select(Album.id).where(Album.name == "computed").scalar_subquery()
    rights = (
        insert(Photo).from_select(["user_id", "title"], select(Photo.user_id, Photo.title)),
        insert(Photo).from_select(
            ["user_id", "title"],
            select(Photo.user_id, Photo.title).union(select(Album.user_id, Album.name)),
            include_defaults=False,
        ),
        insert(Photo).values(id=text("{shard}.next_id()"), user_id=3, title="x"),
        update(Photo).values(album_id=found),
        update(Photo).values(album_id=func.coalesce(Photo.album_id, mine.id)),
        update(Photo).values(album_id=case((Photo.likes > 5, Photo.album_id), else_=null())),
        update(Photo)
        .values(album_id=Album.id)
        .where(Album.name == "computed", Album.user_id == Photo.user_id),
        upsert(Photo).values(id=mine.id, user_id=3, title="x"),
    )
    for right in rights:
        shards.run(3, lambda session, right=right: session.execute(right))
    again = upsert(Photo).values(id=mine.id, user_id=19, title="y")
    again = again.on_conflict_do_update(
        index_elements=["id"], set_={"user_id": again.excluded.user_id, "title": "z"}
    )
    shards.run(3, lambda session: session.execute(again))
    shards.run(
        3, lambda session: session.add(Photo(user_id=3, title="by subquery", album_id=found))
    )
    stored = shards.run(
        3, lambda session: session.scalars(select(Photo).where(Photo.title == "by subquery")).one()
    )
    assert stored.album_id == mine.id


def test_each_execution_of_a_cached_statement_is_checked(shards):
    """A statement is compiled once, and its values differ."""
    table = Photo.__table__

    def cte(user):
        return select(
            insert(table).values(user_id=user, title="x").returning(table.c.id).cte("made")
        )

    def union(user):
        return insert(table).from_select(
            ["user_id", "title"], select(literal(user), literal("x")), False
        )

    ways = (
        lambda user: (insert(table).values(user_id=user, title="x"),),
        lambda user: (insert(table).values(user_id=bindparam("u"), title="x"), {"u": user}),
        lambda user: (insert(table).values(title="x"), {"user_id": user}),
        lambda user: (
            insert(table),
            [{"user_id": one, "title": "x"} for one in [3] * 2500 + [user]],
        ),
        lambda user: (update(table).values(user_id=user),),
        lambda user: (
            update(table).where(table.c.title == bindparam("t")).values(user_id=bindparam("u")),
            [{"t": "x", "u": 3}, {"t": "x", "u": user}],
        ),
        lambda user: (
            update(table).values({table.c.user_id: func.coalesce(literal(user), table.c.user_id)}),
        ),
        lambda user: (cte(user),),
        lambda user: (union(user),),
        lambda user: (lambda_stmt(lambda: insert(table).values(user_id=user, title="x")),),
    )
    for way in ways:
        for user in (3, 19):
            shards.run(3, lambda session, way=way, user=user: session.execute(*way(user)))
        refused(shards, "user_id is of shard 4", lambda session, way=way: session.execute(*way(4)))


class UserNumber(TypeDecorator):
    """Keys that are objects in Python."""

    impl = BigInteger
    cache_ok = True

    def process_bind_param(self, value, dialect):
        return int(value.removeprefix("user "))


def test_names_and_types_of_the_application_do_not_hide_a_key(shards):
    class Named(Base):
        __table__ = Table(
            "photos",
            MetaData(schema=SCHEMA),
            Column("id", BigInteger, primary_key=True, server_default=text("{shard}.next_id()")),
            Column("user_id", UserNumber, key="owner", info=shard_key().column.info),
            Column("title", String),
        )
        user = __table__.c.owner

    ways = (
        lambda session, user: session.add(Named(user=user, title="x")),
        lambda session, user: session.execute(insert(Named).values(user=user, title="x")),
        lambda session, user: session.execute(insert(Named), [{"user": user, "title": "x"}]),
        lambda session, user: session.execute(
            insert(Named.__table__), [{"owner": user, "title": "x"}]
        ),
        lambda session, user: session.execute(update(Named).values(user=user)),
        lambda session, user: session.execute(update(Named).values({Named.user: user})),
        lambda session, user: session.execute(update(Named).values({"user": user})),
        lambda session, user: session.execute(
            select(insert(Named).values(user=user, title="x").returning(Named.id).cte("made"))
        ),
        lambda session, user: session.execute(
            upsert(Named)
            .values(user="user 3", title="x")
            .on_conflict_do_update(index_elements=["id"], set_={Named.user: user})
        ),
    )
    for way in ways:
        shards.run(3, lambda session, way=way: way(session, "user 19"))
        refused(shards, r"is of shard 4", lambda session, way=way: way(session, "user 4"))


def test_a_text_that_the_server_takes_for_a_number_is_checked(shards):
    theirs = str(photo(shards, 4).id)
    shards.run(3, lambda session: session.execute(insert(Photo).values(user_id="19", title="x")))
    for wrong in ({"user_id": "4"}, {"user_id": "3", "album_id": theirs}):
        refused(
            shards,
            "is of shard 4",
            lambda session, wrong=wrong: session.add(Photo(title="x", **wrong)),
        )
        refused(
            shards,
            "is of shard 4",
            lambda session, wrong=wrong: session.execute(insert(Photo).values(title="x", **wrong)),
        )


def test_a_uuid_may_be_a_text():
    """As columns of the type `Uuid(as_uuid=False)` have it."""
    key = "12345678-1234-5678-1234-567812345678"
    here = shard_of_key(KeyKind.UUID, uuid.UUID(key), 16)
    directory = SimpleNamespace(
        place=lambda shard: None,
        schema=str,
        shard_of_text=lambda text: shard_of_key(KeyKind.UUID, key_of_text(KeyKind.UUID, text), 16),
    )
    attempt = _Attempt(SimpleNamespace(directory=directory), here, set())
    attempt.check(Album(user_id=key))
    attempt.shard = (here + 1) % 16
    with pytest.raises(sa.WrongShard, match=f"Album.user_id is of shard {here}"):
        attempt.check(Album(user_id=key))


def test_a_default_that_python_makes_is_checked(shards):
    class Elsewhere(Base):
        __table__ = Table(
            "photos",
            MetaData(schema=SCHEMA),
            Column(
                "id",
                Photo.__table__.c.id.type,
                primary_key=True,
                server_default=text("{shard}.next_id()"),
            ),
            Column(
                "user_id",
                Photo.__table__.c.user_id.type,
                info=shard_key().column.info,
                default=lambda: 4,
            ),
            Column("title", Photo.__table__.c.title.type),
        )

    refused(
        shards, "user_id is of shard 4", lambda session: session.add(Elsewhere(title="default"))
    )
    refused(
        shards,
        "user_id is of shard 4",
        lambda session: session.execute(insert(Elsewhere).values([{"title": "a"}, {"title": "b"}])),
    )


def test_references_to_references_and_to_keys_are_checked(shards):
    theirs = photo(shards, 4)
    refused(
        shards,
        r"Order\.print_id is of shard 4",
        lambda session: session.add(Order(print_id=theirs.id)),
    )
    refused(shards, r"Order\.buyer is of shard 4", lambda session: session.add(Order(buyer=4)))
    # By a relationship alone, without a constraint.
    refused(
        shards,
        r"Photo\.parent_id is of shard 4",
        lambda session: session.add(Photo(user_id=3, title="x", parent_id=theirs.id)),
    )
    shards.run(3, lambda session: session.add(Order(print_id=photo(shards, 3).id, buyer=19)))


# ----------------------------------------------------------------------------------- objects that
# come from elsewhere


def test_an_object_of_another_shard_does_not_come_in(shards):
    theirs, mine = album(shards, 4, "theirs"), photo(shards, 3)
    photo(shards, 4)
    works = (
        lambda session: session.add(theirs),
        # It was deleted nowhere, with a warning at most.
        lambda session: session.delete(theirs),
        lambda session: session.add(Photo(user_id=3, title="x", album=theirs)),
        lambda session: session.merge(mine).__setattr__("album", theirs),
        lambda session: session.merge(theirs),
    )
    for work in works:
        refused(shards, "is of shard 4", work)
    assert count(shards, 4, Album) == 1
    # Without a key or an ID it is known by where it came from.
    for user in (3, 4):
        shards.run(user, lambda session: session.add(Tag(name="same")))
    tag = shards.run(4, lambda session: session.get(Tag, "same"))
    tag.uses = 7
    refused(shards, "Tag is of shard 4", lambda session: session.add(tag))
    refused(shards, "Tag is of shard 4", lambda session: session.delete(tag))
    # A copy is another object.
    shards.run(3, lambda session: session.merge(tag))
    assert shards.run(3, lambda session: session.get(Tag, "same").uses) == 7


def test_an_object_with_a_property_that_the_server_computes_can_change(shards):
    id = photo(shards, 3, "four").id

    def work(session):
        one = session.get(Photo, id)
        assert one.letters == 4
        one.title = "changed"

    shards.run(3, work)
    assert shards.run(3, lambda session: session.get(Photo, id).title) == "changed"


# ------------------------------------------------------------------------------------- transactions
# that do not succeed


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


def says_rollback(session):
    session.add(Album(user_id=3, name="flushed"))
    session.flush()
    session.execute(text("ROLLBACK"))


def says_rollback_and_goes_on(session):
    says_rollback(session)
    session.add(Album(user_id=3, name="flushed"))


def rolls_back_by_the_driver(session):
    session.add(Album(user_id=3, name="flushed"))
    session.flush()
    session.connection().connection.rollback()


@pytest.mark.parametrize(
    "work",
    [
        rolls_back,
        fails_to_flush,
        says_rollback,
        says_rollback_and_goes_on,
        rolls_back_by_the_driver,
    ],
)
def test_work_that_ended_its_transaction_is_told_so(shards, work):
    with pytest.raises(sa.TransactionFailed, match="rolled back"):
        shards.run(3, work)
    assert (
        shards.run(
            3, lambda session: session.scalars(select(Album).where(Album.name == "flushed")).all()
        )
        == []
    )


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
    assert (
        shards.run(
            3, lambda s: s.scalar(select(func.count()).where(photo_tags.c.photo_id == one.id))
        )
        == 1
    )


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

    monkeypatch.setattr(_Attempt, "believe", believe)
    monkeypatch.setattr(
        _Attempt, "is_worth_another_try", lambda attempt, recovery: attempt.met is not None
    )

    def once(session):
        session.execute(text("SELECT to_regclass('{shard}.photos')"))

    once.asked = asked
    return once


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


def test_an_object_from_outside_survives_a_move(made, shards, monkeypatch):
    monkeypatch.setattr(shards.directory._follower, "glance", lambda: None)
    owner = album(shards, 9, "moved")
    one = Photo(user_id=9, title="moved", tags=[Tag(name="moved")])
    before = shards.directory.place(9)
    made.move(9)
    assert shards.directory.place(9) == before

    def work(session):
        session.add(one)
        session.add(Photo(user_id=9, title="inside", album=owner))

    shards.run(9, work)
    assert (count(shards, 9, Photo), count(shards, 9, photo_tags)) == (2, 1)
    assert shards._recovery_context.again == 1


def test_a_session_that_commits_each_statement_is_refused(made):
    for options in (
        {"isolation_level": "AUTOCOMMIT"},
        {"execution_options": {"isolation_level": "AUTOCOMMIT"}},
    ):
        with pytest.raises(ValueError, match="must be a transaction"):
            Shards.open(made.path, **options)


def test_what_a_second_run_would_double_or_lose_is_refused(shards, once):
    loaded, parent = photo(shards, 6, "before"), photo(shards, 6, "parent")

    def counts(session):
        loaded.likes += 1
        session.add(loaded)
        session.flush()
        once(session)

    with pytest.raises(sa.NotRepeatable, match="a Photo had changed"):
        shards.run(6, counts)
    assert stored(shards, loaded).likes == 0
    once.asked.clear()
    loaded.parent = parent

    def refers(session):
        session.add(loaded)
        session.flush()
        once(session)

    with pytest.raises(sa.NotRepeatable, match="a Photo had changed"):
        shards.run(6, refers)
    assert stored(shards, loaded).parent_id is None


def test_a_change_from_outside_is_written_by_the_second_run_and_by_the_next_call(shards, once):
    loaded = photo(shards, 6, "before")
    loaded.title = "after"

    def work(session):
        session.add(loaded)
        session.flush()
        once(session)

    shards.run(6, work)
    assert (stored(shards, loaded).title, len(once.asked)) == ("after", 2)
    loaded.title = "later"

    def fails(session):
        session.add(loaded)
        session.flush()
        raise ValueError("of the application")

    with pytest.raises(ValueError, match="of the application"):
        shards.run(6, fails)
    assert stored(shards, loaded).title == "after"
    shards.run(6, lambda session: session.add(loaded))
    assert stored(shards, loaded).title == "later"


def test_an_object_that_an_earlier_run_made_does_not_come_in(shards, once):
    shared = Album(user_id=7, name="shared")

    def work(session):
        session.add(Photo(user_id=7, title="doubled", album=shared))
        session.flush()
        once(session)

    with pytest.raises(sa.NotRepeatable, match="made this Photo"):
        shards.run(7, work)
    assert count(shards, 7, Photo) == 0


def test_asyncio_does_the_same(made):
    one = Photo(user_id=8, title="again")

    async def main():
        shards = AsyncShards(Directory.open(made.path))
        try:
            fails = [True]

            async def work(session):
                session.add(one)
                await session.flush()
                if fails:
                    fails.clear()
                    raise ValueError("of the application")

            async def astray(session):
                await session.execute(insert(Photo).values(user_id=4, title="x"))

            async def swallowed(session):
                await session.flush()
                try:
                    await session.execute(text("SELECT 1 FROM {shard}.nothing"))
                except DBAPIError:
                    pass

            async def read(session):
                return await session.get(Photo, one.id)

            with pytest.raises(ValueError, match="of the application"):
                await shards.run(8, work)
            await shards.run(8, work)
            assert await shards.run(8, read) is not None
            with pytest.raises(sa.WrongShard, match=r"photos\.user_id"):
                await shards.run(8, astray)
            with pytest.raises(sa.TransactionFailed):
                await shards.run(8, swallowed)
        finally:
            await shards.close()

    asyncio.run(main())
