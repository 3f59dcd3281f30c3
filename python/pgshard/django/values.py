"""Query sets of rows that are found by values of look-ups, also on several shards, and writes of
such rows."""

from __future__ import annotations

import sys
from typing import Any

from django.db import IntegrityError, connections, models, transaction
from django.db.models.utils import resolve_callables

from . import claiming, finding
from .across import AcrossShards
from .cluster import shard_of_alias
from .errors import Busy
from .gather import WIDTH
from .routing import alias_of_instance, check_instance


class ValueQuerySet(models.QuerySet):
    """What a `ShardedQuerySet` does with values of look-ups."""

    _db: str | None
    _result_cache: Any

    def _of_values(self) -> AcrossShards | None:
        """The query on the shards of the values that it names, if these are several."""
        if self._db is not None or not finding.is_list(self.query) or self.query.is_empty():
            return None
        shards = [
            shard for shard in map(shard_of_alias, finding.places(self.query)) if shard is not None
        ]
        return AcrossShards(self._chain(), WIDTH, None, shards) if len(shards) > 1 else None

    def _fetch_all(self) -> None:
        several = self._of_values() if self._result_cache is None else None
        if several is not None:
            # Each shard's rows have what was to be prefetched.
            self._result_cache, self._prefetch_done = several.list(sys.maxsize), True
        super()._fetch_all()

    def count(self) -> Any:
        """The same as Django's."""
        several = self._of_values() if self._result_cache is None else None
        return super().count() if several is None else several.count()

    def exists(self) -> Any:
        """The same as Django's."""
        several = self._of_values() if self._result_cache is None else None
        return super().exists() if several is None else several.exists()

    def iterator(self, *args: Any, **kwargs: Any) -> Any:
        """The same as Django's, which would look the value up twice."""
        at = self._placed()
        return super(ValueQuerySet, at).iterator(*args, **kwargs)

    def _placed(self) -> Any:
        """This query set on the shard that a value of a look-up names: it is looked up once."""
        return self._on(self.db) if self._db is None and finding.is_noted(self.query) else self

    def _get_or_create(self, defaults: Any, kwargs: dict[str, Any]) -> tuple[Any, bool]:
        """`get_or_create` by a value of a look-up: the row may be on any shard, and a new one is on
        that of its key."""
        try:
            return self.get(**kwargs), False
        except self.model.DoesNotExist:
            params = dict(resolve_callables(self._extract_model_params(defaults, **kwargs)))
        where = self._of_row(params)
        try:
            if where is None or not connections[where].in_atomic_block:
                return self.create(**params), True
            with transaction.atomic(using=where):
                return self.create(**params), True
        except (IntegrityError, Busy):
            try:
                return self.get(**kwargs), False
            except self.model.DoesNotExist:
                pass
            raise

    def _create_claimed(self, objs: list[Any], *args: Any, **kwargs: Any) -> Any:
        """`bulk_create` of a model with look-ups, whose rows may be of several shards: all values
        are claimed before the first row is written."""
        by_shard: dict[str, list[Any]] = {}
        for one in objs:
            where = self._db or alias_of_instance(one) or self.db
            check_instance(one, where)
            by_shard.setdefault(where, []).append(one)
        new = {id(one) for one in objs if one.pk is None}

        def create(where: str, some: list[Any]) -> None:
            for one in some:
                if id(one) in new:
                    one.pk = None  # A try that left nothing may have set it.
            self._on(where)._bulk_create(some, *args, **kwargs)

        skips = kwargs.get("ignore_conflicts", args[1:2] == (True,))
        claiming.create_all(objs, by_shard, create, skips=bool(skips))
        return objs
