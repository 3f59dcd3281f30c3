"""Many-to-many relations of sharded models to models that are not sharded, such as users. The table
that joins them is on the shard of the sharded row, so a relation is read in two steps: the values
of that table first, then the rows that they refer to, in the other database."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable
from typing import Any, NamedTuple

from django.apps import apps
from django.db import router, transaction
from django.db.models import F
from django.db.models.lookups import In

from .cluster import shard_of_alias, unsharded_host
from .everywhere import rows_with
from .reach import objects_meant
from .routing import run_on, where_of
from .sharded import is_sharded


def leads_elsewhere(field: Any) -> bool:
    """Whether this is a many-to-many field of a sharded model to one that is not sharded."""
    target = field.remote_field.model
    return is_sharded(field.model) and not isinstance(target, str) and not is_sharded(target)


def _place(instance: Any) -> str | None:
    """Where the rows of a joining table are read that belong to this object."""
    where = where_of(instance)
    return where if unsharded_host() is None else rows_with(where)


class _Related(NamedTuple):
    """The values of the joining table for a row of a shard. The table is named, because a query set
    that is put into a cache cannot hold the class of an automatic one."""

    through: str
    where: str
    source: str
    value: Any
    target: str

    def read(self) -> list[Any]:
        rows = (
            apps.get_model(self.through)
            ._base_manager.using(self.where)
            .filter(**{self.source: self.value})
        )
        with objects_meant():
            return list(rows.values_list(self.target, flat=True))


class _InRelated(In):
    """`column IN (…)` of the values of a joining table. They are read whenever the query runs."""

    def get_prep_lookup(self) -> Any:
        """The same as Django's, but the values are not known yet."""
        return self.rhs

    def as_sql(self, compiler: Any, connection: Any) -> Any:
        """Reads the values. Raises `EmptyResultSet` if there are none."""
        return In(self.lhs, self.rhs.read()).as_sql(compiler, connection)


def manager(made: Any, fill: Callable[[Any, dict[str, Any]], Any]) -> Any:
    """The manager of such a relation, from the one that Django has made. `fill` adds to
    `through_defaults` what a row of the joining table gets from the manager's object."""

    class Elsewhere(made):
        def _related(self, where: str) -> _Related:
            return _Related(
                self.through._meta.label,
                where,
                self.source_field_name,
                self.related_val[0],
                self.target_field.attname,
            )

        def _apply_rel_filters(self, queryset: Any) -> Any:
            where = router.db_for_read(self.through, instance=self.instance)
            queryset._add_hints(instance=self.instance)
            # What `using` names may be the shard, which does not have the rows themselves.
            alias = None if shard_of_alias(self._db) is not None else self._db
            queryset = queryset.using(alias)
            column = F(self.target_field.target_field.attname)
            queryset._defer_next_filter = True
            return queryset._next_is_sticky().filter(_InRelated(column, self._related(where)))

        def get_prefetch_querysets(self, instances: Any, querysets: Any = None) -> Any:
            """The same as Django's. An object that several others refer to is given to each as a
            copy."""
            if querysets and len(querysets) != 1:
                raise ValueError("querysets of get_prefetch_querysets() must have one element")
            rows = querysets[0] if querysets else super(made, self).get_queryset()
            source, target = self.source_field, self.target_field
            groups = defaultdict(list)
            for one in instances:
                groups[_place(one)].append(one)
            holders = defaultdict(list)
            for where, some in groups.items():
                rows_of = self.through._base_manager.using(where)
                asked = rows_of.filter(**{f"{source.name}__in": some})
                for holder, value in asked.values_list(source.attname, target.attname):
                    holders[value].append((str(where), holder))
            name = target.target_field.attname
            rows = rows.filter(**{f"{name}__in": list(holders)})
            # Django itself prefetches what these are to have.
            lookups, rows._prefetch_related_lookups = rows._prefetch_related_lookups, ()
            found = []
            for row in rows:
                for holder in holders[getattr(row, name)]:
                    one = copy.copy(row)
                    one._pgshard_holder = holder
                    found.append(one)
            rows._result_cache, rows._prefetch_related_lookups = found, lookups
            return (
                rows,
                lambda row: row._pgshard_holder,
                lambda one: (
                    str(_place(one)),
                    source.get_foreign_related_value(one)[0],
                ),
                False,
                self.prefetch_cache_name,
                False,
            )

        def _write(self, work: Callable[[str], Any]) -> Any:
            """Runs this on the shard, and again if that moves during it."""
            db = router.db_for_write(self.through, instance=self.instance)
            with objects_meant():
                return run_on(db, lambda: work(db))

        def add(self, *objs: Any, **kwargs: Any) -> None:
            """The same as Django's."""
            fill(self, kwargs)
            self._write(lambda _: super(Elsewhere, self).add(*objs, **kwargs))

        def remove(self, *objs: Any) -> None:
            """The same as Django's."""
            self._write(lambda _: super(Elsewhere, self).remove(*objs))

        def clear(self) -> None:
            """The same as Django's."""
            self._write(lambda _: super(Elsewhere, self).clear())

        def set(self, objs: Any, *, clear: bool = False, through_defaults: Any = None) -> None:
            """The same as Django's."""
            objs = tuple(objs)

            def work(db: str) -> None:
                with transaction.atomic(using=db, savepoint=False):
                    if clear:
                        self.clear()
                    there = set(self._related(db).read())
                    new = [one for one in objs if self._value(one) not in there]
                    self.remove(*(there - {self._value(one) for one in objs}))
                    self.add(*new, through_defaults=through_defaults)

            self._write(work)

        def set_base(self, objs: Any, *, raw: bool = False, **kwargs: Any) -> None:
            """Fixtures use this in Django 6.1."""
            self.set(objs, **kwargs)

        def _value(self, one: Any) -> Any:
            if isinstance(one, self.model):
                return self.target_field.get_foreign_related_value(one)[0]
            return self.target_field.get_prep_value(one)

        def create(self, *, through_defaults: Any = None, **kwargs: Any) -> Any:
            """The same as Django's: a row in its own database, which is then added."""
            one = self.get_queryset().create(**kwargs)
            self.add(one, through_defaults=through_defaults)
            return one

        def get_or_create(self, *, through_defaults: Any = None, **kwargs: Any) -> Any:
            """The same as Django's."""
            one, created = self.get_queryset().get_or_create(**kwargs)
            if created:
                self.add(one, through_defaults=through_defaults)
            return one, created

        def update_or_create(self, *, through_defaults: Any = None, **kwargs: Any) -> Any:
            """The same as Django's."""
            one, created = self.get_queryset().update_or_create(**kwargs)
            if created:
                self.add(one, through_defaults=through_defaults)
            return one, created

    for name in ("add", "remove", "clear", "set", "create", "get_or_create", "update_or_create"):
        getattr(Elsewhere, name).alters_data = True
    return Elsewhere
