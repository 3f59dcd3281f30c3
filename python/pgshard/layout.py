"""How a host keeps its shards: each in a schema of its own, or, on an unsharded host, all of them
in one schema of ordinary tables (docs/from-one-database.md). The same as in
src/shard/layout.rs."""

from __future__ import annotations

import enum

UNSHARDED = "unsharded-"
"""What the kind of keys begins with that an unsharded host has recorded. No client knows such a
kind that takes every host for a sharded one."""

_NAME_MAX = 63


class Unrouted(enum.Enum):
    """What becomes of statements on an unsharded host that name no key. The value is the name in
    the config."""

    REFUSE = "refuse"
    LOG = "log"


def schema_problem(name: str, prefix: str) -> str | None:
    """Why a schema of this name cannot have the rows of all shards; None if it can. `prefix`: what
    the names of the shards' schemas begin with."""
    if not 1 <= len(name.encode()) <= _NAME_MAX or "\0" in name:
        return f"a schema's name has 1 to {_NAME_MAX} bytes, none of them zero"
    is_own = name == "pgshard" or name.startswith("pgshard_")
    if is_own or name.startswith("pg_") or name == "information_schema":
        return f"the schema {name} is PostgreSQL's or pgshard's own"
    number = name[len(prefix) :] if name.startswith(prefix) else ""
    if number[:1].isascii() and number[:1].isdigit():
        return f"the schema {name} is named as a shard's, which begin with {prefix}"
    return None


def differing_layout(recorded: str, whole: str | None) -> str | None:
    """How the layout of a host that recorded this kind of keys differs from the config's; None if
    it does not. `whole`: the schema of all shards in the config."""
    is_unsharded = recorded.startswith(UNSHARDED)
    if is_unsharded == (whole is not None):
        return None
    there, here = ("unsharded", "sharded") if is_unsharded else ("sharded", "unsharded")
    return f"it recorded that it is {there}, the config says {here}"


def key_of_record(recorded: str) -> str:
    """The kind of keys in what a host has recorded, whatever its layout."""
    return recorded.removeprefix(UNSHARDED)
