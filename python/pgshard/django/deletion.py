"""Deletes of rows elsewhere that are the keys of rows in shards, such as users. A key's
`on_delete` is done on the shard first, in a transaction there; then the row itself is deleted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from django.db import transaction
from django.db.models import CASCADE, DO_NOTHING, PROTECT, RESTRICT, RestrictedError
from django.db.models import deletion as django
from django.db.models.deletion import Collector

from .cluster import unsharded_host
from .reach import objects_meant
from .routing import alias_of_owner, repeat_on, within
from .sharded import KEYS, is_sharded

ON_DELETE = (CASCADE, PROTECT, RESTRICT, DO_NOTHING)
"""What a key's `on_delete` may be: the key cannot be null, and no constraint does it."""

_CANDIDATES = django.get_candidate_relations_to_delete
_CAN_FAST_DELETE = Collector.can_fast_delete
_ADD, _COLLECT, _DELETE = Collector.add, Collector.collect, Collector.delete


def _is_key_elsewhere(relation: Any) -> bool:
    field = relation.field
    return (
        isinstance(field, KEYS)
        and is_sharded(relation.related_model)
        and not is_sharded(relation.model)
    )


def _candidates(opts: Any) -> Iterator[Any]:
    """The same as Django's, without the keys of rows in shards and the tables of their many-to-many
    fields: they are not in its database."""
    for one in _CANDIDATES(opts):
        is_table = one.related_model._meta.auto_created and is_sharded(one.related_model)
        if not _is_key_elsewhere(one) and (is_sharded(one.model) or not is_table):
            yield one


def _keys_of(model: Any) -> list[Any]:
    """The keys that refer to a model and define what happens to their rows."""
    return [
        one.field
        for one in _CANDIDATES(model._meta)
        if _is_key_elsewhere(one) and one.field.remote_field.on_delete is not DO_NOTHING
    ]


def _can_fast_delete(self: Any, objs: Any, from_field: Any = None) -> Any:
    """The same as Django's: not if rows in shards belong to the object."""
    model = objs._meta.model if hasattr(objs, "_meta") else getattr(objs, "model", None)
    if model is not None and not is_sharded(model) and _keys_of(model):
        return False
    return _CAN_FAST_DELETE(self, objs, from_field)


def _add(self: Any, objs: Any, *args: Any, **kwargs: Any) -> Any:
    """The same as Django's. Looks on the shards whether the objects may be deleted; raises
    `ProtectedError` or `RestrictedError` if not."""
    added = _ADD(self, objs, *args, **kwargs)
    model = added[0].__class__ if added else None
    new: dict[str, list[tuple[Any, Any]]] = {}
    for field in () if model is None or is_sharded(model) else _keys_of(model):
        for one in added:
            where = alias_of_owner(field.model, field, one)
            if where is not None:
                new.setdefault(where, []).append((field, one))
    owned = self.__dict__.setdefault("pgshard_owned", {}) if new else {}
    for where, more in new.items():
        owned[where] = [*owned.get(where, ()), *more]
        _collect(where, owned[where], self.origin)
        if hasattr(self, "nested"):
            _show(self, where, more)
    return added


def _collect_all(self: Any, *args: Any, **kwargs: Any) -> Any:
    """The same as Django's. What it looks for is about rows that it has."""
    if unsharded_host() is None:
        return _COLLECT(self, *args, **kwargs)
    with objects_meant():
        return _COLLECT(self, *args, **kwargs)


def _collect(where: str, owned: list[tuple[Any, Any]], origin: Any) -> Any:
    """Collects the rows on a shard that go with these objects. Raises `ProtectedError` and
    `RestrictedError`."""
    found: Any = Collector(where, origin)
    for field in dict.fromkeys(field for field, _ in owned):
        values = [getattr(one, field.target_field.attname) for of, one in owned if of is field]
        rows = field.model._base_manager.using(where).filter(**{f"{field.attname}__in": values})
        if rows.exists():
            field.remote_field.on_delete(found, field, rows, where)
    # The same as at the end of Django's `collect`.
    for model, instances in found.data.items():
        found.clear_restricted_objects_from_set(model, instances)
    for fast in found.fast_deletes:
        found.clear_restricted_objects_from_queryset(fast.model, fast)
    left = {
        f"{model.__name__}.{field.name}": objs
        for model, fields in found.restricted_objects.items()
        for field, objs in fields.items()
        if objs
    }
    if left:
        raise RestrictedError(
            f"Cannot delete what rows on {where} refer to by restricted foreign keys:"
            f" {', '.join(left)}",
            set().union(*left.values()),
        )
    return found


def _show(shown: Any, where: str, owned: list[tuple[Any, Any]]) -> None:
    """Adds the rows that go with objects to what the admin shows of a deletion."""
    using, shown.using = shown.using, where
    try:
        for field, one in owned:
            if field.remote_field.on_delete is CASCADE:
                value = getattr(one, field.target_field.attname)
                rows = field.model._base_manager.using(where).filter(**{field.attname: value})
                with within(where):
                    CASCADE(shown, field, rows, where)
    finally:
        shown.using = using


def _delete(self: Any) -> Any:
    """The same as Django's, on the shards first."""
    counts: Counter[str] = Counter()
    for where, owned in self.__dict__.get("pgshard_owned", {}).items():

        def whole(where: str = where, owned: Any = owned) -> Any:
            with within(where), transaction.atomic(using=where):
                return _collect(where, owned, self.origin).delete()[1]

        counts.update(repeat_on(where, whole))
    if unsharded_host() is None:
        total, rest = _DELETE(self)
    else:
        with objects_meant():
            total, rest = _DELETE(self)
    counts.update(rest)
    return total + sum(counts.values()) - sum(rest.values()), dict(counts)


def change_django() -> None:
    """Makes Django use all this."""
    django.get_candidate_relations_to_delete = _candidates
    Collector.can_fast_delete, Collector.add = _can_fast_delete, _add
    Collector.collect, Collector.delete = _collect_all, _delete
