"""Generic references to rows of shards: content types are in the default database, and an ID says
where its row is."""

from __future__ import annotations

from typing import Any

from django.contrib.contenttypes import fields
from django.contrib.contenttypes.models import ContentType, ContentTypeManager

from ...errors import WrongId
from ..cluster import shard_of_alias
from ..relations import managers
from ..routing import alias_of_id
from ..sharded import has_shard_id, is_sharded


class _Rows(list[Any]):
    """What is read already, for Django 6.1, which expects a query set."""

    def fetch_mode(self, mode: Any) -> _Rows:
        """The rows, which get what they lack in this way."""
        for row in self:
            row._state.fetch_mode = mode
        return self


def install() -> None:
    """Makes Django's content types go by this. Django asks for them, and for what they refer to, in
    the database of the object at the other end."""
    if ContentTypeManager.db_manager.__module__ == __name__:
        return  # Tests load the applications again.
    of_database, of_one, of_all = (
        ContentTypeManager.db_manager,
        ContentType.get_object_for_this_type,
        ContentType.get_all_objects_for_this_type,
    )

    def db_manager(self: Any, using: str | None = None, hints: Any = None) -> Any:
        return of_database(self, None if shard_of_alias(using) is not None else using, hints)

    def get_object_for_this_type(self: Any, using: str | None = None, **kwargs: Any) -> Any:
        elsewhere = is_sharded(self.model_class()) or shard_of_alias(using) is not None
        return of_one(self, None if elsewhere else using, **kwargs)

    def get_all_objects_for_this_type(self: Any, **kwargs: Any) -> Any:
        model = self.model_class()
        ids = kwargs.get("pk__in")
        if has_shard_id(model) and len(kwargs) == 1 and isinstance(ids, (list, set)):
            ids = [int(id) for id in ids]
            if len({alias_of_id(id) for id in ids if _is_of_a_shard(id)}) > 1:
                return _Rows(model._base_manager.by_ids(ids))
        return of_all(self, **kwargs)

    fields.create_generic_related_manager = managers(fields.create_generic_related_manager)
    ContentTypeManager.db_manager = db_manager
    ContentType.get_object_for_this_type = get_object_for_this_type
    ContentType.get_all_objects_for_this_type = get_all_objects_for_this_type


def _is_of_a_shard(id: int) -> bool:
    try:
        alias_of_id(id)
    except WrongId:
        return False
    return True
