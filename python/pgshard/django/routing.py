"""Decides which shard a query or a write is for, or refuses to guess."""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn, TypeVar

from asgiref.sync import sync_to_async
from django.apps import apps
from django.core.exceptions import ValidationError
from django.db import connections, models, router, transaction
from django.db.transaction import TransactionManagementError

from ..errors import LegacyId, WrongId, WrongKey
from ..ids import shard_of_id
from ..keys import INTEGER_MAX, INTEGER_MIN
from ..layout import Unrouted
from ..recovery import Recovery
from .cluster import (
    ALIASES,
    AllRows,
    alias,
    cluster,
    shard_of_alias,
    state,
    unsharded_host,
)
from .errors import LayoutChanged, NoShard, ShardMoved, WrongShard, translate_errors
from .everywhere import unrouted_rows
from .sharded import is_sharded, key_fields, pk_says_shard, rules
from .uncovered import check_covered

T = TypeVar("T")


_LAYOUTS_MAX = 3
"""How often a call is repeated because the shard came to a host of another layout. Once is enough,
unless the call keeps a statement's text."""


class _Choice:
    """A shard that is chosen for the time of a block, and the choice around it."""

    __slots__ = ("is_over", "outer", "where")

    def __init__(self, where: str | None, outer: _Choice | None) -> None:
        self.where, self.outer, self.is_over = where, outer, False


_chosen: contextvars.ContextVar[_Choice | None] = contextvars.ContextVar(
    "pgshard_shard", default=None
)
_followed: contextvars.ContextVar[Any] = contextvars.ContextVar("pgshard_relation", default=None)


def shard_of_key(key: Any) -> int:
    """The shard of a key. Given an object of a sharded model, its own shard; given another object,
    the shard of its primary key. Raises `WrongKey`, and `NoShard` for an object of a sharded model
    that has neither a key nor an ID yet."""
    if not isinstance(key, models.Model):
        return cluster().shard_of_key(key)
    if not is_sharded(key.__class__):
        return cluster().shard_of_key(key.pk)
    shard = shard_of_alias(where_of(key))
    if shard is None:
        raise NoShard(f"this {key.__class__.__name__} has neither a key nor an ID, so no shard")
    return shard


def alias_of_key(key: Any) -> str:
    """The database alias of a key's shard; given an object, as `shard_of_key`."""
    return alias(shard_of_key(key))


def alias_of_id(id: int) -> str:
    """The database alias of an ID's shard. Raises `WrongId`, and `LegacyId` for an ID from before
    the shards."""
    current = state.cluster or cluster()
    if 0 <= id < current.legacy_below:
        raise LegacyId(id, current.legacy_below)
    return ALIASES[shard_of_id(id, current.shards)]


def is_legacy(id: Any) -> bool:
    """Whether an ID, or the text of one, was made before the shards, and so names none."""
    if isinstance(id, str) and id.isascii() and id.isdigit() and len(id) < 20:
        id = int(id)
    return isinstance(id, int) and 0 <= id < (state.cluster or cluster()).legacy_below


def alias_of_named(id: int) -> str | None:
    """The database alias of an ID's shard; None if the ID was made before the shards. Raises
    `WrongId`."""
    return None if is_legacy(id) else alias_of_id(id)


def alias_of_value(field: Any, value: Any) -> str:
    """The database alias of a key's shard, from a value for the key's field. Raises `WrongKey`."""
    current = state.cluster or cluster()
    if type(value) is int and current.divides_keys and INTEGER_MIN <= value <= INTEGER_MAX:
        # The same as `keys.shard_of_key`: this runs for each query and, for a new row, twice.
        return ALIASES[value % current.shards]
    return alias_of_key(field.to_python(value))


def refuse(model: Any, what: str) -> NoReturn:
    """Raises `NoShard`."""
    raise NoShard(
        f"{model.__name__} is sharded and the {what} names no shard: use .for_key(key), a filter by"
        " its key or ID, .by_ids([…]), .across_shards(), or shard_of(key)"
    )


def unrouted(model: Any, what: str) -> str:
    """Where a query goes that names no shard: on an unsharded host with `unrouted = "log"`, to all
    rows. Raises `NoShard` anywhere else."""
    host = unsharded_host()
    if host is None or host.unrouted is not Unrouted.LOG:
        refuse(model, what)
    return unrouted_rows()


def unrouted_id(id: int) -> str:
    """The same, for a query that names only an ID from before the shards. Raises `LegacyId`."""
    host = unsharded_host()
    if host is None or host.unrouted is not Unrouted.LOG:
        raise LegacyId(id, cluster().legacy_below)
    return unrouted_rows()


def alias_of_instance(instance: Any) -> str | None:
    """The shard where an object belongs, by its key and by its ID, or of a model without a key, by
    what it refers to; None if these are not known.

    Raises `WrongShard` if the two disagree.
    """
    # Not type(): `request.user` is a lazy object that wraps another.
    model = instance.__class__
    keys, id_name, references, _ = rules(model)
    found: str | None = None
    for name, field in keys:
        value = _loaded(instance, model, name)
        if value is not None and (type(value) is int or not hasattr(value, "resolve_expression")):
            by_key = alias_of_value(field, value)
            if found is not None and found != by_key:
                raise WrongShard(f"{model.__name__}: its keys are of {found} and of {by_key}")
            found = by_key
    id = None if id_name is None else _loaded(instance, model, id_name)
    if isinstance(id, int) and not is_legacy(id):
        by_id = alias_of_id(id)
        if found is not None and found != by_id:
            raise WrongShard(
                f"{model.__name__} {id} is of {by_id}, and its key is of {found}: a row does not"
                " change its shard, make a new one there and delete this one"
            )
        return by_id
    if not keys:
        # It has no key. What it refers to is on its shard.
        named = (
            _alias_of_reference(key, _loaded(instance, model, name)) for name, _, key in references
        )
        related = (there for _, there in _places_of_related(instance))
        return next((there for there in (*named, *related) if there is not None), None)
    return found


def where_of(instance: Any) -> str | None:
    """The shard of an object: where it was read or saved, or where it belongs."""
    there: str | None = instance._state.db
    if unsharded_host() is not None:
        # Where it was read means nothing: any shard's connection object reads the rows of all keys.
        return alias_of_instance(instance)
    if instance._state.adding:
        # Django noted where another object was that it refers to.
        return alias_of_instance(instance) or (there if shard_of_alias(there) is not None else None)
    return there if shard_of_alias(there) is not None else alias_of_instance(instance)


def _places_of_related(instance: Any) -> Iterator[tuple[str, str]]:
    """The names of the fields with related objects in shards, as this object holds them, and these
    shards. An object that is not saved yet is nowhere."""
    cached = instance._state.fields_cache
    for field in rules(instance.__class__).relations if cached else ():
        other = cached.get(field.cache_name)
        if other is None or other._state.adding or shard_of_alias(other._state.db) is None:
            continue
        if hasattr(field, "fk_field"):
            # What is cached may be of before.
            stale = str(getattr(instance, field.fk_field)) != str(other.pk)
            if stale or not is_of_one_shard(other.__class__, instance.__class__):
                continue
        there = where_of(other)
        if there is not None:
            yield field.name, there


def is_of_one_shard(target: Any, model: Any) -> bool:
    """Whether a row of `model` that refers to one of `target` by a `GenericForeignKey` must be on
    its shard: the ID does not identify that shard, or a `GenericRelation` leads back, and would
    only look there."""
    return is_sharded(target) and (
        not pk_says_shard(target)
        or any(
            hasattr(field, "bulk_related_objects") and issubclass(model, field.remote_field.model)
            for field in target._meta.private_fields
        )
    )


def same_row(first: Any, second: Any) -> bool:
    """Whether two objects of a sharded model with the same primary key are the same row: each shard
    may have one."""
    if first is second or pk_says_shard(first.__class__):
        return True
    try:
        places = where_of(first), where_of(second)
    except (ValidationError, WrongId, WrongKey, WrongShard):
        return True
    return None in places or places[0] == places[1]


def check_objects(values: Iterable[Any], using: str) -> None:
    """Refuses objects of another shard than this one. Raises `WrongShard`."""
    if shard_of_alias(using) is None:
        return
    for value in values:
        if isinstance(value, (list, tuple, set, frozenset, models.QuerySet)):
            check_objects(value, using)
        elif isinstance(value, models.Model) and is_sharded(value.__class__):
            there = where_of(value)
            if there not in (None, using):
                raise WrongShard(
                    f"{value.__class__.__name__} {value.pk} is on {there}, and cannot be related to"
                    f" a row on {using}"
                )


def _loaded(instance: Any, model: Any, name: str) -> Any:
    """The value of an object's attribute; None if it was left out of the query that read the
    object, which looks for it by what this is about to find out."""
    # A lazy object that wraps another has no values of its own.
    return instance.__dict__.get(name) if type(instance) is model else getattr(instance, name)


def check_instance(instance: Any, using: str) -> None:
    """Refuses to write an object to a shard where it does not belong. Raises `WrongShard` or
    `NoShard`."""
    model = instance.__class__
    if isinstance(using, AllRows):
        using = alias_of_instance(instance) or refuse(model, "write")
    shard = shard_of_alias(using)
    if shard is None:
        raise NoShard(
            f"{model.__name__} is sharded, and {using!r} is no shard: leave using= out, or name a"
            " shard"
        )
    keys, id_name, references, relations = rules(model)
    if len(keys) == 1 and not relations and (id_name is None or getattr(instance, id_name) is None):
        # Most new rows: the same as below, in one step.
        value, current = _loaded(instance, model, keys[0][0]), cluster()
        integer = (
            type(value) is int and current.divides_keys and INTEGER_MIN <= value <= INTEGER_MAX
        )
        if integer and value % current.shards == shard:
            return
    for name in (*(name for name, _ in keys), *([] if id_name is None else [id_name])):
        if hasattr(_loaded(instance, model, name), "resolve_expression"):
            raise WrongShard(
                f"{model.__name__}.{name} says where the row is, so it cannot be an expression,"
                " which the server computes"
            )
    belongs = alias_of_instance(instance)
    if belongs is not None and belongs != using:
        raise WrongShard(
            f"{model.__name__} belongs on {belongs} by its key or ID, and would be saved on {using}"
        )
    for attribute, name, key in references:
        there = _alias_of_reference(key, _loaded(instance, model, attribute))
        if there not in (None, using):
            raise WrongShard(
                f"{model.__name__}.{name} refers to a row on {there}, and would be saved on {using}"
            )
    for name, there in _places_of_related(instance) if relations else ():
        if there != using:
            raise WrongShard(
                f"{model.__name__}.{name} refers to a row on {there}, and would be saved on {using}"
            )


def _alias_of_reference(key: Any, value: Any) -> str | None:
    """The shard of the row that this ID names, or key for `key`, the key's field; None if it names
    none."""
    value = value.value if isinstance(value, models.Value) else value
    if key is None:
        return alias_of_named(value) if isinstance(value, int) else None
    if value is None or hasattr(value, "resolve_expression"):
        return None
    return alias_of_value(key, value)


def check_parents(instance: Any) -> None:
    """Refuses what refers to rows that are not saved yet and belong to another shard. Raises
    `WrongShard`."""
    belongs = alias_of_instance(instance)
    for attribute, name, _ in rules(instance.__class__).references:
        parent = instance._state.fields_cache.get(name)
        if parent is None or belongs is None or getattr(instance, attribute) is not None:
            continue
        there = alias_of_instance(parent)
        if there not in (None, belongs):
            raise WrongShard(
                f"{type(instance).__name__}.{name} will be on {there}, and this row belongs on"
                f" {belongs}"
            )


class ShardRouter:
    """The setting `DATABASE_ROUTERS`: sharded models go to the shard that a query names, other
    models to their usual database."""

    def db_for_read(self, model: Any, **hints: Any) -> str | None:
        """Django calls this."""
        return self._route(model, hints.get("instance"), "query")

    def db_for_write(self, model: Any, **hints: Any) -> str | None:
        """Django calls this."""
        return self._route(model, hints.get("instance"), "write")

    def allow_relation(self, first: Any, second: Any, **hints: Any) -> bool | None:
        """Allows a relation if only one of the two objects is sharded: then no constraint connects
        them. For an object that is not saved yet, saving checks whether it is where it belongs.
        Raises `WrongShard` for rows of two shards."""
        if is_sharded(first.__class__) != is_sharded(second.__class__):
            return True
        if not is_sharded(first.__class__):
            return None
        # Django noted for a new object where the first one was that it referred to, such as the
        # user, in another database.
        if first._state.adding or second._state.adding:
            return True
        if unsharded_host() is not None:
            places = where_of(first), where_of(second)
            if None in places or places[0] == places[1]:
                return True
        places = first._state.db, second._state.db
        if None not in map(shard_of_alias, places) and places[0] != places[1]:
            names = " and ".join(
                f"{one.__class__.__name__} {one.pk} is on {one._state.db}"
                for one in (first, second)
            )
            raise WrongShard(f"{names}: rows of two shards cannot be related")
        return None

    def allow_migrate(
        self, db: str, app_label: str, model_name: str | None = None, **hints: Any
    ) -> bool | None:
        """Sharded models are migrated on shards only, other models on databases only. For SQL, a
        hint decides."""
        sharded, model = hints.get("sharded"), hints.get("model")
        if sharded is None and model is None and model_name is not None:
            try:
                model = apps.get_model(app_label, model_name)
            except LookupError:
                # It is gone, or has another name by now. Only the migrations know what it was.
                from .migrations import was_sharded

                if not was_sharded(app_label, model_name):
                    return None
                sharded = True
        if sharded is None:
            sharded = model is not None and is_sharded(model)
        if shard_of_alias(db) is not None:
            return bool(sharded)
        return False if sharded else None

    def _route(self, model: Any, instance: Any, what: str) -> str | None:
        there = getattr(getattr(instance, "_state", None), "db", None)
        if not is_sharded(model):
            if shard_of_alias(there) is None:
                return None
            # It was reached from a row of a shard, so it is in another database than that row:
            # where it always is.
            where: str = (router.db_for_write if what == "write" else router.db_for_read)(model)
            return where
        if instance is not None:
            if isinstance(instance, model):
                belongs = alias_of_instance(instance)
                if shard_of_alias(there) is not None and belongs not in (None, there):
                    if not instance._state.adding and instance.pk is not None:
                        raise WrongShard(
                            f"{model.__name__} was read on {there}, but its key now belongs to"
                            f" {belongs}"
                        )
                    # There is no such row yet. Django noted where another was that it referred to.
                    there = belongs
                there = there if shard_of_alias(there) is not None else belongs
            elif shard_of_alias(there) is None:
                sharded = is_sharded(instance.__class__)
                there = (
                    alias_of_instance(instance)
                    if sharded
                    else alias_of_owner(model, _followed.get(), instance)
                )
                if there is None and what == "write":
                    # For `photo.category = category` Django queries the router for the photo's
                    # database. That is decided when the photo is saved.
                    return None
            if there is not None:
                return there
            if isinstance(instance, model):
                return chosen() or refuse(model, what)
        return chosen() or unrouted(model, what)


def alias_of_owner(model: Any, relation: Any, instance: Any) -> str | None:
    """The shard of the rows in which field `relation` refers to an object that is not sharded, if
    that field is their key: `user.photos`."""
    if relation not in key_fields(model) or not isinstance(instance, relation.remote_field.model):
        return None
    return alias_of_key(getattr(instance, relation.target_field.attname))


@contextmanager
def following(relation: Any) -> Iterator[None]:
    """Within it, the router knows that Django queries rows by this field. Django itself names only
    the object that they belong to, and an object may be the key of a row or anything else to it."""
    token = _followed.set(relation)
    try:
        yield
    finally:
        _followed.reset(token)


@contextmanager
def where_it_belongs(instance: Any) -> Iterator[bool]:
    """Within it, a query that names no shard goes to the object's shard. Yields whether that is
    known: an object that is being checked may have no key yet, or a wrong one."""
    try:
        try:
            where = router.db_for_write(type(instance), instance=instance)
        except NoShard:
            places = (
                _alias_of_reference(key, getattr(instance, name))
                for name, _, key in rules(instance.__class__).references
            )
            where = next((there for there in places if there is not None), None)
    except (ValidationError, WrongId, WrongKey, WrongShard):
        where = None
    if where is None:
        yield False
        return
    with within(where):
        yield True


@contextmanager
def shard_of(key: Any) -> Iterator[str]:
    """Within it, queries and writes of sharded models that name no shard go to this key's shard,
    and transactions that name no database are its. Yields its alias."""
    where = alias_of_key(key)
    with within(where):
        yield where


def chosen() -> str | None:
    """The alias of the shard to which `shard_of` and the like send queries that name none; None
    outside of them."""
    choice = _chosen.get()
    return None if choice is None else choice.where


@contextmanager
def within(where: str | None) -> Iterator[str | None]:
    """Within it, queries and writes of sharded models that name no shard go to the one with this
    alias, and transactions that name no database are its; without one, as outside of it."""
    choice = _Choice(where, _chosen.get())
    _chosen.set(choice)
    try:
        yield where
    finally:
        # Blocks in generators end in any order. The last one that is not over counts.
        choice.is_over = True
        if _chosen.get() is choice:
            outer = choice.outer
            while outer is not None and outer.is_over:
                outer = outer.outer
            _chosen.set(outer)


def run_on(using: str, work: Callable[[], T]) -> T:
    """Runs `work` on a shard, and runs all of it again if it met a move and left nothing behind.
    Within a transaction, runs it once."""
    if shard_of_alias(using) is None:
        return work()
    check_covered(using)
    return repeat_on(using, work)


def repeat_on(using: str, work: Callable[[], T]) -> T:
    """The same as `run_on`, for what is meant to be a transaction of the shard by itself, whatever
    transaction of another database is around it."""
    shard = connections[using]
    kept = shard.kept
    recovery: Recovery | None = None
    layouts = 0
    while True:
        try:
            return work()
        except ShardMoved as moved:
            # A hook or a signal's handler may have met the move after `work` was committed.
            left = shard.kept != kept or connections[using] is not shard
            if left or not moved.whole or moved.shard != shard.shard or shard.has_transaction():
                raise
            if isinstance(moved, LayoutChanged):
                # The next try makes its statements for the other host.
                layouts += 1
                if layouts > _LAYOUTS_MAX:
                    raise
                continue
            recovery = recovery or Recovery(cluster().recovery_context, moved.shard)
            wait_out(recovery, moved)


def place_row(instance: Any, there: Any) -> None:
    """Notes which shard an object is of that was read from an unsharded host: the one of its own
    key or ID; if these were not read, the one on which it was read."""
    try:
        where = alias_of_instance(instance)
    except (ValidationError, WrongId, WrongKey, WrongShard):
        where = _alias_of_own_key(instance)
    instance._state.db = where or str(there)


def _alias_of_own_key(instance: Any) -> str | None:
    """The shard of an object by its key alone, for a row with an ID of another shard: saving it is
    refused."""
    model = instance.__class__
    for name, field in rules(model).keys:
        try:
            return alias_of_value(field, _loaded(instance, model, name))
        except (ValidationError, WrongKey):
            continue
    return None


def wait_out(recovery: Recovery, moved: Any) -> None:
    """Returns when the shard that has moved is worth another try. Raises `ShardUnavailable`."""
    with translate_errors():
        if moved.how is None:
            recovery.failed_over(moved.place)
        else:
            recovery.after(moved.how, moved.place, moved.began)


def run_in_shard(key: Any, work: Callable[[], T]) -> T:
    """Runs `work` in a transaction on the key's shard, and runs all of it again if the shard moves
    during it.

    Within it, sharded models do not have to name a shard, and `transaction.atomic()`,
    `on_commit(hook)` and the like are of this transaction. Effects outside of it may happen twice;
    a hook runs once. Within another transaction on that shard it is a savepoint, and `ShardMoved`
    is raised to the outer one.
    """
    with shard_of(key) as using:

        def whole() -> T:
            with transaction.atomic(using=using):
                result = work()
                shard = connections[using]
                if shard.ended is not None:
                    # `work` has caught the error, but nothing of what it did remains.
                    raise shard.ended
                if shard.will_roll_back():
                    raise TransactionManagementError(
                        f"a statement on {using} failed and `work` went on without a savepoint:"
                        " what it did is rolled back; catch errors outside of `with"
                        f" transaction.atomic(using={using!r})`"
                        if shard.has_failed()
                        else (
                            f"the transaction on {using} is marked for rollback: what it did is"
                            " rolled back; to roll it back on purpose, raise an error"
                        )
                    )
                return result

        return repeat_on(using, whole)


async def arun_in_shard(key: Any, work: Callable[[], T]) -> T:
    """`run_in_shard`, for asynchronous code. `work` itself is not asynchronous, as Django has no
    asynchronous transactions: it runs in the thread in which Django's own methods such as `aget`
    run."""
    return await sync_to_async(run_in_shard)(key, work)
