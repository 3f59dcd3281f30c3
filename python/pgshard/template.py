"""SQL with the place of the shard's schema left open: `SELECT * FROM {shard}.photos`.

`{shard}` is replaced wherever it stands, in string literals too, by the schema as a quoted name. `{{shard}}` is the text
`{shard}` itself. Every other brace is the SQL's own.
"""

from __future__ import annotations

import re

_PLACES = re.compile(r"\{\{shard\}\}|\{shard\}")


def quote_name(name: str) -> str:
    """A name as SQL's quoted identifier."""
    return '"' + name.replace('"', '""') + '"'


def render(sql: str, schema: str) -> str:
    """The SQL for the shard with this schema, a name that is not quoted yet."""
    if "{shard}" not in sql:
        return sql
    quoted = quote_name(schema)
    return _PLACES.sub(lambda place: quoted if place.group() == "{shard}" else "{shard}", sql)


def escape(sql: str) -> str:
    """SQL in which the text `{shard}` shall stay: the inverse of `render` for SQL that names no shard."""
    return sql.replace("{shard}", "{{shard}}")
