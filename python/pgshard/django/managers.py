"""Query sets that find their shard: by the key or the ID they filter by, or because a shard was
named."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, NoReturn, TypeVar

from asgiref.sync import sync_to_async
from django.db import models
from django.db.models.constants import LOOKUP_SEP
from django.db.models.functions import Cast

from ..errors import LegacyId, WrongId, WrongKey
from . import claiming, finding, reach
from .across import AcrossShards
from .batch import fetch
from .cluster import ALIASES, AllRows, Unrouted, cluster, shard_of_alias, unsharded_host
from .errors import NoShard, Unsharded, WrongShard
from .everywhere import rows_with
from .gather import WIDTH, gather
from .lookups import lookups_of
from .merge import by_pk, check_rows
from .parts import gives_its_own
from .routing import (
    alias_of_instance,
    alias_of_key,
    alias_of_named,
    alias_of_value,
    check_instance,
    chosen,
    is_legacy,
    run_on,
    unrouted,
    unrouted_id,
    where_of,
)
from .sharded import (
    KEYS,
    OBJECT,
    has_shard_id,
    is_sharded,
    key_fields,
    key_names,
    pk_says_shard,
    placed_names,
    reference_condition,
    rules,
    shard_conditions,
    shard_names,
)
from .values import ValueQuerySet

T = TypeVar("T")

_NOWHERE = "shard-0"
"""The shard of a query that cannot have a result. It is never sent there."""

_SEVERAL = "several shards"
"""In the place of a shard, where a list names more than one, or a value only the server knows."""

_COMPUTED = object()
"""In the place of a value that the server computes."""


class ShardedQuerySet(ValueQuerySet):
    """A query set of a sharded model. It is on one shard, or not on any yet; then running a query
    is refused with `NoShard`."""

    _db: str | None

    @classmethod
    def as_manager(cls) -> Any:
        """The same as Django's: a `ShardedManager` with this class's methods."""
        manager = ShardedManager.from_queryset(cls)()
        manager._built_with_as_manager = True
        return manager

    @property
    def db(self) -> str:
        """The shard; any shard for a query that cannot have a result, since that is not sent."""
        if self._db is None:
            if not self._for_write and self.query.is_empty():
                return _NOWHERE
            if finding.is_noted(self.query):
                return finding.place(self.query)
            if isinstance(chosen(), AllRows):
                return chosen() or ""
            if getattr(self.query, "pgshard_several", False):
                # The one of `shard_of` would give a part only.
                return unrouted(
                    self.model, "filter's keys or IDs may be of several shards, so the query"
                )
        found = self._found()
        if self._db is None and not isinstance(found, AllRows):
            there = getattr(self.query, "pgshard_alternative", None)
            if there not in (None, found):
                return unrouted(self.model, _alternative_problem(there, found))
        if shard_of_alias(found) is None:
            # Another router, or a manager's `db_manager`, has named it. It may have a table from
            # before the shards.
            self._refuse_database(found)
        return found

    def _found(self) -> str:
        """The shard by what Django knows of it: the query set's own, that of a related object, or
        the one that is chosen. Raises `NoShard` and `LegacyId`."""
        try:
            found: str = super().db
        except NoShard:
            legacy = getattr(self.query, "pgshard_legacy", None)
            if legacy is None:
                raise
            return unrouted_id(legacy)
        return found

    def _refuse_database(self, alias: str) -> NoReturn:
        raise NoShard(
            f"{self.model.__name__} is sharded, and {alias!r} is no shard: use .for_key(key)"
        )

    def using(self, alias: str | None) -> Any:
        """This query set, on this shard. Raises `NoShard` for a database that is not a shard."""
        if alias is not None and shard_of_alias(alias) is None:
            self._refuse_database(alias)
        return super().using(alias)._noted(alias)

    def _noted(self, alias: str | None) -> Any:
        """Notes on the query itself which shard it is on: a part of another query is compiled with
        that query's shard."""
        self.query.pgshard_alias = alias
        return self

    def __and__(self, other: Any) -> Any:
        made = super().__and__(other)
        if made is self or made is other:
            return made  # It is empty, and stays as it is.
        named = {one._db for one in (self, other) if one._db is not None}
        if len(named) > 1:
            raise WrongShard(
                f"{self.model.__name__}: the two queries are on {' and '.join(sorted(named))}"
            )
        made._db = named.pop() if named else None
        self._pass_on(other, made)
        return made._noted(made._db)

    def __or__(self, other: Any) -> Any:
        self._together(other)
        return self._either(other, super().__or__(other))

    def __xor__(self, other: Any) -> Any:
        self._together(other)
        return self._either(other, super().__xor__(other))

    def _either(self, other: Any, made: Any) -> Any:
        """Notes for a query of the rows of either of two what was noted for both."""
        if made is not self and made is not other:
            finding.forget(made.query)
            reach.forget_objects(made.query)
        return self._pass_on(other, made)

    def _pass_on(self, other: Any, made: Any) -> Any:
        """Notes for a query that was made of two what was noted for either."""
        for one in (self, other):
            if one is not made and not one.query.is_empty():
                note_objects(made.query, objects_of(one.query))
                made._note_others(
                    getattr(one.query, "pgshard_several", False),
                    getattr(one.query, "pgshard_alternative", None),
                )
        return made

    def _note_others(self, several: bool, alternative: str | None) -> None:
        """Notes that the query names several shards, or that some of its rows are on this one."""
        before = getattr(self.query, "pgshard_alternative", None)
        if several or (before and alternative and before != alternative):
            self.query.pgshard_several = True
        elif alternative is not None:
            self.query.pgshard_alternative = alternative

    def _combinator_query(self, combinator: Any, *others: Any, **kwargs: Any) -> Any:
        # Of `union` and the like.
        for other in others:
            self._together(other)
        made = super()._combinator_query(combinator, *others, **kwargs)
        finding.forget(made.query)
        return made

    def _together(self, other: Any) -> None:
        """Refuses to combine queries on two shards, or on one and on all."""
        if self._db != other._db and not (self.query.is_empty() or other.query.is_empty()):
            where = " and ".join(one or "no shard" for one in (self._db, other._db))
            raise WrongShard(
                f"{self.model.__name__}: the two queries are on {where}: run each by itself"
            )

    def for_key(self, key: Any) -> Any:
        """This query set, on the shard of this key; given an object of a sharded model, on its
        shard; given another object, of what the key of the rows holds of it."""
        if isinstance(key, models.Model) and not is_sharded(key.__class__):
            owner = next(
                (field for field in key_fields(self.model) if _refers_to(field, key)), None
            )
            key = _held(owner, key)
        return self.using(alias_of_key(key))

    def by_ids(
        self,
        ids: Iterable[int],
        *,
        width: int = WIDTH,
        timeout: float | None = None,
        partial: bool = False,
    ) -> Any:
        """The objects with these IDs, of any shards, in the order of the IDs; IDs without an object
        are left out.

        On each host, one statement queries many shards, and a few statements run at a time. With
        `prefetch_related` or `values`, and after any failure, each shard is queried by a statement
        of its own. `timeout`: seconds for all together. Raises `Partial` if a shard failed; with
        `partial=True`, returns what the others have instead. Raises `ValueError` if `values` leaves
        the ID out, the model has none that identifies its shard, or the rows would be others:
        duplicates and windows of several shards.
        """
        wanted = list(ids)
        check_rows(self)
        get = by_pk(self)
        if unsharded_host() is not None:
            return self._by_ids_at_once(wanted, get, timeout, partial)
        groups: dict[int, list[int]] = {}
        for id in wanted:
            try:
                groups.setdefault(cluster().directory.shard_of_id(int(id)), []).append(int(id))
            except LegacyId:
                raise
            except WrongId:
                continue  # No such shard, no such row.

        def work(where: str) -> list[Any]:
            shard = shard_of_alias(where)
            assert shard is not None, "gather gives aliases of shards"
            return list(self._on(where).filter(pk__in=groups[shard]))

        end = None if timeout is None else time.monotonic() + timeout
        together = fetch(self, groups, width, end)
        left = [shard for shard in groups if shard not in together]
        result = gather(
            left, work, width=width, timeout=None if end is None else max(end - time.monotonic(), 0)
        )
        result.values.update(together)
        if not partial:
            result.all()
        found = {get(row): row for rows in result.values.values() for row in rows}
        return [found[int(id)] for id in wanted if int(id) in found]

    def _by_ids_at_once(
        self, wanted: list[int], get: Callable[[Any], Any], timeout: float | None, partial: bool
    ) -> list[Any]:
        """`by_ids` on an unsharded host: one statement; with transactions on several of its shards,
        one for each shard."""
        kind = AllRows
        groups: dict[str, list[int]] = {}
        for id in map(int, wanted):
            try:
                shard = cluster().directory.shard_of_id(id)
                where: str = rows_with(ALIASES[shard])
            except LegacyId:
                where, kind = unrouted_id(id), Unrouted
            except WrongId:
                continue  # No such shard, no such row.
            groups.setdefault(str(where), []).append(id)
        work = lambda where: list(self._on(kind(where)).filter(pk__in=groups[where]))  # noqa: E731
        shards = [shard for shard in map(shard_of_alias, groups) if shard is not None]
        result = gather(shards, work, timeout=timeout)
        if not partial:
            result.all()
        found = {get(row): row for rows in result.values.values() for row in rows}
        return [found[int(id)] for id in wanted if int(id) in found]

    async def aby_ids(self, ids: Iterable[int], **options: Any) -> list[Any]:
        """`by_ids`, for asynchronous code."""
        found: list[Any] = await sync_to_async(self.by_ids)(ids, **options)
        return found

    def across_shards(self, *, width: int = WIDTH, timeout: float | None = None) -> AcrossShards:
        """The same query on every shard, a few at a time. `timeout`: seconds for all together."""
        return AcrossShards(self, width, timeout)

    def _on(self, where: str) -> Any:
        made = self._chain()
        made._db = where
        return made._noted(where)

    # --------------------------------------------------------------------------
    # which shard it is

    def _filter_or_exclude(self, negate: bool, args: Any, kwargs: Any) -> Any:
        if negate:
            return super()._filter_or_exclude(negate, args, kwargs)
        # Django and this class both read the values.
        kwargs = {
            name: list(value) if hasattr(value, "__next__") else value
            for name, value in kwargs.items()
        }
        pairs: Any = kwargs.items()
        choices: list[models.Q] = []
        if args:
            pairs = list(pairs)
            for q in args:
                if isinstance(q, models.Q):
                    _read(q)
                    pairs += _conditions(q)
                    choices += _choices(q)
        made = super()._filter_or_exclude(negate, args, kwargs)
        made._narrow(pairs)
        if objects_of(made._query):
            made._narrow_by_objects(pairs)
        if choices and made._db is None and not made.query.is_empty():
            made._narrow_by(choices)
        return made

    def complex_filter(self, filter_obj: Any) -> Any:
        """The same as Django's, which would not look for the shard in a `Q`."""
        return (
            self.filter(filter_obj)
            if isinstance(filter_obj, models.Q)
            else super().complex_filter(filter_obj)
        )

    def _narrow(self, pairs: Iterable[tuple[str, Any]], write: bool = False) -> None:
        """Goes to the shard that these conditions name. If they name two, no row fulfils them all,
        and the query is empty.

        Raises `WrongShard` in its place where a row may be made of them (`write`), or one of the
        two is what a query gives.
        """
        pairs = _of_fields(self._query, pairs)
        named = _named(self.model, pairs)
        if len(named.shards) > 1 and (write or named.by_query):
            where = " and ".join(named.shards)
            raise WrongShard(
                f"{self.model.__name__}: the key and the ID name {where}, so they disagree"
            )
        if named.is_impossible:
            self.query.set_empty()
        if len(named.shards) > 1:
            return
        found, several = (named.shards[0] if named.shards else None), named.several
        if found is None and not several and self._db is None and pairs:
            found = _NOWHERE if named.is_impossible else _place_by_references(self.model, pairs)
            if found == _SEVERAL:
                found, several = None, True
        if self._db is None and found is not None:
            self._db = found
            self._noted(found)
        elif self._db is None and several:
            self.query.pgshard_several = True
        elif self._db is None and pairs and cluster().legacy_below:
            legacy = _legacy_id(self.model, pairs)
            if legacy is not None:
                self.query.pgshard_legacy = legacy
        if self._db is None and pairs:
            finding.note(self.query, pairs)

    def _narrow_by_objects(self, pairs: Iterable[tuple[str, Any]]) -> None:
        """Is empty if the rows would be related to an object of another shard, where another one
        may have the same primary key here."""
        for name, value in pairs if self._db is not None else ():
            if isinstance(self._db, AllRows):
                break
            if isinstance(value, models.Model) and reference_condition(self.model, name):
                where = where_of(value) if is_sharded(value.__class__) else None
                if where not in (None, self._db):
                    self.query.set_empty()

    def _narrow_by(self, choices: list[models.Q]) -> None:
        """Goes to the shard that all alternatives of one of these name; or notes which they
        name."""
        for choice in choices:
            shards, known = _alternatives(self._query, choice)
            if known and not shards:
                self.query.set_empty()
                return
            if known and len(shards) == 1 and _SEVERAL not in shards:
                self._db = shards.pop()
                self._noted(self._db)
                return
            several = len(shards) > 1 or _SEVERAL in shards
            self._note_others(several, None if several or not shards else shards.pop())

    def _write_to(self, pairs: Iterable[tuple[str, Any]]) -> Any:
        """This query set; if it is on no shard yet, on the one that these lookups name. The other
        values of a new row have no effect on where to look."""
        made = self._chain()
        given = [pair for pair in pairs if pair[1] is not None and not callable(pair[1])]
        made._narrow(given, write=True)
        return made

    def _of_row(self, values: dict[str, Any]) -> str | None:
        """The shard that the values of a new row name; None if they name none. Raises `WrongShard`
        and `WrongId`."""
        names, found = shard_names(self.model), None
        for name, value in values.items():
            if name not in names:
                continue
            key = names[name]
            where = (
                alias_of_value(key, value)
                if key is not None and type(value) is int
                else _place(key, value)
            )
            if where is None:
                continue
            if found is not None and found != where:
                raise WrongShard(
                    f"{self.model.__name__}: the row's key and its ID disagree: {found} and {where}"
                )
            found = where
        if found is None and not key_fields(self.model):
            for attribute, name, key in rules(self.model).references:
                found = found or _place(key, values.get(name, values.get(attribute)))
            for field in rules(self.model).relations:
                found = found or _place(OBJECT, values.get(field.name))
        return found

    def contains(self, obj: Any) -> Any:
        """The same as Django's, which looks for the primary key: another shard may have it too."""
        if not isinstance(obj, self.model) or pk_says_shard(self.model) or self.query.is_empty():
            return super().contains(obj)
        where = where_of(obj)
        if where is not None and self._db not in (None, where):
            return False
        if where is None or self._db is not None:
            return super().contains(obj)
        return self._on(where).contains(obj)

    def in_bulk(self, id_list: Any = None, *, field_name: str = "pk") -> Any:
        """The same as Django's, which determines the shard before it filters."""
        if id_list is None:
            return super().in_bulk(field_name=field_name)
        at, id_list = self._chain(), list(id_list)
        at._narrow([(f"{field_name}__in", id_list)])
        if at._of_values() is not None:
            rows = self.filter(**{f"{field_name}__in": id_list})
            return {getattr(one, field_name): one for one in rows}
        return super(ShardedQuerySet, at).in_bulk(id_list, field_name=field_name)

    # --------------------------------------------------------------------------
    # writes

    def _whole(self, work: Callable[[], T]) -> T:
        """Runs a call of several statements, and runs all of it again if the shard moves in
        between."""
        self._for_write = True
        return run_on(self.db, work)

    def create(self, **kwargs: Any) -> Any:
        """The same as Django's, on the shard of the new row's key."""
        at = self
        if self._db is None:
            # The shard of the new row must not decide where this query goes, so a second object
            # with its class and hints makes the row.
            at = type(self).__new__(type(self))
            at.__dict__ = self.__dict__.copy()
            at._db = self._of_row(kwargs)
        return super(ShardedQuerySet, at).create(**kwargs)

    def get_or_create(self, defaults: Any = None, **kwargs: Any) -> Any:
        """The same as Django's."""
        at = self._write_to(kwargs.items())
        if at._db is None and finding.is_noted(at.query):
            return self._get_or_create(defaults, kwargs)
        at._keep_all_rows()
        return at._whole(lambda: super(ShardedQuerySet, at).get_or_create(defaults, **kwargs))

    def update_or_create(
        self, defaults: Any = None, create_defaults: Any = None, **kwargs: Any
    ) -> Any:
        """The same as Django's."""
        at = self._write_to(kwargs.items())
        if at._db is None and finding.is_noted(at.query):
            made = create_defaults if create_defaults is not None else defaults
            row, created = self._get_or_create(made, kwargs)
            if created:
                return row, True
            at = self._on(row._state.db)
        at._keep_all_rows()
        # What a function gives is checked when the row is saved.
        at._unmoved({name: one for name, one in (defaults or {}).items() if not callable(one)})
        return at._whole(
            lambda: super(ShardedQuerySet, at).update_or_create(defaults, create_defaults, **kwargs)
        )

    def _keep_all_rows(self) -> None:
        """Stays with all rows of an unsharded host, if this query set names no shard there, for
        several statements of one transaction."""
        if self._db is None:
            self._for_write = True
            where = self.db
            if isinstance(where, AllRows):
                self._db = where

    def bulk_create(self, objs: Iterable[Any], *args: Any, **kwargs: Any) -> Any:
        """The same as Django's; all objects must belong on one shard."""
        objs = list(objs)
        at = self
        if at._db is None and objs:
            places = {alias_of_instance(one) for one in objs} - {None}
            if len(places) > 1 and not lookups_of(self.model):
                raise WrongShard(
                    f"{self.model.__name__}: these objects belong on {len(places)} shards: make a"
                    " call for each"
                )
            at = self._on(places.pop() or "") if len(places) == 1 else self
        if not objs:
            return objs
        at._check_conflicts(objs, kwargs)
        if lookups_of(self.model):
            return at._create_claimed(objs, *args, **kwargs)
        return at._bulk_create(objs, *args, **kwargs)

    def _check_conflicts(self, objs: list[Any], given: dict[str, Any]) -> None:
        """Refuses new rows that would change one of another key on an unsharded host. Raises
        `Unsharded`."""
        if not given.get("update_conflicts") or unsharded_host() is None:
            return
        names = set(given.get("unique_fields") or ())
        if names & {*key_names(self.model)} or ("pk" in names and self._pk_has_key()):
            return
        pk = self.model._meta.pk
        by_id = has_shard_id(self.model) and names & {"pk", pk.name, pk.attname}
        if by_id and not any(is_legacy(one.pk) for one in objs):
            return
        raise Unsharded(
            f"{self.model.__name__}.bulk_create with update_conflicts may change rows of other keys"
            " on an unsharded host: name the key in unique_fields"
        )

    def _pk_has_key(self) -> bool:
        pk = self.model._meta.pk
        return any(isinstance(one, KEYS) for one in getattr(pk, "fields", None) or (pk,))

    def _bulk_create(self, objs: list[Any], *args: Any, **kwargs: Any) -> Any:
        at = self
        at._for_write = True
        for one in objs:
            check_instance(one, at.db)
        new = [one for one in objs if one.pk is None]

        def work() -> Any:
            for one in new:
                # The state before a try that left nothing.
                one.pk, one._state.adding, one._state.db = None, True, None
            return super(ShardedQuerySet, at).bulk_create(objs, *args, **kwargs)

        return run_on(at.db, work)

    def bulk_update(self, objs: Iterable[Any], fields: Any, *args: Any, **kwargs: Any) -> Any:
        """The same as Django's; all objects must belong on one shard, and the key cannot change."""
        objs, fields = list(objs), list(fields)
        self._unmoved(dict.fromkeys(fields))
        if not objs:
            return 0
        at = self
        if at._db is None:
            places = {alias_of_instance(one) or one._state.db for one in objs}
            if len(places) > 1:
                raise WrongShard(
                    f"{self.model.__name__}: these objects are on {len(places)} shards: make a call"
                    " for each"
                )
            at = self._on(places.pop())
        for one in objs:
            check_instance(one, at.db)

        if unsharded_host() is not None:
            # An ID from before the shards may be that of another key's row.
            for name, _ in rules(self.model).keys:
                keys = [one.__dict__.get(name) for one in objs]
                at = at if None in keys else at.filter(**{f"{name}__in": set(keys)})

        def work() -> Any:
            with reach.objects_meant():
                return super(ShardedQuerySet, at).bulk_update(objs, fields, *args, **kwargs)

        if claiming.written(self.model, fields):
            at._for_write = True
            return claiming.update_all(objs, fields, at.db, lambda: run_on(at.db, work))
        return at._whole(work)

    def update(self, **kwargs: Any) -> Any:
        """The same as Django's; the key, the ID and references can only be set to values of the
        same shard."""
        if self.query.is_empty():
            return 0
        self._for_write, self._result_cache = True, None
        at = self._placed()
        at._unmoved(kwargs)
        wanted = claiming.written(self.model, kwargs)
        if wanted and not self.query.is_sliced:
            at._for_write = True
            work = lambda rows: super(ShardedQuerySet, rows).update(**kwargs)  # noqa: E731, UP008
            return claiming.update(at, wanted, kwargs, work)
        return super(ShardedQuerySet, at).update(**kwargs)

    def delete(self) -> Any:
        """The same as Django's."""
        if self.query.is_empty():
            return (0, {})
        at = self._placed()
        self._result_cache = None
        return at._whole(lambda: super(ShardedQuerySet, at._checked()).delete())

    def _checked(self) -> Any:
        """This query set, if an unsharded host may delete its rows, which Django itself does not
        query by all conditions. Raises `Unsharded` and `LegacyId`."""
        if unsharded_host() is None or isinstance(self.db, AllRows):
            return self
        made = self._chain()
        made._query = reach.of_shard(made.query, self.db)
        return made

    delete.alters_data = True  # type: ignore[attr-defined]
    delete.queryset_only = True  # type: ignore[attr-defined]

    def _unmoved(self, values: dict[str, Any]) -> None:
        """Refuses values that would put the rows elsewhere."""
        for name in placed_names(self.model).keys() & values.keys():
            if values[name] is not None or name in key_names(self.model):
                self._for_write = True
                check_value(self.model, name, values[name], self.db)


def objects_of(query: Any) -> frozenset[str]:
    """The shards of the objects that a query is about, if other shards may have their primary keys
    too."""
    found: frozenset[str] = getattr(query, "pgshard_objects", frozenset())
    return found


def note_objects(query: Any, where: Iterable[str]) -> None:
    """Notes that a query is about objects of these shards."""
    query.pgshard_objects = objects_of(query).union(where)


def check_objects_of(query: Any, using: str) -> None:
    """Refuses a query on this shard that is about objects of another. Raises `WrongShard`."""
    others = objects_of(query) - {using}
    if others and not query.is_empty():
        raise WrongShard(
            f"{query.model.__name__}: the query is on {using}, and about an object on"
            f" {' and '.join(sorted(others))}, whose primary key does not say its shard"
        )


def check_alternative(query: Any, using: str) -> None:
    """Refuses a query on the shard of `shard_of` if some of its rows are on another. Raises
    `NoShard`."""
    there = getattr(query, "pgshard_alternative", None)
    if there is not None and there != using:
        unrouted(query.model, _alternative_problem(there, using))


def _alternative_problem(there: str, using: str) -> str:
    return f"filter asks for rows of {there} or others, so on {using} the query"


def _legacy_id(model: Any, pairs: Iterable[tuple[str, Any]]) -> int | None:
    """An ID from before the shards that one of these conditions names; None if there is none."""
    for name, value in pairs:
        condition = shard_conditions(model).get(name) or reference_condition(model, name)
        if condition is None or condition[0] is not None:
            continue
        listed = condition[1] and isinstance(value, (list, tuple, set, frozenset))
        for one in value if listed else [value]:
            one = one.pk if isinstance(one, models.Model) else one
            if is_legacy(one):
                return int(one)
    return None


def check_value(model: Any, name: str, value: Any, using: str) -> None:
    """Refuses to set the key, the ID or a reference of rows on a shard to a value of another, and
    the first two to a value that is not known in advance. Raises `WrongShard`."""
    key, is_reference = placed_names(model)[name]
    if is_reference and isinstance(value, models.Value):
        value = value.value
        if value is None:
            return
    if is_reference and hasattr(value, "resolve_expression"):
        return  # It is computed from rows of the shard.
    if is_reference and not isinstance(using, AllRows) and key is None and is_legacy(value):
        return  # The row's key determines its shard.
    try:
        there = _place(key, value)
    except (WrongKey, WrongId):
        there = None
    if there == using and not isinstance(using, AllRows):
        return
    if is_reference and isinstance(using, AllRows):
        raise WrongShard(
            f"{model.__name__}.{name} would refer to one row from rows of all shards: name the key"
        )
    if is_reference:
        raise WrongShard(
            f"{model.__name__}.{name} would refer to a row on {there or 'no shard'}, and is on"
            f" {using}"
        )
    raise WrongShard(
        f"{model.__name__}.{name} says where the row is: it cannot be set here. Make a new row on"
        " the other shard, then delete this one"
    )


def _place(key: Any, value: Any) -> str | None:
    """The shard of a value for `key`, a field of the key; without `key`, of an ID. None if the
    value names no shard."""
    if type(value) is not int:
        if value is None or hasattr(value, "resolve_expression"):
            return None
        if isinstance(value, models.Model):
            if is_sharded(value.__class__):
                return where_of(value)
            value = _held(key, value)
        if value is None:
            return None
    if key is OBJECT:
        return None
    return alias_of_named(int(value)) if key is None else alias_of_value(key, value)


def _refers_to(field: Any, instance: Any) -> bool:
    return (
        field is not None
        and field.remote_field is not None
        and isinstance(instance, field.remote_field.model)
    )


def _held(field: Any, instance: Any) -> Any:
    """What a field holds that refers to this object: its primary key, or the value that `to_field`
    names."""
    return (
        getattr(instance, field.target_field.attname)
        if _refers_to(field, instance)
        else instance.pk
    )


def _is_query(value: Any) -> bool:
    return isinstance(value, (models.QuerySet, models.Subquery))


def _has_query(value: Any) -> bool:
    return _is_query(value) or (
        isinstance(value, (list, tuple, set)) and any(map(_is_query, value))
    )


def _place_of_rows(key: Any, value: Any) -> str | None:
    """The same, for rows that are looked for, and also of what a query gives, which may be
    `_SEVERAL`. Raises `WrongId` if none can be there."""
    if type(value) is not int:
        if _is_query(value):
            return _place_of_query(key, value)
        value = _constant(value)
        if value is _COMPUTED:
            return _SEVERAL
    try:
        return _place(key, value)
    except WrongKey:
        if isinstance(value, models.Model) or not isinstance(key.to_python(value), int):
            raise
        raise WrongId("no row has so large a key") from None


def _constant(value: Any) -> Any:
    """The value of an expression that is one, also of another type; `_COMPUTED` if the server
    computes it from nothing but such values. Anything else as it is."""
    inner = value
    while isinstance(inner, (Cast, models.ExpressionWrapper)) and _is_integer(inner):
        inner = inner.get_source_expressions()[0]
    if isinstance(inner, models.Value) and (inner is value or type(inner.value) is int):
        return inner.value
    if not isinstance(value, models.Expression):
        return value
    leaves = (one for one in value.flatten() if one is not None and not _parts_of(one))
    return _COMPUTED if all(isinstance(one, models.Value) for one in leaves) else value


def _is_integer(expression: Any) -> bool:
    return isinstance(getattr(expression, "_output_field_or_none", None), models.IntegerField)


def _parts_of(expression: Any) -> list[Any]:
    return (
        expression.get_source_expressions() if hasattr(expression, "get_source_expressions") else []
    )


def _common_place(key: Any, values: Any) -> str | None:
    """The one shard of all these values, or `_SEVERAL`, also where only some name one; None if none
    does, or if they are no list. Raises `WrongId` if no row can have one of them."""
    if _is_query(values):
        return _place_of_query(key, values)
    if isinstance(values, str) or not isinstance(values, Iterable):
        return None
    places = set()
    for one in values:
        if one is not None:
            try:
                places.add(_place_of_rows(key, one))
            except WrongId:
                continue  # No such shard, no such row.
    if not places:
        raise WrongId("none of the list can have a row")
    return places.pop() if len(places) == 1 else _SEVERAL


def _place_of_query(key: Any, values: Any) -> str | None:
    """The shard of the rows with the keys, or without `key` the IDs, that a query returns. It is
    the query's own if it returns those of its rows, or of rows that they belong to. Other values,
    such as the users whom a user follows, are of any shard: `_SEVERAL`."""
    query = values.query
    if not is_sharded(query.model):
        return None
    if not query.is_empty() and not all(
        gives_its_own(key is not None, one) for one in query.combined_queries or (query,)
    ):
        return _SEVERAL
    where = (
        values._db if isinstance(values, models.QuerySet) else getattr(query, "pgshard_alias", None)
    )
    return where if shard_of_alias(where) is not None else None


class _Named(NamedTuple):
    """What follows about the shard from conditions that must all hold."""

    shards: list[str]
    """The shards that they name: more than one only if no row fulfils them."""
    several: bool
    """Whether a list names several."""
    by_query: bool
    """Whether a shard is that of a query; its rows may hold anything."""
    is_impossible: bool
    """Whether no row fulfils them."""


def _named(model: Any, pairs: list[tuple[str, Any]]) -> _Named:
    shards: list[str] = []
    several = by_query = nowhere = False
    known = shard_conditions(model)
    for name, value in pairs:
        condition = known.get(name)
        if condition is None:
            continue
        key, is_list = condition
        if value is None and not is_list and not (key is not None and key.null):
            nowhere = True  # No row is without a key or an ID.
            continue
        try:
            where = _common_place(key, value) if is_list else _place_of_rows(key, value)
        except WrongId:
            nowhere = True
            continue
        if where == _SEVERAL:
            several = True
        elif where is not None and where not in shards:
            shards.append(where)
            by_query = by_query or _has_query(value)
    return _Named(shards, several, by_query, nowhere or (len(shards) > 1 and not by_query))


def _alternatives(query: Any, q: models.Q) -> tuple[set[str], bool]:
    """The shards that the alternatives name, `_SEVERAL` among them for a list of several, and
    whether each names one: then all rows are there. Without any shard no row can be."""
    parts = [_alternative(query, child) for child in q.children]
    return {shard for shards, _ in parts for shard in shards}, all(known for _, known in parts)


def _alternative(query: Any, child: Any) -> tuple[set[str], bool]:
    """The same of one of the alternatives, which are conditions that must all hold."""
    if not isinstance(child, (models.Q, tuple)):
        return set(), False
    model = query.model
    pairs = _of_fields(query, _conditions(child) if isinstance(child, models.Q) else [child])
    try:
        named = _named(model, pairs)
    except (WrongKey, TypeError, ValueError):
        return set(), False  # Django or the server reports what it is.
    if named.is_impossible:
        return set(), True
    where = _SEVERAL if named.several and not named.shards else _place_by_references(model, pairs)
    shards = set(named.shards) or ({where} if where is not None else set())
    if shards or not isinstance(child, models.Q):
        return shards, bool(shards)
    for choice in _choices(child):
        more, known = _alternatives(query, choice)
        if known:
            return more, True
        shards |= more
    return shards, False


def _of_fields(query: Any, pairs: Iterable[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """The conditions on fields; those on a primary key of several columns also as conditions on
    each column. After `values` an annotation may have the name of the key, and has nothing to do
    with the shard."""
    pk, pairs = query.model._meta.pk, list(pairs)
    if query.annotations:
        pairs = [
            (name, value)
            for name, value in pairs
            if name.split(LOOKUP_SEP)[0] not in query.annotations
        ]
    if not isinstance(pk, models.CompositePrimaryKey):
        return pairs
    for name, value in pairs[:]:
        if name in ("pk", "pk__exact") and isinstance(value, (tuple, list)):
            pairs += zip(pk.field_names, value)
        elif (
            name == "pk__in"
            and isinstance(value, Iterable)
            and not isinstance(value, models.QuerySet)
        ):
            pairs += [
                (f"{part}__in", [one[at] for one in value])
                for at, part in enumerate(pk.field_names)
            ]
    return pairs


def _place_by_references(model: Any, pairs: Iterable[tuple[str, Any]]) -> str | None:
    """The shard of the rows of other models that these conditions name, or `_SEVERAL`; None if they
    name none."""
    for name, value in pairs:
        condition = reference_condition(model, name)
        if condition is None:
            continue
        key, is_list = condition
        try:
            where = _common_place(key, value) if is_list else _place_of_rows(key, value)
        except (WrongId, WrongKey, TypeError, ValueError):
            continue  # Django or the server reports what it is.
        if where is not None:
            return where
    return None


def _read(q: models.Q) -> None:
    """Makes lists of what can be read only once."""
    for at, child in enumerate(q.children):
        if isinstance(child, models.Q):
            _read(child)
        elif isinstance(child, tuple) and hasattr(child[1], "__next__"):
            q.children[at] = child[0], list(child[1])


def _conditions(q: models.Q) -> list[tuple[str, Any]]:
    """The conditions that must all hold."""
    if (
        q.negated
        or q.connector == models.Q.XOR
        or (q.connector == models.Q.OR and len(q.children) > 1)
    ):
        return []
    found: list[tuple[str, Any]] = []
    for child in q.children:
        found += (
            _conditions(child)
            if isinstance(child, models.Q)
            else [child]
            if isinstance(child, tuple)
            else []
        )
    return found


def _choices(q: models.Q) -> list[models.Q]:
    """The alternatives of which one must hold."""
    if q.negated:
        return []
    if q.connector != models.Q.AND and len(q.children) > 1:
        return [q]
    return [
        choice for child in q.children if isinstance(child, models.Q) for choice in _choices(child)
    ]


class ShardedManager(models.Manager.from_queryset(ShardedQuerySet)):  # type: ignore[misc]
    """The manager of sharded models."""
