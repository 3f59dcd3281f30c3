"""Django's `loaddata`: on a shard it loads the rows that belong there."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError
from django.core.management.commands.loaddata import Command as LoadData
from django.db import router

from ...cluster import shard_of_alias, state
from ...routing import alias_of_instance, check_instance
from ...sharded import is_sharded
from ..database import AnyDatabase


class Command(AnyDatabase, LoadData):
    """The same as Django's. A test case loads its fixtures into each database: each shard takes its
    own rows and skips the others'."""

    using: str

    def save_obj(self, obj: Any) -> bool:
        """Saves an object on the shard where it belongs. Raises `WrongShard` if it refers to a row
        of another shard."""
        if (
            is_sharded(type(obj.object))
            and shard_of_alias(self.using) is None
            and not state.visible
        ):
            # Django would leave it out. A test case comes again for each shard.
            raise CommandError(
                f"{obj.object._meta.label} is in the shards, and {self.using} is none: dump what is"
                " not in the shards by itself, and load the rest of the fixture into each shard,"
                " with --database shard-0 and so on"
            )
        if not router.allow_migrate_model(self.using, type(obj.object)):
            # Django would still try to look up what it refers to by natural keys, at the end.
            return False
        if is_sharded(type(obj.object)):
            if alias_of_instance(obj.object) not in (None, self.using):
                return False
            check_instance(obj.object, self.using)
        return bool(super().save_obj(obj))
