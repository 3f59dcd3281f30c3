"""SQL that was written by hand. A table without a schema is looked for in the search path, and
where the default database is on a shard's host, `public` may have one of that name."""

from __future__ import annotations

import re

from django.apps import apps

from ..errors import NoShard
from ..sharded import unsharded_tables

_QUIET = re.compile(r"'(?:[^']|'')*'|--[^\n]*|/\*.*?\*/", re.DOTALL)
"""Texts and comments."""
_TABLE = re.compile(
    r"\b(?:FROM|JOIN|INTO|UPDATE|TABLE|TRUNCATE|COPY|LOCK)\s+(?:ONLY\s+)?(\"?)(\w+)\1(?![\w.\"])",
    re.IGNORECASE,
)
_WITH = re.compile(
    r"\b(\w+)\"?\s*(?:\([^()]*\)\s*)?AS\s+(?:(?:NOT\s+)?MATERIALIZED\s+)?\(", re.IGNORECASE
)


class Compiled(str):
    """SQL that the ORM made. Its tables have their schemas."""

    __slots__ = ("schema",)
    schema: str
    """The schema of the shard when it was made."""

    def __new__(cls, sql: str, schema: str) -> Compiled:
        made = super().__new__(cls, sql)
        made.schema = schema
        return made


def check_tables(sql: str) -> None:
    """Refuses SQL that names a model's table without its schema. Raises `NoShard`."""
    named = [match[1] for match in _TABLE.findall(_QUIET.sub("''", sql))]
    if not named or not apps.models_ready:
        return
    tables = {model._meta.db_table for model in apps.get_models(include_auto_created=True)}
    bare = tables.intersection(named) - set(_WITH.findall(sql))
    if bare:
        name = min(bare)
        remedy = (
            f"{{shard}}.{name} is the shard's"
            if name not in unsharded_tables()
            else "it is not in the shards, so query it by itself"
        )
        raise NoShard(
            f"the SQL names {name} without a schema, so it would be looked for in the search path:"
            f" {remedy}"
        )
