"""Generic references to rows of shards: content types are in the default database, and an ID
identifies its row's shard."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from django.contrib.contenttypes import fields
from django.contrib.contenttypes.models import ContentType, ContentTypeManager

from ...errors import LegacyId, WrongId
from ..cluster import alias, shard_of_alias, unsharded_host
from ..errors import WrongShard
from ..everywhere import all_rows, rows_with, several_writers
from ..reach import objects_meant
from ..relations import managers
from ..routing import (
    alias_of_id,
    check_objects,
    is_legacy,
    is_of_one_shard,
    unrouted_id,
    where_of,
    within,
)
from ..sharded import has_shard_id, is_sharded, pk_says_shard


class _Rows(list[Any]):
    """What is read already, for Django 6.1, which expects a query set."""

    def fetch_mode(self, mode: Any) -> _Rows:
        """The rows, which get what they lack in this way."""
        for row in self:
            row._state.fetch_mode = mode
        return self


def install() -> None:
    """Makes Django's content types follow this. Django looks for them, and for what they refer to,
    in the database of the object at the other end."""
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
        model, of_shard = self.model_class(), shard_of_alias(using) is not None
        # A row with a primary key that identifies no shard is on the shard of the row that refers
        # to it.
        identifies = pk_says_shard(model) and not is_legacy(kwargs.get("pk"))
        elsewhere = identifies or not of_shard if is_sharded(model) else of_shard
        with objects_meant():
            return of_one(self, None if elsewhere else using, **kwargs)

    def get_all_objects_for_this_type(self: Any, **kwargs: Any) -> Any:
        model = self.model_class()
        ids = kwargs.get("pk__in")
        if has_shard_id(model) and len(kwargs) == 1 and isinstance(ids, (list, set)):
            ids = [int(id) for id in ids]
            if len({alias_of_id(id) for id in ids if _is_of_a_shard(id)}) > 1:
                return _Rows(model._base_manager.by_ids(ids))
        return of_all(self, **kwargs)

    # Django 5.2 has no descriptor of its own for it.
    descriptor = getattr(fields, "GenericForeignKeyDescriptor", fields.GenericForeignKey)
    set_object, prefetch = descriptor.__set__, descriptor.get_prefetch_querysets

    def __set__(self: Any, instance: Any, value: Any) -> None:
        if _needs_shard(value) and not is_sharded(instance.__class__):
            raise WrongShard(
                f"{value.__class__.__name__} is in shards and its primary key does not say in"
                f" which, so no {instance.__class__.__name__}, which is elsewhere, can refer to it"
            )
        model = instance.__class__
        known = value is not None and is_sharded(model) and not instance._state.adding
        if known and is_of_one_shard(value.__class__, model):
            check_objects([value], where_of(instance) or "")
        set_object(self, instance, value)

    def prefetched(self: Any, instances: Any, querysets: Any) -> Any:
        """What Django returns. It looks up the database of each query set of a `GenericPrefetch`
        first, so it gets them for the objects of one shard after those of another."""
        if not any(is_sharded(one.model) and one._db is None for one in querysets or ()):
            return prefetch(self, instances, querysets)
        groups: dict[str, list[Any]] = {}
        at_once = unsharded_host() is not None
        for one in instances:
            where = _where_it_leads(self, one)
            if at_once:
                where = rows_with(where)
            groups.setdefault(where, []).append(one)
        rows: list[Any] = []
        for where, group in groups.items():
            here = [
                one._on(where) if is_sharded(one.model) and one._db is None else one
                for one in querysets
            ]
            found = prefetch(self, group, here)
            rows += found[0]
        return rows, *found[1:]

    def get_prefetch_querysets(self: Any, instances: Any, querysets: Any = None) -> Any:
        if not is_sharded(instances[0].__class__):
            return prefetched(self, instances, querysets)
        at_once = unsharded_host() is not None
        if at_once and not several_writers():
            with within(all_rows()):
                return prefetched(self, instances, querysets)
        groups: dict[str | None, list[Any]] = {}
        for one in instances:
            groups.setdefault(where_of(one), []).append(one)
        rows: list[Any] = []
        for where, group in groups.items():
            with nullcontext() if where is None else within(rows_with(where) if at_once else where):
                found = prefetched(self, group, querysets)
            rows += found[0]
        _, of_object, of_one, *rest = found

        def of_row(row: Any) -> Any:
            return (*of_object(row), row._state.db if _needs_shard(row) else None)

        def of_instance(one: Any) -> Any:
            asked = of_one(one)
            if asked is None:
                return None
            of_shard = is_sharded(asked[1]) and not pk_says_shard(asked[1])
            return (*asked, where_of(one) if of_shard else None)

        return rows, of_row, of_instance, *rest

    descriptor.__set__ = __set__
    descriptor.get_prefetch_querysets = get_prefetch_querysets
    fields.create_generic_related_manager = managers(fields.create_generic_related_manager)
    ContentTypeManager.db_manager = db_manager
    ContentType.get_object_for_this_type = get_object_for_this_type
    ContentType.get_all_objects_for_this_type = get_all_objects_for_this_type


def _needs_shard(value: Any) -> bool:
    """Whether an object is in the shards, and its primary key does not identify the shard."""
    model = value.__class__
    return value is not None and is_sharded(model) and not pk_says_shard(model)


def _where_it_leads(relation: Any, instance: Any) -> str:
    """The shard of the object that this one refers to; any, if it is not in the shards or cannot
    exist."""
    field = getattr(relation, "field", relation)
    type_id = getattr(instance, field.model._meta.get_field(field.ct_field).attname)
    id = getattr(instance, field.fk_field)
    model = None if type_id is None else ContentType.objects.get_for_id(type_id).model_class()
    if model is None or id is None or not is_sharded(model):
        return alias(0)
    if not has_shard_id(model):
        return (where_of(instance) if is_sharded(instance.__class__) else None) or alias(0)
    try:
        if is_legacy(int(id)):
            there = where_of(instance) if is_sharded(instance.__class__) else None
            return there or unrouted_id(int(id))
        return alias_of_id(int(id))
    except LegacyId:
        raise
    except (ValueError, WrongId):
        return alias(0)


def _is_of_a_shard(id: int) -> bool:
    try:
        alias_of_id(id)
    except WrongId:
        return False
    return True
