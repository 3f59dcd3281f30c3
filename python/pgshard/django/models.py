"""The base of sharded models."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import Any

from django.core.exceptions import NON_FIELD_ERRORS, ValidationError
from django.db import models, router
from django.db.models.options import Options
from django.db.models.signals import class_prepared
from django.utils.functional import cached_property

from ..errors import LookupNotComplete, WrongId, WrongKey
from . import claiming, deletion, fixtures, forms, joins, lookups, relations, requests, transactions
from .cluster import AllRows, unsharded_host
from .errors import NoShard, WrongShard
from .fields import (
    ShardedBigAutoField,
)
from .managers import ShardedManager
from .reach import all_rows_meant, objects_meant
from .routing import (
    check_instance,
    check_parents,
    place_row,
    run_on,
    same_row,
    where_it_belongs,
)
from .sharded import automatic_tables, is_sharded, key_fields, key_names, placed_names

lookups.change_django()


class ShardedModel(models.Model):
    """A model with its rows in the shards. Give it a key, a `ShardKeyField`, `ShardKeyForeignKey`
    or `ShardKeyOneToOneField`; the shard makes its ID.

    class Photo(ShardedModel):
        user_id = ShardKeyField()
        title = models.CharField(max_length=200)
    """

    id = ShardedBigAutoField(primary_key=True)

    objects = ShardedManager()

    class Meta:
        abstract = True

    def __eq__(self, other: object) -> bool:
        """The same as Django's; rows of two shards are not equal."""
        same: Any = super().__eq__(other)
        return same_row(self, other) if same is True else same

    __hash__ = models.Model.__hash__

    def save_base(self, *args: Any, using: str | None = None, **kwargs: Any) -> None:
        """The same as Django's, on the shard where the row belongs. Raises `WrongShard` if it would
        go to another."""
        using = using or router.db_for_write(type(self), instance=self)
        check_instance(self, using)
        run_on(using, partial(super().save_base, *args, using=using, **kwargs))
        if isinstance(using, AllRows):
            place_row(self, using)

    def _save_table(
        self,
        raw: bool = False,
        cls: Any = None,
        force_insert: bool = False,
        force_update: bool = False,
        using: Any = None,
        update_fields: Any = None,
    ) -> Any:
        """The same as Django's, and it claims the values of look-ups that change."""
        save = partial(
            super()._save_table, raw, cls, force_insert, force_update, using, update_fields
        )
        saved = claiming.save(self, cls, using, update_fields, bool(force_insert), save)
        if unsharded_host() is not None:
            _note_key(self)
        return saved

    def _do_update(self, base_qs: Any, *args: Any, **kwargs: Any) -> Any:
        """The same as Django's. On an unsharded host the row with this ID may be another key's."""
        if unsharded_host() is None:
            return super()._do_update(base_qs, *args, **kwargs)
        with objects_meant():
            return super()._do_update(_of_its_key(base_qs, self), *args, **kwargs)

    @classmethod
    def from_db(cls, db: Any, field_names: Any, values: Any, **kwargs: Any) -> Any:
        """The same as Django's."""
        made = super().from_db(db, field_names, values, **kwargs)
        if unsharded_host() is not None:
            place_row(made, db)
            _note_key(made)
        if lookups.lookups_of_rows(cls):
            claiming.note(made)
        return made

    def refresh_from_db(
        self, using: Any = None, fields: Any = None, *args: Any, **kwargs: Any
    ) -> None:
        """The same as Django's."""
        whole = unsharded_host() is not None
        with objects_meant() if whole else nullcontext():
            super().refresh_from_db(using, fields, *args, **kwargs)
        if fields is None and lookups.lookups_of_rows(type(self)):
            claiming.note(self)

    def full_clean(self, *args: Any, **kwargs: Any) -> None:
        """The same as Django's. Uniqueness is checked on the object's own shard."""
        with where_it_belongs(self):
            super().full_clean(*args, **kwargs)

    def clean_fields(self, *args: Any, **kwargs: Any) -> None:
        """The same as Django's, and it looks whether the row would be where it belongs: forms then
        show an error."""
        super().clean_fields(*args, **kwargs)
        try:
            check_instance(self, router.db_for_write(type(self), instance=self))
            check_parents(self)
        except NoShard:
            pass  # A form may lack the key, which the view sets before it saves.
        except (WrongId, WrongKey, WrongShard) as error:
            raise ValidationError(str(error), code="shard") from error

    def validate_unique(self, *args: Any, **kwargs: Any) -> None:
        """The same as Django's, on the object's own shard. Where that is not known, only the server
        looks."""
        with where_it_belongs(self) as known:
            if known:
                with all_rows_meant():
                    super().validate_unique(*args, **kwargs)
            else:
                self._check_lookups(*args, **kwargs)

    def _get_unique_checks(self, exclude: Any = None, *args: Any, **kwargs: Any) -> Any:
        """The same as Django's; look-ups are among the checks."""
        checks, dates = super()._get_unique_checks(exclude, *args, **kwargs)
        more = ((one.model, one.names) for one in lookups.lookups_of_rows(type(self)))
        left_out = exclude or ()
        checks += [
            pair
            for pair in more
            if pair not in checks and not any(name in left_out for name in pair[1])
        ]
        return checks, dates

    def _perform_unique_checks(self, unique_checks: Any) -> Any:
        """The same as Django's. Values of look-ups are looked for in all shards."""
        by_names = {(one.model, one.names): one for one in lookups.lookups_of_rows(type(self))}
        rest = [pair for pair in unique_checks if pair not in by_names]
        errors = super()._perform_unique_checks(rest)
        for pair in unique_checks:
            if pair in by_names and self._is_taken(by_names[pair]):
                where = pair[1][0] if len(pair[1]) == 1 else NON_FIELD_ERRORS
                errors.setdefault(where, []).append(self.unique_error_message(*pair))
        return errors

    def _is_taken(self, lookup: lookups.ModelLookup) -> bool:
        """Whether another row of any shard has this object's values. Until the look-up is complete,
        of its own shard."""
        values = lookup.values_of(self)
        if values is None:
            return False
        rows = lookup.model._base_manager.filter(**lookup.conditions(values))
        if not self._state.adding and self.pk is not None:
            rows = rows.exclude(pk=self.pk)
        try:
            return bool(rows.exists())
        except LookupNotComplete:
            return False  # The server decides.

    def _check_lookups(self, exclude: Any = None) -> None:
        """Looks for the values of look-ups only, for an object that has no shard yet."""
        known = {(one.model, one.names) for one in lookups.lookups_of_rows(type(self))}
        checks, _ = self._get_unique_checks(exclude)
        errors = self._perform_unique_checks([pair for pair in checks if pair in known])
        if errors:
            raise ValidationError(errors)

    def get_constraints(self) -> Any:
        """The same as Django's, without those of look-ups: `validate_unique` checks them in all
        shards, and its error would be there twice."""
        known = {
            (one.model, tuple(sorted(one.names))) for one in lookups.lookups_of_rows(type(self))
        }
        found = super().get_constraints()
        if not known:
            return found
        return [
            (
                model,
                [
                    one
                    for one in constraints
                    if not isinstance(one, models.UniqueConstraint)
                    or one.condition is not None
                    or (model._meta.concrete_model, tuple(sorted(one.fields))) not in known
                ],
            )
            for model, constraints in found
        ]

    def validate_constraints(self, *args: Any, **kwargs: Any) -> None:
        """The same as Django's, on the object's own shard. Where that is not known, only the server
        looks."""
        with where_it_belongs(self) as known:
            if known:
                with all_rows_meant():
                    super().validate_constraints(*args, **kwargs)

    def delete(self, *args: Any, using: str | None = None, **kwargs: Any) -> Any:
        """The same as Django's."""
        using = using or router.db_for_write(type(self), instance=self)
        return run_on(using, lambda: super(ShardedModel, self).delete(*args, using=using, **kwargs))

    delete.alters_data = True  # type: ignore[attr-defined]

    def _get_next_or_previous_by_FIELD(self, field: Any, is_next: bool, **kwargs: Any) -> Any:
        """The same as Django's `get_next_by_made_at()` and the like, on the shard that the lookups
        name. Django would query the shard of this row, and the next one may be on any."""
        rows = type(self)._default_manager.filter(**kwargs)
        try:
            where = rows.db
        except NoShard:
            name = f"get_{'next' if is_next else 'previous'}_by_{field.name}"
            key = next(iter({**key_names(type(self)), **placed_names(type(self))}))
            what = f"{type(self).__name__}.{name} looks for a row of any shard"
            raise NoShard(f"{what}: name the key, {name}({key}=…), or use shard_of(key)") from None
        here, self._state.db = self._state.db, where
        try:
            return super()._get_next_or_previous_by_FIELD(field, is_next, **kwargs)
        finally:
            self._state.db = here


def _of_its_key(rows: Any, instance: Any) -> Any:
    """These rows, those of the object's key only, if it is in their table and was read. The key may
    have become another one of the same shard since."""
    names = {
        field.attname
        for field in key_fields(rows.model)
        if field in rows.model._meta.local_concrete_fields and field.attname in instance.__dict__
    }
    if not names:
        return rows
    of_key = models.Q(**{name: instance.__dict__[name] for name in names})
    noted = getattr(instance._state, "pgshard_key", {})
    if names <= noted.keys():
        of_key |= models.Q(**{name: noted[name] for name in names})
    return rows.filter(of_key)


def _note_key(instance: Any) -> None:
    """Notes the key that an object's row has."""
    names = [field.attname for field in key_fields(type(instance))]
    has = instance.__dict__
    instance._state.pgshard_key = {name: has[name] for name in names if name in has}


def _is_same(self: Any, other: object) -> Any:
    same = models.Model.__eq__(self, other)
    return same_row(self, other) if same is True else same


def _from_db(cls: Any, db: Any, *args: Any, **kwargs: Any) -> Any:
    made = models.Model.from_db.__func__(cls, db, *args, **kwargs)
    if unsharded_host() is not None:
        place_row(made, db)
        _note_key(made)
    return made


class _ShardedOptions(Options):
    """A sharded model's `_meta`. The queries that Django itself makes must name a shard too, or are
    refused, whatever managers the model has."""

    @cached_property
    def base_manager(self) -> Any:
        """The manager that Django uses for its own queries."""
        if self.base_manager_name:
            return super().base_manager
        manager = ShardedManager()
        manager.name = "_base_manager"
        manager.model = self.model
        manager.auto_created = True
        return manager


def _prepare(sender: Any, **_: Any) -> None:
    if is_sharded(sender):
        sender._meta.__class__ = _ShardedOptions
        sender._meta.__dict__.pop("base_manager", None)
        lookups.forget_in_migrations(sender)
        if sender._meta.auto_created:
            # The table of a ManyToManyField: `Photo.tags.through.objects` finds its shard, too.
            sender._meta.local_managers.clear()
            sender.add_to_class("objects", ShardedManager())
            sender.__eq__, sender.__hash__ = _is_same, models.Model.__hash__
            sender.from_db = classmethod(_from_db)
        for table in automatic_tables(sender):
            # It was made before the model had all its fields.
            if not isinstance(table._meta, _ShardedOptions):
                _prepare(table)


class_prepared.connect(_prepare, dispatch_uid="pgshard models", weak=False)
deletion.change_django()
relations.change_django()
transactions.change_django()
forms.change_django()
fixtures.change_django()
joins.change_django()
requests.change_django()
