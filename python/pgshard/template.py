"""SQL in which the shard's schema is left open: `SELECT * FROM {shard}.photos`.

`{shard}` is replaced everywhere, even inside string literals, by the schema's name. It is written
without quotes where PostgreSQL reads it as the same name without them, as the name of every shard's
schema: `schemaname = '{shard}'` is true for that schema. `{shard_id}` is the shard's number.
`{{shard}}` and `{{shard_id}}` become the texts `{shard}` and `{shard_id}` themselves. All other
braces are left as they are.
"""

from __future__ import annotations

import re

_PLACES = re.compile(r"\{(?:\{shard(?:_id)?\}|shard(?:_id)?)\}")
# A name that means the same without quotes. No keyword has a digit in it.
_PLAIN = re.compile(r"(?=[a-z_]*[0-9])[a-z_][a-z0-9_]*")


def quote_name(name: str) -> str:
    """A name as a quoted identifier in SQL."""
    return '"' + name.replace('"', '""') + '"'


def render(sql: str, schema: str, shard: int | None = None) -> str:
    """The SQL for the shard with this schema, given as a name that is not quoted yet, and this
    number. Without a number, `{shard_id}` and `{{shard_id}}` are left as they are."""
    if "{shard" not in sql:
        return sql
    name = schema if _PLAIN.fullmatch(schema) else quote_name(schema)
    values = {"{shard}": name, "{{shard}}": "{shard}"}
    if shard is not None:
        values |= {"{shard_id}": str(shard), "{{shard_id}}": "{shard_id}"}
    return _PLACES.sub(lambda place: values.get(place.group(), place.group()), sql)


def escape(sql: str) -> str:
    """SQL in which the text `{shard}` is kept: the inverse of `render` for SQL that names no
    shard."""
    return sql.replace("{shard}", "{{shard}}")
