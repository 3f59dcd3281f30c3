"""Finds rows that are not on the shard that their key, their ID or their references name. Something
else than Django has written those: Django refuses to."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from django.apps import apps

from ..errors import WrongId, WrongKey
from .cluster import ALL_ROWS, AllRows, alias, cluster, unsharded_host
from .routing import alias_of_named, alias_of_value, is_legacy
from .sharded import is_sharded, rules


class Misplaced(NamedTuple):
    """A row that is not where it belongs."""

    model: str
    pk: Any
    where: str
    column: str
    value: Any
    belongs: str | None
    """The shard that the value names; None if it names none."""


class Progress:
    """How far a check has come, for each model and shard. With a file it can be stopped and
    continued."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._known: dict[str, Any] = {}
        if path is not None and path.exists():
            self._known = json.loads(path.read_text(encoding="utf-8"))

    def of(self, name: str) -> dict[str, Any]:
        """What is known of a model on a shard: `after`, its last row that was looked at; `done`;
        and `found`, how many rows are misplaced."""
        found: dict[str, Any] = self._known.setdefault(
            name, {"after": None, "done": False, "found": 0}
        )
        return found

    def found(self) -> int:
        """How many rows are misplaced, those of former runs too."""
        return sum(one["found"] for one in self._known.values())

    def save(self) -> None:
        """Writes the file."""
        if self._path is not None:
            new = self._path.with_name(f"{self._path.name}.new")
            new.write_text(json.dumps(self._known), encoding="utf-8")
            os.replace(new, self._path)


def checked_models(labels: list[str]) -> list[Any]:
    """The sharded models with these labels, or all of them, with the automatic tables of
    many-to-many fields. Raises `LookupError`."""
    if labels:
        return [apps.get_model(label) for label in labels]
    return [
        model
        for model in apps.get_models(include_auto_created=True)
        if is_sharded(model) and not model._meta.proxy and model._meta.managed
    ]


def look(models: list[Any], size: int, progress: Progress) -> Iterator[Misplaced]:
    """Reads the tables of all shards, `size` rows at a time in the order of the primary key, and
    yields what is misplaced."""
    for model in models:
        at_once = unsharded_host() is not None
        for where in [ALL_ROWS] if at_once else map(alias, range(cluster().shards)):
            known = progress.of(f"{model._meta.label} {'all' if at_once else where}")
            while not known["done"]:
                rows, last = _range(model, where, known["after"], size)
                yield from rows
                known["after"], known["done"] = last, last is None
                known["found"] += len(rows)
                progress.save()


def _range(model: Any, where: str, after: Any, size: int) -> tuple[list[Misplaced], Any]:
    """What is misplaced in the range after this primary key, and the last primary key of the range;
    None at the end of the table."""
    keys, id, references, _ = rules(model)
    columns = [*keys, *((name, key) for name, _, key in references)]
    columns += [] if id is None else [(id, None)]
    rows = model._base_manager.using(where).order_by("pk")
    if after is not None:
        rows = rows.filter(pk__gt=after)
    read = list(rows.values_list("pk", *(name for name, _ in columns))[:size])
    found = []
    for pk, *values in read:
        # An unsharded host has the rows of all keys: what a row holds must be of one shard.
        here: str | None = None if isinstance(where, AllRows) else where
        for (name, key), value in zip(columns, values):
            if value is None or (key is None and is_legacy(value)):
                continue
            belongs = _place(key, value)
            here = here or belongs
            if belongs is None or belongs != here:
                found.append(
                    Misplaced(model._meta.label, pk, here or "no shard", name, value, belongs)
                )
    return found, _stored(read[-1][0]) if len(read) == size else None


def _place(key: Any, value: Any) -> str | None:
    try:
        return alias_of_named(value) if key is None else alias_of_value(key, value)
    except (WrongId, WrongKey):
        return None


def _stored(pk: Any) -> Any:
    """A primary key as JSON has it. Django's lookups take it back."""
    if isinstance(pk, tuple):
        return [_stored(one) for one in pk]
    return pk if isinstance(pk, int) else str(pk)
