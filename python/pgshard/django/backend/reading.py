"""psycopg reads a statement's text once for all shards: it finds the placeholders in a text without
the schema, and keeps that.

psycopg keeps what it has read by the text, 128 texts at most, and the same statement for another
shard is another text.
"""

from __future__ import annotations

from typing import Any

import psycopg
from django.db.backends.postgresql import base as postgresql

HOLE = "\0"
"""Takes the place of the schema. No SQL contains this character, because it would end there for the
server."""

# Names that psycopg does not promise: without them each text is read by itself.
_Read: Any = getattr(psycopg.ClientCursor, "_query_cls", None)
_FITS = hasattr(_Read, "convert") and hasattr(_Read, "dump") and hasattr(_Read, "template")


class _Query(_Read if _FITS else object):  # type: ignore[misc]
    """A statement and its parameters. The schema is put back before they are."""

    __slots__ = ("schema",)
    schema: str
    template: Any

    def convert(self, query: Any, vars: Any) -> None:
        super().convert(query.replace(self.schema, HOLE), vars)

    def dump(self, vars: Any) -> None:
        self.template = self.template.replace(b"\0", self.schema.encode(self._tx.encoding))
        super().dump(vars)


class OnceCursor(postgresql.Cursor):
    """Django's cursor, which keeps what psycopg reads in a text for all shards."""

    schema: str | None = None
    """The schema's name. It is put back where it was, with quotes around it or without."""

    def _convert_query(self, query: Any, params: Any = None) -> Any:
        schema = self.schema
        if schema is None or params is None or type(query) is not str or HOLE in query:
            return super()._convert_query(query, params)
        made = _Query(self._tx)
        made.schema = schema
        made.convert(query, params)
        return made if b"\0" not in made.query else super()._convert_query(query, params)


def reading_once(factory: Any) -> Any:
    """The class of cursors to use in place of this one: another one only if it is Django's own."""
    return OnceCursor if _FITS and factory is postgresql.Cursor else factory
