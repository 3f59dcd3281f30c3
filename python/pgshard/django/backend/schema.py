"""Django's DDL as text for all shards; running it on a single shard is refused."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NoReturn

from django.db import NotSupportedError
from django.db.backends.postgresql.schema import DatabaseSchemaEditor
from django.db.backends.utils import split_identifier

SCHEMA = "pgshard_schema_of_this_shard"
"""Takes the place of {shard} while Django makes SQL, so that a {shard} in the application's own
text can be distinguished."""

_FOUND = re.compile(r'"(pgshard_found_\d+)"')

# Each shard looks the names up when the statement runs: if a table or column was renamed since, the
# name that Django gave its constraint cannot be computed here.
_CONSTRAINTS = """SELECT c.conname FROM pg_catalog.pg_constraint c
        WHERE c.conrelid = {table}::pg_catalog.regclass AND c.contype = '{kind}' AND c.conname <>
            ALL ({but}) AND {columns} =
            (SELECT pg_catalog.array_agg(a.attname::text ORDER BY k.place) FROM
                pg_catalog.unnest(c.conkey)
             WITH ORDINALITY AS k(number, place)
             JOIN pg_catalog.pg_attribute a ON a.attrelid = c.conrelid AND a.attnum = k.number)"""
_INDEXES = """SELECT i.relname FROM pg_catalog.pg_index x JOIN pg_catalog.pg_class i ON i.oid =
    x.indexrelid
        WHERE x.indrelid = {table}::pg_catalog.regclass AND NOT x.indisunique AND i.relname <> ALL
            ({but})
            AND {columns} =
            (SELECT pg_catalog.array_agg(a.attname::text ORDER BY k.place) FROM
                pg_catalog.unnest(x.indkey::int2[])
             WITH ORDINALITY AS k(number, place)
             JOIN pg_catalog.pg_attribute a ON a.attrelid = x.indrelid AND a.attnum = k.number)"""
_DO = """DO $pgshard$
DECLARE
    found name;
BEGIN
    FOR found IN
        {query}
    LOOP
        EXECUTE pg_catalog.format($statement${statement}$statement$, found);
    END LOOP;
END
$pgshard$"""


def refuse(alias: str) -> NoReturn:
    """Raises an error: a single shard is never migrated."""
    raise NotSupportedError(
        f"{alias} is not migrated by Django: `manage.py shards makesql` writes files for all"
        " shards, and `pgshard migrate up` runs them"
    )


class TemplateSchemaEditor(DatabaseSchemaEditor):
    """Collects SQL for all shards, and queries no database. Table names already have `SCHEMA`; this
    class adds it to the other names."""

    sql_delete_index = f'DROP INDEX IF EXISTS "{SCHEMA}".%(name)s'
    sql_delete_index_concurrently = f'DROP INDEX CONCURRENTLY IF EXISTS "{SCHEMA}".%(name)s'
    sql_rename_index = f'ALTER INDEX "{SCHEMA}".%(old_name)s RENAME TO %(new_name)s'
    # Django's version first sets deferred checks of a foreign key to immediate, by its bare name.
    sql_delete_fk = DatabaseSchemaEditor.sql_delete_constraint

    def __init__(self, connection: Any) -> None:
        super().__init__(connection, collect_sql=True, atomic=False)
        self._queries: dict[str, str] = {}

    def statements(self) -> list[str]:
        """The statements that were collected."""
        collected = [*self.collected_sql, *(str(one) for one in self.deferred_sql)]
        return [self._looked_up(one) for one in collected]

    def _looked_up(self, statement: str) -> str:
        """The statement; if it contains a placeholder for names, it runs once for each name that
        the query finds."""
        names = set(_FOUND.findall(statement))
        if not names:
            return statement
        assert len(names) == 1, "Django drops and renames one at a time"
        pattern = _FOUND.sub("%1$I", statement.rstrip(";").replace("%", "%%"))
        return _DO.format(query=self._queries[names.pop()], statement=pattern)

    def _constraint_names(
        self,
        model: Any,
        column_names: Sequence[str] | None = None,
        unique: bool | None = None,
        primary_key: bool | None = None,
        index: bool | None = None,
        foreign_key: bool | None = None,
        check: bool | None = None,
        type_: str | None = None,
        exclude: Any = None,
    ) -> list[str]:
        """A placeholder for the names that exist when the statement runs."""
        kinds = {"u": unique, "p": primary_key, "f": foreign_key, "c": check}
        kind = next((name for name, wanted in kinds.items() if wanted), None)
        if kind is None and not index:
            raise NotSupportedError(
                f"{model._meta.label}: this change needs names that only a database has: use RunSQL"
            )
        if column_names is None:
            column_names = [model._meta.pk.column]
        texts = ", ".join(_literal(name) for name in column_names)
        but = ", ".join(_literal(name) for name in sorted(exclude or ()))
        parts = {
            "table": _literal(self.quote_name(model._meta.db_table)),
            "columns": f"ARRAY[{texts}]::text[]",
            "but": f"ARRAY[{but}]::name[]",
        }
        name = f"pgshard_found_{len(self._queries) + 1}"
        query = (
            _CONSTRAINTS.format(kind=kind, **parts)
            if kind is not None
            else _INDEXES.format(**parts)
        )
        self._queries[name] = query
        return [name]

    def alter_db_table(self, model: Any, old_db_table: str, new_db_table: str) -> None:
        """The new name in a RENAME TO has no schema."""
        if old_db_table != new_db_table:
            new = self.quote_name(split_identifier(new_db_table)[1])
            self.execute(f"ALTER TABLE {self.quote_name(old_db_table)} RENAME TO {new}")


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
