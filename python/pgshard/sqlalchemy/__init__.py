"""pgshard for SQLAlchemy 2.1: one set of models for all shards, an engine for each host, and
transactions that are run again as a whole when their shard moves.

    class Base(DeclarativeBase):
        metadata = MetaData(schema=SCHEMA)

    class Photo(Base):
        __tablename__ = "photos"
        id: Mapped[int] = shard_id()
        user_id: Mapped[int] = shard_key()

    shards = Shards.open("pgshard.toml")
    photo_id = shards.run(user, lambda session: add(session, Photo(user_id=user)).id)
    photo = shards.run_by_id(photo_id, lambda session: session.get(Photo, photo_id))

`AsyncShards` is the same for asyncio. The schema name `shard` of the tables is replaced by the
schema of the shard that a transaction is on (SQLAlchemy's schema_translate_map), so a statement is
compiled once for all shards; in texts, write `{shard}`.

docs/sqlalchemy.md describes the rest.
"""

from .shards import (
    SCHEMA,
    AsyncShards,
    InDoubt,
    NotRepeatable,
    ShardMoved,
    Shards,
    TransactionFailed,
    WrongId,
    WrongKey,
    WrongShard,
    shard_id,
    shard_key,
)

__all__ = [
    "SCHEMA",
    "AsyncShards",
    "InDoubt",
    "NotRepeatable",
    "ShardMoved",
    "Shards",
    "TransactionFailed",
    "WrongId",
    "WrongKey",
    "WrongShard",
    "shard_id",
    "shard_key",
]
