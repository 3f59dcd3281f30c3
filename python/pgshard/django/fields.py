"""Fields of sharded models: the ID that a shard makes, and the key that determines the shard of a
row."""

from __future__ import annotations

from typing import Any

from django.db import models


class ShardedBigAutoField(models.BigAutoField):
    """An ID that the shard's `next_id()` makes and that contains the shard. None until the row is
    saved, as with Django's own."""

    description = "An ID that carries its shard"

    def db_type_suffix(self, connection: Any) -> Any:
        """The default of the column."""
        schema = getattr(connection, "quoted_schema", None)
        return f"DEFAULT {schema}.next_id()" if schema else super().db_type_suffix(connection)

    def deconstruct(self) -> Any:
        """Migrations call this."""
        name, _, args, kwargs = super().deconstruct()
        return name, "pgshard.django.fields.ShardedBigAutoField", args, kwargs


class ShardKeyField(models.BigIntegerField):
    """The key of a sharded model, normally the user's ID: the row is on the shard of this value."""

    description = "The key that says which shard"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("db_index", True)
        super().__init__(*args, **kwargs)

    def deconstruct(self) -> Any:
        """Migrations call this."""
        name, _, args, kwargs = super().deconstruct()
        kwargs["db_index"] = self.db_index
        return name, "pgshard.django.fields.ShardKeyField", args, kwargs


class _References:
    """A key that is a reference to a row of another database."""

    def __init__(self, to: Any, on_delete: Any = None, **kwargs: Any) -> None:
        kwargs.setdefault("db_constraint", False)
        self.says_on_delete = on_delete is not None
        super().__init__(to, on_delete or models.DO_NOTHING, **kwargs)  # type: ignore[call-arg]

    def deconstruct(self) -> Any:
        """Migrations call this."""
        name, _, args, kwargs = super().deconstruct()  # type: ignore[misc]
        return name, f"pgshard.django.fields.{type(self).__name__}", args, kwargs


class ShardKeyForeignKey(_References, models.ForeignKey):
    """The key of a sharded model, as a reference to a model that is not sharded, such as the user.

    The database has no constraint for it, because the other row is in another database. `on_delete`
    is CASCADE, PROTECT, RESTRICT or DO_NOTHING, which it is if it is left out.
    """

    description = "The key that says which shard, of a row elsewhere"


class ShardKeyOneToOneField(_References, models.OneToOneField):
    """The same as `ShardKeyForeignKey`, for a model with one row for each row of the other model,
    such as the profile of a user: `user.profile`."""

    description = "The key that says which shard, of a row elsewhere that it belongs to"
