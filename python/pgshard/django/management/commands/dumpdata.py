"""Django's `dumpdata`. For sharded models it would print an empty list if no shard were named."""

from __future__ import annotations

from typing import Any

from django.apps import apps
from django.core.management.base import CommandError
from django.core.management.commands.dumpdata import Command as DumpData

from ...cluster import shard_of_alias
from ...sharded import is_sharded
from ..database import AnyDatabase


class Command(AnyDatabase, DumpData):
    """The same as Django's, for one shard, or for a database without sharded models."""

    def handle(self, *app_labels: str, **options: Any) -> None:
        """Refuses a call that would silently leave rows out."""
        if shard_of_alias(options.get("database")) is None:
            excluded = {name.lower() for name in options.get("exclude") or ()}
            sharded = [
                model
                for model in _models(app_labels)
                if not {model._meta.app_label, model._meta.label_lower} & excluded
            ]
            if sharded:
                names = ", ".join(sorted(model._meta.label for model in sharded))
                raise CommandError(
                    f"{names} are in the shards: dump one with --database shard-0, all with"
                    " `manage.py shards dumpdata`, or leave them out with --exclude"
                )
        super().handle(*app_labels, **options)


def _models(labels: tuple[str, ...]) -> list[Any]:
    found: list[Any] = []
    for model in apps.get_models():
        names = {model._meta.app_label, model._meta.label.lower()}
        if is_sharded(model) and (not labels or names & {label.lower() for label in labels}):
            found.append(model)
    return found
