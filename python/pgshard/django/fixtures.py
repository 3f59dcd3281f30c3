"""Natural keys in fixtures: what a row of a shard refers to may be in another database, and the
reverse. Django looks for it where the row goes."""

from __future__ import annotations

from typing import Any

from django.core.serializers import base
from django.db import router

from .cluster import shard_of_alias
from .sharded import is_sharded

_BUILD = base.build_instance
_OF_ONE, _OF_MANY = base.deserialize_fk_value, base.deserialize_m2m_values


def _database(model: Any, using: str | None) -> str | None:
    """Where to look for an object of this model; None if its natural key determines that."""
    of_shard = shard_of_alias(using) is not None
    if is_sharded(model):
        return using if of_shard else None
    return router.db_for_read(model) if of_shard else using


def _build(model: Any, data: Any, using: str | None) -> Any:
    return _BUILD(model, data, _database(model, using))


def _of_one(field: Any, value: Any, using: str | None, *args: Any, **more: Any) -> Any:
    return _OF_ONE(field, value, _database(field.remote_field.model, using), *args, **more)


def _of_many(field: Any, value: Any, using: str | None, *args: Any, **more: Any) -> Any:
    return _OF_MANY(field, value, _database(field.remote_field.model, using), *args, **more)


def change_django() -> None:
    """Makes Django use all this."""
    base.build_instance = _build
    base.deserialize_fk_value, base.deserialize_m2m_values = _of_one, _of_many
