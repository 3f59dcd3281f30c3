"""What a model says about its look-ups, `Meta.lookups`, and their values in its rows."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from functools import partial
from typing import Any

from django.db import connections, models
from django.db.models import options

from ..errors import LookupUnusable
from ..lookups import Execute, Lookups
from ..values import Definition, Fold
from .backend import pools
from .cluster import cluster, unsharded_host
from .errors import NoClaim
from .sharded import KEYS


class Lookup:
    """Fields of a sharded model with values that belong to one key each, over all shards. The
    config has the same look-up, and the model has a unique constraint over the fields.

    class Member(ShardedModel):
        user_id = ShardKeyField()
        email = models.EmailField(unique=True)

        class Meta:
            lookups = [Lookup("email")]
    """

    def __init__(self, *fields: str) -> None:
        self.fields = fields

    def __repr__(self) -> str:
        return f"Lookup({', '.join(map(repr, self.fields))})"


class ModelLookup:
    """A look-up of a model."""

    def __init__(self, model: Any, names: tuple[str, ...]) -> None:
        self.model = model
        self.names = names
        """The names of its fields."""
        self.fields = tuple(model._meta.get_field(name) for name in names)
        self.attributes = tuple(field.attname for field in self.fields)
        self._keys = [one for one in model._meta.local_concrete_fields if isinstance(one, KEYS)]

    def definition(self) -> Definition:
        """The config's definition. Raises `LookupUnusable`."""
        found = self.find_definition()
        if found is None:
            raise LookupUnusable(
                f"of {self.model._meta.label}",
                f"the config has none over these columns: {self.section()}",
            )
        return found

    def find_definition(self) -> Definition | None:
        """The config's definition over the same columns and a key of the model, if there is one."""
        table, columns = self.model._meta.db_table, tuple(one.column for one in self.fields)
        keys = {field.column for field in self._keys}
        for one in cluster().config.lookups.values():
            if (one.table, one.columns) == (table, columns) and one.key in keys:
                return one
        return None

    def section(self) -> str:
        """What to add to the config."""
        columns = ", ".join(f'"{field.column}"' for field in self.fields)
        key = self._keys[0].column if self._keys else "…"
        return (
            f'add [lookups.NAME] with table = "{self.model._meta.db_table}", columns = [{columns}]'
            f' and key = "{key}"'
        )

    def key(self, instance: Any) -> Any:
        """The key of an object, which a claim is for. Raises `NoClaim` if it has none yet."""
        column = self.definition().key
        field = next(one for one in self._keys if one.column == column)
        value = getattr(instance, field.attname)
        if value is None or hasattr(value, "resolve_expression"):
            raise NoClaim(
                f"{self.model.__name__}.{field.name} is the key for which"
                f" {' and '.join(self.names)} is claimed, so set it first"
            )
        return field.to_python(value)

    def values(self, given: Iterable[Any]) -> tuple[Any, ...] | None:
        """The values of attributes, as they are looked up; None if one is NULL. Raises `NoClaim`
        for an expression."""
        found = []
        for field, value in zip(self.fields, given):
            inner = value.value if isinstance(value, models.Value) else value
            if hasattr(inner, "resolve_expression"):
                raise NoClaim(
                    f"{self.model.__name__}.{field.name} is of a look-up, and the server would"
                    " compute its value: claims need the value itself"
                )
            prepared = field.get_prep_value(inner)
            if prepared is None:
                return None
            found.append(prepared)
        return tuple(found)

    def values_of(self, instance: Any) -> tuple[Any, ...] | None:
        """The values of an object, as saving it writes them; None if one is NULL. Raises `NoClaim`
        for an expression."""
        return self.values(
            getattr(instance, field.attname)
            if type(field).pre_save is models.Field.pre_save
            else field.pre_save(instance, instance._state.adding)
            for field in self.fields
        )

    def is_among(self, names: Collection[str]) -> bool:
        """Whether one of its fields has one of these names."""
        return any(field.name in names or field.attname in names for field in self.fields)

    def conditions(self, values: tuple[Any, ...]) -> dict[str, Any]:
        """The conditions for rows with these values, folded as the config says."""
        folds = self.definition().fold is Fold.ASCII
        return {
            f"{name}__iexact" if folds else name: value for name, value in zip(self.names, values)
        }


def lookups() -> Lookups:
    """What finds and claims values in the cluster. Raises `ImproperlyConfigured` if tests would
    reach a real shard."""
    pools.check_tests()
    return cluster().lookups


def open_views() -> dict[str, Execute]:
    """What runs statements in the transactions that this thread has open on shards, by alias. On an
    unsharded host, rows are in them that no other connection sees yet. Those in which a statement
    failed run none, and have no rows to keep."""
    found: dict[str, Execute] = {}
    for where, connection in pools.slots().transactions.items():
        is_begun = connection.connection is not None
        failed = connection.needs_rollback or connection.has_failed()
        if is_begun and connection.in_atomic_block and not failed:
            found[where] = partial(execute, where)
    return found


def execute(using: str, sql: str, params: dict[str, Any]) -> list[Any]:
    """Runs a template of a statement, and returns its rows."""
    with connections[using].cursor() as cursor:
        cursor.execute(sql, params)
        rows: list[Any] = cursor.fetchall()
    return rows


def find_keys(name: str, values: Sequence[tuple[Any, ...]]) -> list[Any]:
    """The keys of values of a look-up, as the thread sees them."""
    views = () if unsharded_host() is None else tuple(open_views().values())
    return lookups().find_all(name, values, views)


def lookups_of(model: Any) -> tuple[ModelLookup, ...]:
    """The look-ups over a model's own table."""
    found: tuple[ModelLookup, ...] | None = model.__dict__.get("_pgshard_lookups")
    if found is None:
        meta = model._meta.concrete_model._meta
        found = tuple(ModelLookup(meta.model, one.fields) for one in getattr(meta, "lookups", ()))
        model._pgshard_lookups = found
    return found


def lookups_of_rows(model: Any) -> tuple[ModelLookup, ...]:
    """The look-ups over the tables of a model and those that it inherits from."""
    found: tuple[ModelLookup, ...] | None = model.__dict__.get("_pgshard_row_lookups")
    if found is None:
        base = model._meta.concrete_model  # All of a proxy's, once.
        parents = (one for parent in base._meta.all_parents for one in lookups_of(parent))
        found = model._pgshard_row_lookups = (*lookups_of(model), *parents)
    return found


def change_django() -> None:
    """Makes Django take `lookups` in the Meta of a model."""
    options.DEFAULT_NAMES = (*options.DEFAULT_NAMES, "lookups")


def forget_in_migrations(model: Any) -> None:
    """Leaves a model's look-ups out of Django's migrations: shard migrations make them."""
    model._meta.original_attrs.pop("lookups", None)
