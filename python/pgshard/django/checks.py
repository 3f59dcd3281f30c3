"""System checks: they report mistakes that would otherwise only show when a query finds no
shard."""

from __future__ import annotations

from typing import Any

import django
from django.apps import apps
from django.conf import settings
from django.core import checks
from django.core.exceptions import FieldDoesNotExist
from django.db import models

from ..keys import KeyKind
from ..values import Fold
from .cluster import state
from .deletion import ON_DELETE
from .elsewhere import leads_elsewhere
from .fields import ShardKeyField
from .lookups import ModelLookup, lookups_of
from .managers import ShardedManager, ShardedQuerySet
from .models import ShardedModel
from .routing import ShardRouter
from .sharded import KEYS, has_shard_id, is_sharded, key_fields, pk_says_shard, says_the_shard


def _error(number: int, message: str, hint: str, obj: Any = None) -> checks.CheckMessage:
    return checks.Error(message, hint=hint, obj=obj, id=f"pgshard.E{number:03d}")


@checks.register("pgshard")
def check_settings(**_: Any) -> list[Any]:
    """Checks the settings."""
    found: list[Any] = []
    if state.cluster is None:
        hint = 'DATABASES = pgshard.django.databases("pgshard.toml", default={…})'
        found.append(
            _error(
                1,
                "pgshard.django is installed, but DATABASES was not made by"
                " pgshard.django.databases",
                hint,
            )
        )
    if django.VERSION[:3] == (6, 1, 0):
        message = "Django 6.1.0 loses the shard of a forward Prefetch"
        found.append(_error(18, message, "install Django 6.1.1 or later"))
    paths = [
        one if isinstance(one, str) else type(one).__qualname__ for one in settings.DATABASE_ROUTERS
    ]
    if not any(path.rpartition(".")[2] == ShardRouter.__name__ for path in paths):
        hint = 'DATABASE_ROUTERS = ["pgshard.django.ShardRouter"]'
        found.append(_error(2, "the router of shards is not among DATABASE_ROUTERS", hint))
    for name, database in settings.DATABASES.items():
        if database.get("ATOMIC_REQUESTS"):
            message = (
                f"ATOMIC_REQUESTS of {name} covers no shard: what a request has written there stays"
                " when it fails"
            )
            hint = "run_in_shard(key, function) for what belongs together; then silence this"
            found.append(checks.Warning(message, hint=hint, id="pgshard.W002"))
    return found


@checks.register("pgshard", checks.Tags.models)
def check_models(app_configs: Any = None, **_: Any) -> list[Any]:
    """Checks the models."""
    found: list[Any] = []
    wanted = None if app_configs is None else {config.label for config in app_configs}
    for model in apps.get_models():
        if wanted is not None and model._meta.app_label not in wanted:
            continue
        if issubclass(model, ShardedModel) and not is_sharded(model):
            found.append(_neither(model))
        elif not model._meta.proxy:
            found += _check_sharded(model) if is_sharded(model) else _check_plain(model)
        if issubclass(model, ShardedModel):
            found += _check_managers(model)
    return found


@checks.register("pgshard", checks.Tags.admin)
def check_admin(**_: Any) -> list[Any]:
    """Checks the classes with which sharded models are registered in the admin."""
    if not apps.is_installed("django.contrib.admin"):
        return []
    from django.contrib.admin.sites import all_sites

    from .admin import ShardedModelAdmin

    return [
        checks.Warning(
            f"the admin's list of {model._meta.label} names no shard, so it fails",
            hint=f"class {type(one).__name__}(pgshard.django.admin.ShardedModelAdmin)",
            obj=type(one),
            id="pgshard.W004",
        )
        for site in all_sites
        for model, one in site._registry.items()
        if is_sharded(model) and not isinstance(one, ShardedModelAdmin)
    ]


def _check_managers(model: Any) -> list[Any]:
    found: list[Any] = []
    for manager in model._meta.managers:
        if not isinstance(manager, ShardedManager):
            hint = "derive it from ShardedManager, or from ShardedManager.from_queryset(…)"
            found.append(
                _error(
                    4,
                    f"the manager {manager.name} of a sharded model is not a ShardedManager",
                    hint,
                    model,
                )
            )
        elif not issubclass(manager._queryset_class, ShardedQuerySet):
            name = manager._queryset_class.__name__
            message = (
                f"the query sets of the manager {manager.name} of a sharded model do not look for"
                " their shard"
            )
            found.append(_error(4, message, f"class {name}(pgshard.django.ShardedQuerySet)", model))
    return found


def _check_sharded(model: Any) -> list[Any]:
    found: list[Any] = []
    if not issubclass(model, ShardedModel):
        found.append(
            _error(
                3,
                "a sharded model does not derive from ShardedModel",
                "class Photo(ShardedModel)",
                model,
            )
        )
        return found
    if not key_fields(model) and not has_shard_id(model):
        found.append(_neither(model))
    kind = state.cluster.config.key if state.cluster is not None else KeyKind.INTEGER
    for field in key_fields(model):
        if field.null:
            found.append(
                _error(6, "the key of a sharded model may be null", "leave null=True out", field)
            )
        if isinstance(field, ShardKeyField) and kind is not KeyKind.INTEGER:
            hint = (
                f"the cluster's keys are {kind.value}: use ShardKeyForeignKey to a model with such"
                " a primary key"
            )
            found.append(
                _error(
                    7,
                    "a ShardKeyField holds integers, but the cluster's keys are not integers",
                    hint,
                    field,
                )
            )
    for field in model._meta.local_fields:
        target = getattr(field.remote_field, "model", None)
        if target is None or isinstance(target, str) or is_sharded(target):
            continue
        if field.db_constraint:
            hint = (
                "db_constraint=False, on_delete=models.DO_NOTHING; for the key itself use"
                " ShardKeyForeignKey"
            )
            found.append(
                _error(
                    8,
                    f"{target._meta.label} is not in the shards, so no constraint can refer to it",
                    hint,
                    field,
                )
            )
        elif isinstance(field, KEYS):
            found += _check_on_delete(field)
        elif field.remote_field.on_delete is not models.DO_NOTHING:
            hint = "on_delete=models.DO_NOTHING, and delete by key what belongs to it"
            message = (
                f"{target._meta.label} is not in the shards: deleting one cannot look for rows of"
                " this model in all shards"
            )
            found.append(_error(11, message, hint, field))
    for field in model._meta.local_many_to_many:
        if leads_elsewhere(field):
            found += _check_many_elsewhere(field)
    for field in model._meta.private_fields:
        # A GenericRelation. Django deletes what it leads to, and looks for it on the shard.
        if hasattr(field, "bulk_related_objects") and not is_sharded(field.remote_field.model):
            hint = "query it by content type and ID"
            label = field.remote_field.model._meta.label
            found.append(
                _error(
                    14,
                    f"{label} is not in the shards: deleting a row cannot look there",
                    hint,
                    field,
                )
            )
    found += _check_unique(model)
    found += _check_lookups(model)
    found += _check_references(model)
    return found


def _check_lookups(model: Any) -> list[Any]:
    """Looks whether the config has each look-up of a model, and the model the constraint that it
    needs."""
    try:
        lookups = lookups_of(model)
    except FieldDoesNotExist as error:
        return [_error(19, f"a look-up is over a field that does not exist: {error}", "", model)]
    return [one for lookup in lookups for one in _check_lookup(model, lookup)]


def _check_lookup(model: Any, lookup: ModelLookup) -> list[Any]:
    if state.cluster is None:
        return []
    names = ", ".join(lookup.names)
    definition = lookup.find_definition()
    if definition is None:
        return [_error(20, f"the config has no look-up over {names}", lookup.section(), model)]
    for field in lookup.fields:
        if getattr(field, "generated", False):
            hint = "make it an ordinary field, and set it before the row is saved"
            message = f"a look-up is over {field.name}, which the server computes"
            return [_error(22, message, hint, model)]
    unique = {(one.name,) for one in lookup.fields if one.unique}
    unique |= {tuple(one) for one in model._meta.unique_together}
    for one in model._meta.total_unique_constraints:
        if one.nulls_distinct is False and set(one.fields) == set(lookup.names):
            message = f"rows of two shards may have NULL in {names}, which a look-up leaves out"
            return [_error(21, message, "leave nulls_distinct=False out", model)]
        if one.deferrable is None:
            unique.add(tuple(one.fields))
    if definition.fold is Fold.NONE and not any(
        sorted(one) == sorted(lookup.names) for one in unique
    ):
        hint = "unique=True for one field, UniqueConstraint for several"
        return [
            _error(21, f"no unique constraint is over {names}, as its look-up needs", hint, model)
        ]
    return []


def _check_many_elsewhere(field: Any) -> list[Any]:
    """Looks at a many-to-many field to a model that is not sharded: the table that joins the two
    must be in the shards, and have no constraint to the other model."""
    label, through = field.remote_field.model._meta.label, field.remote_field.through
    if not is_sharded(through):
        message = f"{through._meta.label} joins rows of shards with {label}, and is not sharded"
        hint = "derive it from ShardedModel"
    elif through._meta.auto_created and field.remote_field.db_constraint:
        message = f"{label} is not in the shards, so no constraint can refer to it"
        hint = "ManyToManyField(…, db_constraint=False)"
    else:
        return []
    return [_error(9, message, hint, field)]


def _check_on_delete(field: Any) -> list[Any]:
    label = field.remote_field.model._meta.label
    if not field.says_on_delete:
        message = f"deleting a {label} leaves the rows of this model: their key has no on_delete"
        hint = "on_delete=models.CASCADE, PROTECT or RESTRICT; or DO_NOTHING, if that is meant"
        return [checks.Warning(message, hint=hint, obj=field, id="pgshard.W003")]
    if field.remote_field.on_delete in ON_DELETE:
        return []
    hint = "on_delete=models.CASCADE, PROTECT, RESTRICT or DO_NOTHING"
    message = f"the key says where the row is: deleting a {label} cannot change it"
    return [_error(11, message, hint, field)]


def _check_references(model: Any) -> list[Any]:
    """Looks for relations to sharded models with primary keys that several shards may have."""
    found: list[Any] = []
    hint = (
        "leave its primary key to the shard (keep an old number in another column), or refer to it"
        " by a ForeignObject that names the key too"
    )
    for field in (*model._meta.local_fields, *model._meta.local_many_to_many):
        target = field.remote_field and field.remote_field.model
        if target is None or isinstance(target, str) or not field.is_relation:
            continue
        if getattr(field.remote_field, "parent_link", False):
            continue  # The row of the same key.
        if field.many_to_many:
            if not field.remote_field.through._meta.auto_created:
                continue  # Its references are looked at by themselves.
            ends = [one for one in (model, target) if is_sharded(one) and not pk_says_shard(one)]
        else:
            says = any(isinstance(one, KEYS) for one in field.foreign_related_fields)
            ends = [target] if is_sharded(target) and not pk_says_shard(target) and not says else []
        for end in ends[:1]:
            message = (
                f"the primary key of {end._meta.label}, {end._meta.pk.name}, does not say its"
                " shard: two shards may have the same, and the relation would lead to either row"
            )
            found.append(_error(16, message, hint, field))
    for field in key_fields(model):
        target = field.remote_field and field.remote_field.model
        if target is None or isinstance(target, str) or not is_sharded(target):
            continue
        if not isinstance(field.target_field, KEYS):
            message = (
                f"the key refers to {target._meta.label}, which is in the shards by a key of its"
                " own: both rows would be on different shards"
            )
            found.append(_error(17, message, "to_field= names that key, or use ForeignKey", field))
    return found


def _neither(model: Any) -> Any:
    name = model._meta.pk.name
    message = (
        f"a sharded model has neither a key nor an ID of its shard: its primary key, {name}, does"
        " not say where a row is"
    )
    hint = (
        f"add a key, user_id = ShardKeyField(), or leave primary_key=True of {name}, and id ="
        " None, out"
    )
    return _error(5, message, hint, model)


def _check_unique(model: Any) -> list[Any]:
    keys = {name for field in key_fields(model) for name in (field.name, field.attname)}
    looked_up = [one.fields for one in getattr(model._meta, "lookups", ())]
    found: list[Any] = []
    for field in model._meta.local_fields:
        target = getattr(field.remote_field, "model", None)
        if target is not None and not isinstance(target, str) and is_sharded(target):
            continue  # What it refers to is on the same shard.
        if (field.name,) in looked_up:
            continue
        if field.unique and not field.primary_key and field.name not in keys:
            hint = (
                "it is unique within each shard; to be unique in all, it needs a look-up: "
                f'Meta.lookups = [Lookup("{field.name}")]'
            )
            message = "unique across shards cannot be promised: two shards may have the same value"
            found.append(checks.Warning(message, hint=hint, obj=field, id="pgshard.W001"))
    constraints = [
        one for one in model._meta.constraints if isinstance(one, models.UniqueConstraint)
    ]
    for names in (*model._meta.unique_together, *(_fields_of(model, one) for one in constraints)):
        if tuple(names) in looked_up:
            continue
        if not any(says_the_shard(model._meta.get_field(name)) for name in names):
            message = (
                "unique across shards cannot be promised: two shards may have the same"
                f" {', '.join(names)}"
            )
            hint = "name the key too: then it holds everywhere, for each key"
            found.append(checks.Warning(message, hint=hint, obj=model, id="pgshard.W001"))
    return found


def _fields_of(model: Any, constraint: Any) -> list[str]:
    references = (model._get_expr_references(one) for one in constraint.expressions)
    return [*constraint.fields, *(name for found in references for name, *_ in found)]


def _check_plain(model: Any) -> list[Any]:
    found = _check_references(model)
    if getattr(model._meta, "lookups", ()):
        message = "a model that is not in the shards has look-ups"
        found.append(_error(19, message, "unique=True is enough for it", model))
    for field in model._meta.local_fields:
        target = getattr(field.remote_field, "model", None)
        if target is None or isinstance(target, str) or not is_sharded(target):
            continue
        if field.db_constraint:
            hint = "keep its ID in a BigIntegerField"
            found.append(
                _error(
                    10,
                    f"{target._meta.label} is in the shards, so no constraint can refer to it",
                    hint,
                    field,
                )
            )
        elif field.remote_field.on_delete is not models.DO_NOTHING:
            hint = "on_delete=models.DO_NOTHING, and delete by its ID what refers to it"
            message = (
                f"{target._meta.label} is in the shards: deleting one cannot look for rows of this"
                " model there"
            )
            found.append(_error(12, message, hint, field))
    for field in model._meta.local_many_to_many:
        target = field.remote_field.model
        if not isinstance(target, str) and is_sharded(target):
            hint = (
                "make a model of the relation, with the ID of the other side in a BigIntegerField"
            )
            found.append(
                _error(
                    13,
                    f"{target._meta.label} is in the shards, so it cannot be joined",
                    hint,
                    field,
                )
            )
    for field in model._meta.private_fields:
        if hasattr(field, "bulk_related_objects") and is_sharded(field.remote_field.model):
            hint = (
                "take it away, query by content type and ID with a key, and delete so what belongs"
                " to it"
            )
            label = field.remote_field.model._meta.label
            message = (
                f"{label} is in the shards: deleting a row, or asking for what belongs to it,"
                " cannot look in all of them"
            )
            found.append(_error(15, message, hint, field))
    return found
