"""A user model on shards, for `django.contrib.auth`. docs/django-recipes.md has one."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.base_user import BaseUserManager
from django.db import DEFAULT_DB_ALIAS

from ..managers import ShardedManager


class ShardedUserManager(BaseUserManager, ShardedManager):
    """The manager of a user model that is sharded.

    Django's commands `createsuperuser` and `changepassword` name the database `default`, unless
    another is given. Here that is none: a query and a new row find their shard as always.
    """

    def db_manager(self, using: str | None = None, hints: Any = None) -> Any:
        """The same as Django's. Raises `NoShard`, when it is used, for another database that is no
        shard."""
        return super().db_manager(None if using == DEFAULT_DB_ALIAS else using, hints)

    def using(self, alias: str | None) -> Any:
        """The same as Django's. Raises `NoShard` for another database that is no shard."""
        rows = self.get_queryset()
        return rows if alias == DEFAULT_DB_ALIAS else rows.using(alias)


__all__ = ["ShardedUserManager"]
