"""pgshard for Django: each logical shard is a database alias, `shard-31`, and sharded models find
their shard by themselves.

    # settings.py
    DATABASES = pgshard.django.databases("pgshard.toml", default={…})
    DATABASE_ROUTERS = ["pgshard.django.ShardRouter"]
    INSTALLED_APPS += ["pgshard.django"]

docs/django.md describes the rest.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .cluster import alias, databases, shard_of_alias

if TYPE_CHECKING:
    from .backend.pools import release, shard_connection_created
    from .errors import (
        Busy,
        ConnectionLost,
        InDoubt,
        LayoutChanged,
        NoClaim,
        NoShard,
        ShardMoved,
        ShardUnavailable,
        Taken,
        Unsharded,
        WrongShard,
    )
    from .gather import Gathered, Partial
    from .routing import ShardRouter
    from .typed import (
        AcrossShards,
        Lookup,
        ShardedBigAutoField,
        ShardedManager,
        ShardedModel,
        ShardedQuerySet,
        ShardKeyField,
        ShardKeyForeignKey,
        ShardKeyOneToOneField,
        alias_of_id,
        alias_of_key,
        arun_in_shard,
        run_in_shard,
        shard_of,
        shard_of_key,
    )
    from .uncovered import UncoveredWriteWarning
    from .unrouted import unrouted_calls

# Settings import this module, and models cannot be imported before the settings exist.
_WHERE = {
    "release": "backend.pools",
    "shard_connection_created": "backend.pools",
    "Busy": "errors",
    "ConnectionLost": "errors",
    "InDoubt": "errors",
    "LayoutChanged": "errors",
    "NoClaim": "errors",
    "NoShard": "errors",
    "ShardMoved": "errors",
    "ShardUnavailable": "errors",
    "Taken": "errors",
    "Unsharded": "errors",
    "WrongShard": "errors",
    "Lookup": "lookups",
    "ShardKeyField": "fields",
    "ShardKeyForeignKey": "fields",
    "ShardKeyOneToOneField": "fields",
    "ShardedBigAutoField": "fields",
    "Gathered": "gather",
    "Partial": "gather",
    "AcrossShards": "across",
    "ShardedManager": "managers",
    "ShardedQuerySet": "managers",
    "ShardedModel": "models",
    "ShardRouter": "routing",
    "UncoveredWriteWarning": "uncovered",
    "alias_of_id": "routing",
    "alias_of_key": "routing",
    "arun_in_shard": "routing",
    "run_in_shard": "routing",
    "shard_of": "routing",
    "shard_of_key": "routing",
    "unrouted_calls": "unrouted",
}

__all__ = [
    "AcrossShards",
    "Busy",
    "ConnectionLost",
    "Gathered",
    "InDoubt",
    "LayoutChanged",
    "Lookup",
    "NoClaim",
    "NoShard",
    "Partial",
    "ShardKeyField",
    "ShardKeyForeignKey",
    "ShardKeyOneToOneField",
    "ShardMoved",
    "ShardRouter",
    "ShardUnavailable",
    "ShardedBigAutoField",
    "ShardedManager",
    "ShardedModel",
    "ShardedQuerySet",
    "Taken",
    "UncoveredWriteWarning",
    "Unsharded",
    "WrongShard",
    "alias",
    "alias_of_id",
    "alias_of_key",
    "arun_in_shard",
    "databases",
    "release",
    "run_in_shard",
    "shard_connection_created",
    "shard_of",
    "shard_of_alias",
    "shard_of_key",
    "unrouted_calls",
]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_WHERE[name]}"), name)
