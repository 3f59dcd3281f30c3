"""Django's related managers and descriptors, so that they look for related rows on the shards where
those are."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import wraps
from typing import Any

from django.db import router
from django.db.models import ForeignKey
from django.db.models.fields import related_descriptors as django

from ..errors import WrongId
from . import elsewhere
from .cluster import AllRows, alias, unsharded_host
from .everywhere import all_rows, rows_with, several_writers
from .managers import ShardedManager
from .reach import mean_objects, objects_meant
from .routing import (
    alias_of_named,
    alias_of_owner,
    check_objects,
    following,
    run_on,
    unrouted,
    where_of,
    within,
)
from .sharded import has_shard_id, is_sharded, key_fields

_WHOLE = ("add", "remove", "set", "clear")
"""The methods of several statements."""
_VALIDATE = ForeignKey.validate


def managers(original: Any) -> Any:
    """Changes the managers of related objects that this function makes: they are on a shard from
    the beginning, and a call of several statements is run again, all of it, if the shard moves
    during it."""

    def make(superclass: Any, rel: Any, *args: Any, **kwargs: Any) -> Any:
        made = original(superclass, rel, *args, **kwargs)
        if rel.many_to_many and not any(args) and elsewhere.leads_elsewhere(rel.field):
            return elsewhere.manager(made, lambda self, more: _with_key(self, rel, "add", (), more))
        if not issubclass(superclass, ShardedManager):
            return made

        def changed(name: str) -> Any:
            plain = getattr(made, name)

            @wraps(plain)
            def call(self: Any, *values: Any, **more: Any) -> Any:
                values = _with_key(self, rel, name, values, more)
                with following(rel.field):
                    if name not in _WHOLE:
                        return plain(self, *values, **more)
                    # Arguments that can be read only once are read before the first try.
                    values = tuple(
                        list(value) if hasattr(value, "__next__") else value for value in values
                    )
                    db = router.db_for_write(self.model, instance=self.instance)
                    # Django compares their primary keys, which another shard may have too.
                    check_objects(values, db)
                    with objects_meant():
                        return run_on(db, lambda: plain(self, *values, **more))

            return call

        for name in (*_WHOLE, "create", "get_or_create", "update_or_create"):
            if hasattr(made, name):
                setattr(made, name, changed(name))

        filtered = made._apply_rel_filters

        def _apply_rel_filters(self: Any, queryset: Any) -> Any:
            with following(rel.field):
                found = filtered(self, queryset)
                if found._db is None:
                    # As a part of another query it must have its shard.
                    found._db = router.db_for_read(self.model, instance=self.instance)
                    found._query.pgshard_alias = found._db
            _mean(found, self.instance)
            return found

        made._apply_rel_filters = _apply_rel_filters
        made.get_prefetch_querysets = _of_each_shard(
            made.get_prefetch_querysets,
            lambda self: self.model,
            lambda self, one: alias_of_owner(self.model, rel.field, one),
        )
        return made

    return make


def _with_key(
    manager: Any, rel: Any, name: str, values: tuple[Any, ...], more: dict[str, Any]
) -> tuple[Any, ...]:
    """Gives the new row of `album.photos.create(…)` the album's key, and a new row of the table
    that joins two models too, unless they have one. Changes `more`."""
    through = getattr(manager, "through", None)
    if through is not None and not through._meta.auto_created and name not in ("remove", "clear"):
        key = key_of(manager.instance, through, rel.field)
        if key is not None:
            given = more.get("through_defaults") or {}
            more["through_defaults"] = {**_missing(key, given), **given}
    key = None if name in _WHOLE else key_of(manager.instance, manager.model, rel.field)
    if key is None:
        return values
    if name == "create":
        more.update(_missing(key, more))
        return values
    # The key of an existing row adds nothing to the lookups, so it is not looked for.
    which = "create_defaults" if name == "update_or_create" else "defaults"
    at = 1 if name == "update_or_create" else 0
    given = values[at] if len(values) > at else more.get(which)
    if given is None and name == "update_or_create":
        given = values[0] if values else more.get("defaults")
    full = {**_missing(key, {**more, **(given or {})}), **(given or {})}
    if len(values) > at:
        return (*values[:at], full, *values[at + 1 :])
    more[which] = full
    return values


def key_of(instance: Any, model: Any, relation: Any) -> tuple[Any, Any] | None:
    """The key of a model, and the value that a row has that belongs to this object by this field;
    None if there is none, or the field is the key."""
    keys, own = key_fields(model), key_fields(instance.__class__)
    if len(keys) != 1 or len(own) != 1 or keys[0] is relation:
        return None
    value = getattr(instance, own[0].attname)
    return None if value is None else (keys[0], value)


def _missing(key: tuple[Any, Any], given: dict[str, Any]) -> dict[str, Any]:
    field, value = key
    return {} if {field.name, field.attname} & given.keys() else {field.attname: value}


def _of_each_shard(
    plain: Any, target: Callable[[Any], Any], place: Callable[[Any, Any], str | None]
) -> Any:
    """Changes a `get_prefetch_querysets`, to which Django gives objects of all shards and which
    would look for what belongs to them on the shard of the first one.

    `target`: the model that is looked for. `place`: the shard of what belongs to an object that is
    not sharded.
    """

    def check_named(self: Any, instances: Any) -> None:
        """Refuses what names no shard, as the router does. Raises `NoShard` and `LegacyId`."""
        if not is_sharded(instances[0].__class__) and place is not None:
            for one in instances:
                if place(self, one) is None:
                    unrouted(target(self), "query")
                    break

    def by_shard(found: Any, where: Callable[[Any], str | None]) -> Any:
        """What a `get_prefetch_querysets` gave, so that Django matches by the shard too: rows of
        two shards may have the same primary key."""
        rows, of_row, of_one, *rest = found
        return (
            rows,
            lambda row: (row._state.db, of_row(row)),
            lambda one: (where(one), of_one(one)),
            *rest,
        )

    def groups_of(self: Any, instances: Any) -> dict[str | None, list[Any]]:
        """The objects by the shard of what belongs to them."""
        of_shards = is_sharded(instances[0].__class__)
        groups: dict[str | None, list[Any]] = {}
        for one in instances:
            groups.setdefault(where_of(one) if of_shards else place(self, one), []).append(one)
        return groups

    @wraps(plain)
    def get_prefetch_querysets(self: Any, instances: Any, querysets: Any = None) -> Any:
        if not is_sharded(target(self)):
            return plain(self, instances, querysets)
        if unsharded_host() is not None and not (querysets and querysets[0]._db):
            check_named(self, instances)
            if not several_writers():
                return _at_once(all_rows(), lambda: plain(self, instances, querysets))
            return _at_each(
                groups_of(self, instances),
                lambda some: plain(self, some, querysets and [querysets[0]._chain()]),
            )
        of_shards = is_sharded(instances[0].__class__)

        def where_it_leads(one: Any) -> str | None:
            return where_of(one) if of_shards else place(self, one)

        named = querysets[0]._db if querysets else None
        if named is not None:
            # Those that have none there.
            here = [one for one in instances if where_it_leads(one) in (None, named)]
            asked = querysets if here else [querysets[0].none()]
            return by_shard(
                plain(self, here or instances[:1], asked), lambda one: where_it_leads(one) or named
            )
        groups = groups_of(self, instances)
        if None in groups or (len(groups) == 1 and of_shards):
            # The router refuses what names no shard.
            return plain(self, instances, querysets)
        parts: list[Any] = []
        rows: list[Any] = []
        for where, group in groups.items():
            assert where is not None, "it was looked for"
            with within(where):
                parts.append(plain(self, group, querysets and [querysets[0]._chain()]))
                # Django itself will prefetch what these are to have, of all of them.
                lookups, parts[-1][0]._prefetch_related_lookups = (
                    parts[-1][0]._prefetch_related_lookups,
                    (),
                )
                rows += parts[-1][0]
        found = parts[0][0]
        found._result_cache, found._prefetch_related_lookups = rows, lookups
        return by_shard(parts[0], where_it_leads)

    return get_prefetch_querysets


def _at_each(groups: dict[str | None, list[Any]], work: Callable[[list[Any]], Any]) -> Any:
    """The same for objects of several shards on which the thread has transactions: each is read on
    its own connection."""
    parts = [
        _at_once(rows_with(where), lambda some=some: work(some))  # type: ignore[misc]
        for where, some in groups.items()
    ]
    rows = parts[0][0]
    rows._result_cache = [row for part in parts for row in part[0]._result_cache]
    return parts[0]


def _at_once(where: AllRows, work: Callable[[], Any]) -> Any:
    """What a `get_prefetch_querysets` gives of all rows of an unsharded host, read at once."""
    with within(where):
        rows, *rest = work()
        # Django itself will prefetch what these are to have.
        lookups, rows._prefetch_related_lookups = rows._prefetch_related_lookups, ()
        rows._fetch_all()
        rows._prefetch_related_lookups, rows._prefetch_done = lookups, False
    return (rows, *rest)


def _of_reference(descriptor: Any, instance: Any) -> str | None:
    """The shard of the row that an object refers to."""
    field = descriptor.field
    if not (field.target_field.primary_key and has_shard_id(field.remote_field.model)):
        return None
    id = getattr(instance, field.attname)
    return alias(0) if id is None else _of_id(id)


def _of_id(id: Any) -> str | None:
    """The shard of the row with this ID; None if the ID was made before the shards."""
    try:
        return alias_of_named(int(id))
    except WrongId:
        # There is no such row, on whatever shard it is looked for.
        return alias(0)


def _validate(self: Any, value: Any, model_instance: Any) -> None:
    """Checks a reference of a model that is not sharded, which does not determine the row's shard:
    the ID does. `full_clean` and forms call this."""
    where = None
    if (
        value is not None
        and not is_sharded(model_instance.__class__)
        and has_shard_id(self.remote_field.model)
    ):
        where = _of_id(value)
    with objects_meant(), nullcontext() if where is None else within(where):
        _VALIDATE(self, value, model_instance)


def _mean(rows: Any, instance: Any) -> None:
    """Notes on an unsharded host that these are rows related to an object of a shard."""
    if unsharded_host() is not None and is_sharded(instance.__class__):
        mean_objects(rows._query, where_of(instance) or rows._db)


def _of_an_object(plain: Any) -> Any:
    """Changes a `get_queryset` of related objects: which object they belong to names them."""

    @wraps(plain)
    def get_queryset(self: Any, **hints: Any) -> Any:
        rows = plain(self, **hints)
        _mean(rows, hints.get("instance"))
        return rows

    return get_queryset


def change_django() -> None:
    """Makes Django use all this for the models that are prepared from now on."""
    if hasattr(django, "_pgshard"):
        return
    django._pgshard = True
    for name in ("create_forward_many_to_many_manager", "create_reverse_many_to_one_manager"):
        setattr(django, name, managers(getattr(django, name)))
    ForeignKey.validate = _validate
    forward, reverse = django.ForwardManyToOneDescriptor, django.ReverseOneToOneDescriptor
    for one in (forward, reverse):
        one.get_queryset = _of_an_object(one.get_queryset)
    forward.get_prefetch_querysets = _of_each_shard(
        forward.get_prefetch_querysets, lambda self: self.field.remote_field.model, _of_reference
    )
    reverse.get_prefetch_querysets = _of_each_shard(
        reverse.get_prefetch_querysets,
        lambda self: self.related.related_model,
        lambda self, one: alias_of_owner(self.related.related_model, self.related.field, one),
    )
