"""Queries that name the value of a look-up: which shard has the row."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from django.core.exceptions import ValidationError
from django.db import models
from django.db.models.functions import Collate, Lower
from django.db.models.lookups import Exact

from ..errors import LookupNotComplete, ValueUnusable
from ..values import Fold, form
from .cluster import alias, cluster
from .errors import translate_claims
from .lookups import ModelLookup, find_keys, lookups, lookups_of_rows
from .routing import chosen, refuse


class _Named(NamedTuple):
    """What a query's conditions name."""

    lookup: ModelLookup
    values: list[tuple[Any, ...]]
    folded: tuple[str, ...] = ()
    """The names of the fields that are compared without case."""


def note(query: Any, pairs: Iterable[tuple[str, Any]]) -> None:
    """Notes for a query the values of a look-up that its conditions name. They are looked up when
    it runs."""
    known = lookups_of_rows(query.model)
    if not known or getattr(query, "pgshard_lookup", None) is not None:
        return
    given = dict(pairs)
    for lookup in known:
        found = _exact(lookup, given) or _list(lookup, given)
        if found is not None:
            query.pgshard_lookup = found
            for name, value in zip(lookup.names, found.values[0] if found.folded else ()):
                if name in found.folded:
                    query.add_q(models.Q(_is_folded(name, value)))
            return


def _is_folded(name: str, value: str) -> Any:
    """The condition that a field has a value in which A to Z are a to z. For `iexact`, the server
    also takes other letters for the same, but then the value may be of any shard. The look-up's
    index serves this condition, and none serves `iexact`."""
    return Exact(Lower(Collate(name, "C")), form(value, Fold.ASCII))


def forget(query: Any) -> None:
    """Forgets that, in a query whose rows may have other values."""
    if getattr(query, "pgshard_lookup", None) is not None:
        query.pgshard_lookup = None


def is_noted(query: Any) -> bool:
    """Whether a query names the value of a look-up."""
    return getattr(query, "pgshard_lookup", None) is not None


def is_list(query: Any) -> bool:
    """Whether a query names several values of a look-up."""
    named: _Named | None = getattr(query, "pgshard_lookup", None)
    return named is not None and len(named.values) > 1


def _exact(lookup: ModelLookup, given: dict[str, Any]) -> _Named | None:
    values, folded = [], []
    for field in lookup.fields:
        names = [field.name, field.attname, f"{field.name}__exact"]
        if f"{field.name}__iexact" in given and lookup.definition().fold is Fold.ASCII:
            names.append(f"{field.name}__iexact")
        name = next((name for name in names if name in given), None)
        value = None if name is None else given[name]
        if value is None or _is_computed(value):
            return None
        values.append(value.pk if isinstance(value, models.Model) else value)
        if name == f"{field.name}__iexact":
            folded.append(field.name)
    prepared = lookup.values(values)
    return None if prepared is None else _Named(lookup, [prepared], tuple(folded))


def _list(lookup: ModelLookup, given: dict[str, Any]) -> _Named | None:
    values = given.get(f"{lookup.names[0]}__in") if len(lookup.names) == 1 else None
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
        return None
    if _is_computed(values) or any(map(_is_computed, values)):
        return None
    prepared = [lookup.values([value]) for value in values]
    return _Named(lookup, list(dict.fromkeys(one for one in prepared if one is not None)))


def _is_computed(value: Any) -> bool:
    return hasattr(value, "resolve_expression") or isinstance(value, models.QuerySet)


def places(query: Any) -> list[str]:
    """The shards that may have rows of a query that names values of a look-up. Where no key has
    them, any; it has no row either."""
    named: _Named = query.pgshard_lookup
    if not named.values:
        return [alias(0)]
    current = cluster()
    name = named.lookup.definition().name
    try:
        with translate_claims():
            keys = find_keys(name, named.values)
    except ValueUnusable:
        return [alias(0)]  # No row has such a value. Django or the server says what it is.
    except LookupNotComplete:
        where = chosen()
        if where is None:
            raise
        return [where]
    found = {alias(current.shard_of_key(key)) for key in keys if key is not None}
    if not found:
        request = lookups().request(name, named.values[0], "")
        return [alias(lookups().claimer.value_shard(request))]
    return sorted(found)


def key_of(lookup: ModelLookup, value: Any) -> Any:
    """The key of the row with this value of a look-up of one field. None if there is none, and
    until the look-up is complete."""
    try:
        values = lookup.values([lookup.fields[0].to_python(value)])
        if values is None:
            return None
        row = lookup.model._base_manager.filter(**lookup.conditions(values)).first()
    except (LookupNotComplete, ValidationError):
        return None
    return None if row is None else lookup.key(row)


def check_part(query: Any, using: str) -> None:
    """Refuses a part of a query on this shard if the values that it names are those of rows of
    other shards. Raises `NoShard`."""
    named: _Named = query.pgshard_lookup
    try:
        with translate_claims():
            keys = find_keys(named.lookup.definition().name, named.values)
    except (LookupNotComplete, ValueUnusable):
        return
    others = {alias(cluster().shard_of_key(key)) for key in keys if key is not None} - {using}
    if others:
        where = " and ".join(sorted(others))
        refuse(query.model, f"part of a query on {using} is about rows on {where}, so it")


def place(query: Any) -> str:
    """The one shard of a query that names values of a look-up. Raises `NoShard` if their rows are
    in several."""
    found = places(query)
    if len(found) > 1:
        refuse(query.model, f"rows are on {len(found)} shards, so the query")
    return found[0]
