"""Django's related managers and descriptors, so that they look for related rows on the shards where those are."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import wraps
from typing import Any, NoReturn

from django.core.exceptions import ValidationError
from django.db import router
from django.db.models import ForeignKey
from django.db.models.fields import related_descriptors as django
from django.db.models.sql import Query
from django.db.models.sql.datastructures import Join
from django.forms.models import BaseModelForm, ModelMultipleChoiceField

from ..errors import WrongId
from .cluster import alias, shard_of_alias
from .errors import NoShard
from .managers import ShardedManager
from .routing import alias_of_id, alias_of_instance, alias_of_owner, following, run_on, within
from .sharded import has_shard_id, is_sharded

_WHOLE = ("add", "remove", "set", "clear")
"""The methods of several statements."""
_VALIDATE = ForeignKey.validate
_POST_CLEAN = BaseModelForm._post_clean
_JOIN_AS_SQL = Join.as_sql
_QUERY_AS_SQL = Query.as_sql
_SPLIT_EXCLUDE = Query.split_exclude


def managers(original: Any) -> Any:
    """Changes the managers of related objects that this function makes: they are on a shard from the beginning, and a call of
    several statements is run again, all of it, if the shard moves meanwhile."""

    def make(superclass: Any, rel: Any, *args: Any, **kwargs: Any) -> Any:
        made = original(superclass, rel, *args, **kwargs)
        if not issubclass(superclass, ShardedManager):
            return made

        def changed(name: str) -> Any:
            plain = getattr(made, name)

            @wraps(plain)
            def call(self: Any, *values: Any, **more: Any) -> Any:
                with following(rel.field):
                    if name not in _WHOLE:
                        return plain(self, *values, **more)
                    # Arguments that can be read only once are read before the first try.
                    values = tuple(list(value) if hasattr(value, "__next__") else value for value in values)
                    db = router.db_for_write(self.model, instance=self.instance)
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
                    # As a part of another query it must say where it is.
                    found._db = router.db_for_read(self.model, instance=self.instance)
                    found._query.pgshard_alias = found._db
            return found

        made._apply_rel_filters = _apply_rel_filters
        made.get_prefetch_querysets = _of_each_shard(
            made.get_prefetch_querysets,
            lambda self: self.model,
            lambda self, one: alias_of_owner(self.model, rel.field, one),
        )
        return made

    return make


def _of_each_shard(plain: Any, target: Callable[[Any], Any], place: Callable[[Any, Any], str | None]) -> Any:
    """Changes a `get_prefetch_querysets`, to which Django gives objects of all shards and which would look for what belongs to
    them on the shard of the first one.

    `target`: the model that is looked for. `place`: the shard of what belongs to an object that is not sharded.
    """

    @wraps(plain)
    def get_prefetch_querysets(self: Any, instances: Any, querysets: Any = None) -> Any:
        if not is_sharded(target(self)) or (querysets and querysets[0]._db is not None):
            return plain(self, instances, querysets)
        groups: dict[str | None, list[Any]] = {}
        for one in instances:
            groups.setdefault(_where(one) if is_sharded(one.__class__) else place(self, one), []).append(one)
        if None in groups or (len(groups) == 1 and is_sharded(instances[0].__class__)):
            # The router refuses what names no shard.
            return plain(self, instances, querysets)
        parts: list[Any] = []
        rows: list[Any] = []
        for where, group in groups.items():
            assert where is not None, "it was looked for"
            with within(where):
                parts.append(plain(self, group, querysets and [querysets[0]._chain()]))
                # Django itself will prefetch what these are to have, of all of them.
                lookups, parts[-1][0]._prefetch_related_lookups = parts[-1][0]._prefetch_related_lookups, ()
                rows += parts[-1][0]
        found = parts[0][0]
        found._result_cache, found._prefetch_related_lookups = rows, lookups
        return parts[0]

    return get_prefetch_querysets


def _where(instance: Any) -> str | None:
    """The shard of an object."""
    there: str | None = instance._state.db
    return there if shard_of_alias(there) is not None else alias_of_instance(instance)


def _of_reference(descriptor: Any, instance: Any) -> str | None:
    """The shard of the row that an object refers to."""
    field = descriptor.field
    if not (field.target_field.primary_key and has_shard_id(field.remote_field.model)):
        return None
    id = getattr(instance, field.attname)
    return alias(0) if id is None else _of_id(id)


def _of_id(id: Any) -> str:
    """The shard of the row with this ID."""
    try:
        return alias_of_id(int(id))
    except WrongId:
        # There is no such row, on whatever shard it is looked for.
        return alias(0)


def _validate(self: Any, value: Any, model_instance: Any) -> None:
    """Checks a reference of a model that is not sharded, which says nothing about where the row is: the ID does. `full_clean`
    and forms call this."""
    where = None
    if value is not None and not is_sharded(model_instance.__class__) and has_shard_id(self.remote_field.model):
        where = _of_id(value)
    with nullcontext() if where is None else within(where):
        _VALIDATE(self, value, model_instance)


def _post_clean(self: Any) -> None:
    """Looks whether what a form has chosen for its many-to-many fields is on the shard of its object. Saving would find it, after
    the object itself was written."""
    _POST_CLEAN(self)
    if self.errors or not is_sharded(self.instance.__class__):
        return
    where = _where(self.instance)
    for name in (field.name for field in self.instance._meta.many_to_many):
        field = self.fields.get(name)
        if where is None or not isinstance(field, ModelMultipleChoiceField):
            continue
        for chosen in self.cleaned_data[name]:
            if _where(chosen) != where:
                text, value = field.error_messages["invalid_choice"], {"value": chosen.pk}
                self.add_error(name, ValidationError(text, code="invalid_choice", params=value))
                break


def _join_as_sql(self: Any, compiler: Any, connection: Any) -> Any:
    """Refuses to join a table of the shards in another database. The server would only say that it does not exist, or have one
    from before the shards."""
    ends = self.join_field.model, self.join_field.related_model
    if is_sharded(ends[0]) != is_sharded(ends[1]) and shard_of_alias(connection.alias) is None:
        here, there = sorted(ends, key=is_sharded)
        _refuse_to_join(here, self.join_field.name, there)
    return _JOIN_AS_SQL(self, compiler, connection)


def _split_exclude(self: Any, filter_expr: Any, can_reuse: Any, names_with_path: Any) -> Any:
    """The same, for an `exclude` by related rows: it becomes a subquery, which begins with their table."""
    for name, path in names_with_path:
        for one in path:
            if is_sharded(one.to_opts.model) and not is_sharded(one.from_opts.model):
                _refuse_to_join(one.from_opts.model, name, one.to_opts.model)
    return _SPLIT_EXCLUDE(self, filter_expr, can_reuse, names_with_path)


def _query_as_sql(self: Any, compiler: Any, connection: Any) -> Any:
    """Refuses a query of rows of shards as a part of one of another database."""
    if is_sharded(self.model) and shard_of_alias(connection.alias) is None:
        name = self.model.__name__
        raise NoShard(f"{name} is in shards, and no part of a query of {connection.alias!r}: {_remedy(name)}")
    return _QUERY_AS_SQL(self, compiler, connection)


def _refuse_to_join(here: Any, relation: str, there: Any) -> NoReturn:
    name = there.__name__
    raise NoShard(
        f"{here.__name__}.{relation} leads to {name}, which is in shards, so they are not joined: {_remedy(name)}"
    )


def _remedy(name: str) -> str:
    """How to ask for rows by what rows of this model say."""
    return f"first ask {name} with .for_key(key) or .across_shards(), then filter by the list of values that it gives"


def change_django() -> None:
    """Makes Django use all this for the models that are prepared from now on."""
    if hasattr(django, "_pgshard"):
        return
    django._pgshard = True
    for name in ("create_forward_many_to_many_manager", "create_reverse_many_to_one_manager"):
        setattr(django, name, managers(getattr(django, name)))
    ForeignKey.validate, BaseModelForm._post_clean = _validate, _post_clean
    Join.as_sql, Query.as_sql, Query.split_exclude = _join_as_sql, _query_as_sql, _split_exclude
    forward, reverse = django.ForwardManyToOneDescriptor, django.ReverseOneToOneDescriptor
    forward.get_prefetch_querysets = _of_each_shard(
        forward.get_prefetch_querysets, lambda self: self.field.remote_field.model, _of_reference
    )
    reverse.get_prefetch_querysets = _of_each_shard(
        reverse.get_prefetch_querysets,
        lambda self: self.related.related_model,
        lambda self, one: alias_of_owner(self.related.related_model, self.related.field, one),
    )
