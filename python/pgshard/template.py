"""SQL in which the shard's schema is left open: `SELECT * FROM {shard}.photos`.

`{shard}` is replaced everywhere, even inside string literals, by the schema as a quoted name. `{{shard}}` stands for the text
`{shard}` itself. All other braces are left as they are.
"""

from __future__ import annotations

import re

_PLACES = re.compile(r"\{\{shard\}\}|\{shard\}")


def quote_name(name: str) -> str:
    """A name as a quoted identifier in SQL."""
    return '"' + name.replace('"', '""') + '"'


def render(sql: str, schema: str) -> str:
    """The SQL for the shard with this schema, whose name is not quoted yet."""
    if "{shard}" not in sql:
        return sql
    quoted = quote_name(schema)
    return _PLACES.sub(lambda place: quoted if place.group() == "{shard}" else "{shard}", sql)


def escape(sql: str) -> str:
    """SQL in which the text `{shard}` is kept: the inverse of `render` for SQL that names no shard."""
    return sql.replace("{shard}", "{{shard}}")
