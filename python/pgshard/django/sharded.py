"""Which models are sharded, and the names of their keys. Their fields show it, because a model in a
migration has no base classes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from django.apps import apps
from django.db.models import CompositePrimaryKey, ForeignKey
from django.db.models.base import ModelBase
from django.db.models.constants import LOOKUP_SEP
from django.db.models.fields.reverse_related import ForeignObjectRel
from django.db.models.signals import class_prepared

from .fields import (
    ShardedBigAutoField,
    ShardKeyField,
    ShardKeyForeignKey,
    ShardKeyOneToOneField,
)

KEYS = (ShardKeyField, ShardKeyForeignKey, ShardKeyOneToOneField)
OBJECT = object()
"""In the place of a key's field: only an object of the model identifies the shard, and no value."""


def is_sharded(model: Any) -> bool:
    """Whether a model's table is in the shards: it has a key or an ID of a shard, or it joins
    models that have one."""
    known = model.__dict__.get("_pgshard_sharded")
    if known is None:
        if not isinstance(model, ModelBase):
            return False  # Django's cache in a database calls routers with a class of its own.
        known = _is_sharded(model)
        if _is_complete(model):
            model._pgshard_sharded = known
    return bool(known)


def _is_complete(model: Any) -> bool:
    """Whether a model has all its fields. The automatic table of a ManyToManyField is made while
    its owner may still lack the fields that come later, or that it inherits."""
    owner = model._meta.auto_created
    whole: Any = owner if isinstance(owner, type) else model
    meta = whole._meta
    return meta.apps.all_models[meta.app_label].get(meta.model_name) is meta.model


def _is_sharded(model: Any) -> bool:
    owner = model._meta.auto_created
    if isinstance(owner, type):
        # It is the automatic table of a ManyToManyField.
        return is_sharded(owner)
    if model._meta.proxy:
        return is_sharded(model._meta.concrete_model)
    if any(isinstance(field, (ShardedBigAutoField, *KEYS)) for field in model._meta.local_fields):
        return True
    return any(is_sharded(parent) for parent in model._meta.parents)


def automatic_tables(model: Any) -> Iterator[Any]:
    """The models of the automatic tables of a model's ManyToManyFields."""
    for field in model._meta.local_many_to_many:
        through: Any = field.remote_field.through
        # Without one, Django does not know the other model yet. The table is made when it does.
        if through is None or isinstance(through, str):
            continue
        if through._meta.auto_created is model:
            yield through


def key_fields(model: Any) -> tuple[Any, ...]:
    """The fields that hold the key."""
    found: tuple[Any, ...] | None = model.__dict__.get("_pgshard_keys")
    if found is None:
        found = tuple(field for field in model._meta.concrete_fields if isinstance(field, KEYS))
        model._pgshard_keys = found
    return found


def key_names(model: Any) -> dict[str, Any]:
    """The names of the key in a query, `user` and `user_id`, each with its field."""
    found: dict[str, Any] | None = model.__dict__.get("_pgshard_key_names")
    if found is None:
        found = {name: field for field in key_fields(model) for name in (field.name, field.attname)}
        model._pgshard_key_names = found
    return found


def shard_names(model: Any) -> dict[str, Any]:
    """The names in a query that can identify the shard: those of the key with their fields, and
    those of the ID with None."""
    found: dict[str, Any] | None = model.__dict__.get("_pgshard_names")
    if found is None:
        pk = model._meta.pk
        found = {
            **key_names(model),
            **dict.fromkeys(("pk", pk.name, pk.attname) if has_shard_id(model) else ()),
        }
        if isinstance(pk, KEYS):
            found["pk"] = pk
        model._pgshard_names = found
    return found


def placed_names(model: Any) -> dict[str, tuple[Any, bool]]:
    """The names of what may not come from another shard: the key, the ID and the references to rows
    of shards. For each the key's field, or None, and whether it is a reference."""
    found: dict[str, tuple[Any, bool]] | None = model.__dict__.get("_pgshard_placed")
    if found is None:
        found = {
            name: (key, True)
            for attribute, reference, key in rules(model).references
            for name in (reference, attribute)
        }
        found.update((name, (field, False)) for name, field in shard_names(model).items())
        model._pgshard_placed = found
    return found


def shard_conditions(model: Any) -> dict[str, tuple[Any, bool]]:
    """The conditions of a query that can identify the shard, such as `user__pk` or `id__in`: for
    each the key's field, or None for the ID, and whether its value is a list."""
    found: dict[str, tuple[Any, bool]] | None = model.__dict__.get("_pgshard_conditions")
    if found is None:
        found = {}
        for name, field in shard_names(model).items():
            for asked in (name, *(f"{name}__{target}" for target in _names_of_target(field))):
                found[asked] = found[f"{asked}__exact"] = (field, False)
                found[f"{asked}__in"] = (field, True)
        model._pgshard_conditions = found
    return found


def reference_condition(model: Any, name: str) -> tuple[Any, bool] | None:
    """The meaning of a condition that names the shard by a row of another model, which is on the
    same shard, such as `album`, `tags__in` or `album__owner__user`: in the form of
    `shard_conditions`; None if it names no shard."""
    conditions, targets = _references(model)
    found = conditions.get(name)
    first, _, rest = name.partition(LOOKUP_SEP)
    if found is not None or not rest or first not in targets:
        return found
    return reference_condition(targets[first], rest)


def _references(model: Any) -> tuple[dict[str, tuple[Any, bool]], dict[str, Any]]:
    """The conditions of one step, and by name the models to which a step leads."""
    known: tuple[dict[str, tuple[Any, bool]], dict[str, Any]] | None = model.__dict__.get(
        "_pgshard_related"
    )
    if known is not None:
        return known
    found: dict[str, tuple[Any, bool]] = {}
    targets: dict[str, Any] = {}
    ready = model._meta.apps.models_ready
    # Before all models are known Django does not know which refer to this one.
    for field in (
        model._meta.get_fields() if ready else (*model._meta.fields, *model._meta.many_to_many)
    ):
        target = field.related_model
        if not isinstance(target, type) or not is_sharded(target) or not says_where_it_is(field):
            continue
        key = _key_of_reference(field, target)
        for name in {field.name, getattr(field, "attname", field.name)}:
            found.update(
                {
                    name: (key, False),
                    f"{name}__exact": (key, False),
                    f"{name}__in": (key, True),
                }
            )
        found.update(
            (f"{field.name}__{name}", how) for name, how in shard_conditions(target).items()
        )
        targets[field.name] = target
    if ready:
        model._pgshard_related = found, targets
    return found, targets


def _key_of_reference(field: Any, target: Any) -> Any:
    """What `shard_conditions` has for the values of a relation to a sharded model. `OBJECT`, if
    they are numbers that each shard has: only an object identifies its shard."""
    held = getattr(field, "target_field", None) or target._meta.pk
    if isinstance(held, KEYS):
        return held
    return None if held.primary_key and has_shard_id(target) else OBJECT


def says_where_it_is(relation: Any) -> bool:
    """Whether the rows at both ends of a relation between sharded models are on the same shard: one
    refers to the other."""
    if isinstance(relation, ForeignObjectRel):
        relation = relation.field
    if relation.many_to_many:
        return is_sharded(relation.remote_field.through)
    return isinstance(relation, ForeignKey) and is_sharded(relation.model)


def _names_of_target(field: Any) -> tuple[str, ...]:
    """The lookups after a key's name that address its value, such as the `pk` of `user__pk`."""
    target = field.target_field if field is not None and field.remote_field is not None else None
    return (
        ("pk", "id") if target is None else (target.name, *(("pk",) if target.primary_key else ()))
    )


def has_shard_id(model: Any) -> bool:
    """Whether a shard made the primary key, so that it identifies the shard."""
    found: bool | None = model.__dict__.get("_pgshard_id")
    if found is None:
        found = model._pgshard_id = isinstance(_root_pk(model), ShardedBigAutoField)
    return found


def pk_says_shard(model: Any) -> bool:
    """Whether no two shards have rows with the same primary key: a shard made it, or the key is in
    it."""
    found: bool | None = model.__dict__.get("_pgshard_pk")
    if found is None:
        pk = _root_pk(model)
        parts = pk.fields if isinstance(pk, CompositePrimaryKey) else (pk,)
        found = model._pgshard_pk = any(
            isinstance(part, (ShardedBigAutoField, *KEYS)) for part in parts
        )
    return found


def says_the_shard(field: Any) -> bool:
    """Whether rows with the same value of this field are on the same shard: it is a key, an ID, or
    a reference to a row."""
    if isinstance(field, (ShardedBigAutoField, *KEYS)):
        return True
    return (
        isinstance(field, ForeignKey)
        and field.target_field.primary_key
        and has_shard_id(field.remote_field.model)
    )


class Rules(NamedTuple):
    """The attributes that determine where the objects of a model belong. Each write needs them, so
    they are kept for each model."""

    keys: tuple[tuple[str, Any], ...]
    """The attributes that hold the key, each with its field."""
    id: str | None
    """The attribute with the primary key, if a shard made it."""
    references: tuple[tuple[str, str, Any], ...]
    """The attributes with IDs or keys of other rows in shards, each with the name of its field, and
    the key's field or None."""
    relations: tuple[Any, ...]
    """The fields that may refer to rows of shards, whatever their IDs are made of."""


def _references_of(model: Any) -> Iterator[tuple[str, str, Any]]:
    for field in model._meta.concrete_fields:
        target = field.remote_field and field.remote_field.model
        if target is None or isinstance(target, str) or not is_sharded(target):
            continue
        key = _key_of_reference(field, target)
        if key is not OBJECT and not isinstance(field, KEYS):
            yield field.attname, field.name, key


def _relations(model: Any) -> Iterator[Any]:
    for field in model._meta.concrete_fields:
        target = field.remote_field and field.remote_field.model
        if target is not None and not isinstance(target, str) and is_sharded(target):
            yield field
    for field in model._meta.private_fields:
        if hasattr(field, "fk_field"):  # A GenericForeignKey.
            yield field


def rules(model: Any) -> Rules:
    """The rules of a model."""
    found: Rules | None = model.__dict__.get("_pgshard_rules")
    if found is None:
        found = model._pgshard_rules = Rules(
            tuple((field.attname, field) for field in key_fields(model)),
            model._meta.pk.attname if has_shard_id(model) else None,
            tuple(_references_of(model)),
            tuple(_relations(model)),
        )
    return found


def _root_pk(model: Any) -> Any:
    """The primary key; if it is a OneToOneField to another model, that model's primary key."""
    field = model._meta.pk
    seen = 0
    while field is not None and field.remote_field is not None and seen < 10:
        field = field.remote_field.model._meta.pk
        seen += 1
    return field


class _Tables:
    """By table: the model, if it is not in the shards. It is computed again when models change."""

    by_name: dict[str, Any] | None = None


def unsharded_tables() -> dict[str, Any]:
    """The tables that are not in the shards, with their models."""
    found = _Tables.by_name
    if found is None:
        models = apps.get_models(include_auto_created=True, include_swapped=True)
        found = {model._meta.db_table: model for model in models if not is_sharded(model)}
        for model in models:
            if is_sharded(model):
                found.pop(model._meta.db_table, None)
        if apps.models_ready:
            _Tables.by_name = found
    return found


def _forget(**_: Any) -> None:
    _Tables.by_name = None


class_prepared.connect(_forget, dispatch_uid="pgshard tables", weak=False)
