"""Django's migrations of sharded models as SQL for all shards: files that `pgshard migrate up`
runs."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from django import VERSION
from django.apps import apps
from django.contrib.postgres import operations as postgresql
from django.db import connections, migrations
from django.db.backends.utils import truncate_name
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.state import ProjectState
from django.db.models.signals import class_prepared

from ..template import escape, quote_name, render
from .backend.schema import SCHEMA, TemplateSchemaEditor
from .cluster import alias, cluster
from .sharded import KEYS, automatic_tables, is_sharded

NUMBERED = re.compile(r"(\d{4,})_(.+)\.sql")
"""The names of files with shard migrations."""
_COMMENT = re.compile(r"--.*")
_MADE_BY = re.compile(r"^-- By Django (?P<django>[\d.]+), from SQL (?P<sum>[0-9a-f]{16})\.$", re.M)
"""The line of a file that records what it was made from."""

Key = tuple[str, str]
"""The application's label and the name of one of its migrations, or models."""


class CannotMake(Exception):
    """A migration that cannot become a file for all shards. The text has what to do instead."""


@dataclass(frozen=True)
class File:
    """A file with a shard migration: its name without the number, and its text."""

    name: str
    text: str

    def differs(self, path: Path) -> bool:
        """Whether the migration would make other SQL now than when this file of it was written. A
        file may be edited, so its own text proves nothing; and another version of Django may make
        other SQL from the same migration."""
        made, there = (_MADE_BY.search(text) for text in (self.text, path.read_text("utf-8")))
        if made is None or there is None or made.group("django") != there.group("django"):
            return False
        return made.group("sum") != there.group("sum")


@contextmanager
def _namespaced() -> Iterator[None]:
    """While this runs, each sharded model that is made gets a table name with a schema, which
    Django's DDL then uses."""

    def put(sender: Any, **_: Any) -> None:
        if is_sharded(sender) and not sender._meta.db_table.startswith(f'{SCHEMA}"."'):
            sender._meta.db_table = f'{SCHEMA}"."{sender._meta.db_table}'
        for table in automatic_tables(sender):
            # It may have been made before the model had a key.
            put(table)

    class_prepared.connect(put)
    try:
        yield
    finally:
        class_prepared.disconnect(put)


class _Schema:
    """Replaces the connection's schema while templates are made."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection

    def __enter__(self) -> None:
        self.before = self.connection.quoted_schema
        self.connection.quoted_schema = f'"{SCHEMA}"'

    def __exit__(self, *_: Any) -> None:
        self.connection.quoted_schema = self.before


def present(folder: Path) -> dict[str, Path]:
    """The files that are there, by their names without the number. Raises `CannotMake` where the
    folder is not there."""
    if not folder.is_dir():
        raise CannotMake(
            f"there is no folder {folder}: make it, or correct migrations in [cluster] of the"
            " config"
        )
    found = {}
    for path in sorted(folder.iterdir()):
        parts = NUMBERED.fullmatch(path.name)
        if parts is not None:
            found[parts.group(2)] = path
    return found


def unwritten(folder: Path) -> list[str]:
    """The names of the files that the folder lacks. Raises `CannotMake`."""
    there = present(folder)
    project = Project(there)
    return [
        file.name
        for key in project.wanted()
        for file in project.make(*key)
        if file.name not in there
    ]


def was_sharded(label: str, model: str) -> bool:
    """Whether a model, perhaps of former times, is or was sharded."""
    return (label, model.lower()) in Project().models


class Project:
    """The migrations of all applications, and what those that change shards come to."""

    def __init__(self, there: Collection[str] = ()) -> None:
        """`there`: the names of the files that are there already. Raises `CannotMake`."""
        self._loader = _Loader(there)
        graph = self._loader.graph
        # Each comes after those that it depends on, whatever their application.
        self._plan = list(
            dict.fromkeys(key for leaf in graph.leaf_nodes() for key in graph.forwards_plan(leaf))
        )
        self.models: set[Key] = set()
        """The sharded models that ever were, by label and name in small letters."""
        self.apps = set()
        """The labels of the applications whose migrations may change shards."""
        state = ProjectState(real_apps=self._loader.unmigrated_apps)
        for label, name in self._plan:
            migration = graph.nodes[label, name]
            state = migration.mutate_state(state, preserve=False)
            self.models.update(
                key for key in state.models if key[0] == label and _sharded_state(state, key)
            )
            if any(_says_sharded(one) for one in migration.operations):
                self.apps.add(label)
        self.apps.update(label for label, _ in self.models)

    def wanted(self, app: str | None = None) -> list[Key]:
        """The migrations that may change shards, in the order in which they run; with `app`, those
        of this application."""
        # What takes the place of others comes last: it has nothing to do where they were run.
        squashed = (key for key in self._loader.taken if key not in self._loader.graph.nodes)
        return [
            key
            for key in (*self._plan, *squashed)
            if key[0] == app or (app is None and key[0] in self.apps)
        ]

    def make(self, label: str, name: str) -> list[File]:
        """The files of one migration: none if it does nothing to sharded models; a separate one for
        each statement that runs outside of transactions.

        Raises `CannotMake`, and `KeyError` if there is no such migration.
        """
        replaced = self._loader.taken.get((label, name))
        if replaced is not None:
            return [_done(label, name, replaced)]
        migration = self._loader.get_migration(label, name)
        state = self._loader.project_state((label, name), at_end=False)
        connection: Any = connections[alias(0)]
        files: list[File] = []
        collected: list[str] = []

        def close() -> None:
            if collected:
                files.append(_file(label, name, len(files), collected, None))
                collected.clear()

        has_models = any(app == label for app, _ in self.models)
        with _Schema(connection), _namespaced():
            for operation, before, after in _steps(migration.operations, label, state):
                if not _concerns_shards(operation, label, before, after, has_models):
                    continue
                with TemplateSchemaEditor(connection) as editor:
                    _apply(operation, label, editor, before, after)
                    statements = editor.statements()
                    # Statements that wait until other changes are done come right after this one.
                    editor.deferred_sql = []
                if isinstance(operation, migrations.RunSQL):
                    # If the application's own SQL contains {shard}, that is the placeholder.
                    statements = [render(one, SCHEMA) for one in statements]
                for statement in statements:
                    if re.search(r"\bCONCURRENTLY\b", _COMMENT.sub("", statement).split("'")[0]):
                        close()
                        files.append(_file(label, name, len(files), [statement], "no-transaction"))
                    else:
                        collected.append(statement)
        close()
        return files


class _Loader(MigrationLoader):
    """Django runs a squashed migration if all that it replaces was run, or nothing of it. Here, one
    was run if its file is there."""

    def __init__(self, there: Collection[str]) -> None:
        self._there = there
        self.taken: dict[Key, list[Key]] = {}
        """The squashed migrations whose work is in files of others, with these others."""
        super().__init__(None)

    def load_disk(self) -> None:
        """Django calls this first."""
        super().load_disk()
        self.taken = {}
        for key, migration in self.disk_migrations.items():
            replaced = self._replaced(migration)
            written = [one for one in replaced if self._is_there(one)]
            if not written:
                continue
            self.taken[key] = replaced
            lost = [
                one
                for one in replaced
                if not self._is_there(one) and one not in self.disk_migrations
            ]
            if lost and not self._is_there(key):
                raise CannotMake(
                    f"{'.'.join(key)} replaces {_names(written)}, whose files are there, and"
                    f" {_names(lost)}, of which there is neither a file nor the migration: put the"
                    " migrations back and run `manage.py shards makesql` first"
                )

    @property
    def applied_migrations(self) -> dict[Key, Any]:
        """Django checks whether what a squashed migration replaces is in it."""
        return self._applied

    @applied_migrations.setter
    def applied_migrations(self, _: Any) -> None:
        done = [
            one
            for key, all in self.taken.items()
            for one in all
            if self._is_there(one) or self._is_there(key)
        ]
        self._applied: dict[Key, Any] = dict.fromkeys(done)

    def _replaced(self, migration: Any) -> list[Key]:
        """What a migration replaces, and what that replaces in its turn."""
        found: list[Key] = []
        for one in migration.replaces:
            found.append(one)
            if one in self.disk_migrations:
                found += self._replaced(self.disk_migrations[one])
        return found

    def _is_there(self, key: Key) -> bool:
        return "_".join(key) in self._there


def _names(keys: Iterable[Key]) -> str:
    return ", ".join(".".join(key) for key in keys)


def _says_sharded(operation: Any) -> bool:
    """Whether an operation is marked as being for the shards, although no model is."""
    if isinstance(operation, migrations.SeparateDatabaseAndState):
        return any(_says_sharded(one) for one in operation.database_operations)
    return isinstance(operation, migrations.RunSQL) and bool(operation.hints.get("sharded"))


def _steps(operations: Any, label: str, state: Any) -> Iterator[tuple[Any, Any, Any]]:
    """The operations one by one, each with the states before and after it. SeparateDatabaseAndState
    is replaced by its parts."""
    for operation in operations:
        before = state.clone()
        if isinstance(operation, migrations.SeparateDatabaseAndState):
            yield from _steps(operation.database_operations, label, before.clone())
            operation.state_forwards(label, state)
        else:
            operation.state_forwards(label, state)
            yield operation, before, state


def _apply(operation: Any, label: str, editor: Any, before: Any, after: Any) -> None:
    """Makes the operation write its SQL, as if no transaction prevented CONCURRENTLY."""
    # Whether it concerns the shards was decided before. The routers answer for the models of today,
    # outside of the namespace.
    if isinstance(operation, migrations.RunSQL):
        operation._run_sql(editor, operation.sql)
        return
    operation.allow_migrate_model = lambda where, model: (
        model._meta.can_migrate(where) and is_sharded(model)
    )
    try:
        operation.database_forwards(label, editor, before, after)
    finally:
        del operation.allow_migrate_model


def _file(label: str, name: str, part: int, statements: list[str], directive: str | None) -> File:
    texts = [_ended(escape(one).replace(f'"{SCHEMA}"', "{shard}")) for one in statements]
    head = f"-- pgshard: {directive}\n" if directive else ""
    source = f"-- Made by `manage.py shards makesql` of {label}.{name}.\n"
    digest = hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]
    source += f"-- By Django {'.'.join(map(str, VERSION[:2]))}, from SQL {digest}.\n"
    return File(
        f"{label}_{name}" + (f"_{part + 1}" if part else ""),
        head + source + "\n".join(texts) + "\n",
    )


def key_checks(app: str | None) -> Iterator[File]:
    """For each sharded model with a key, the constraint by which a shard refuses rows of the keys
    of other shards. It is added without a look at the rows, which a second file validates: so the
    table is not locked during the validation."""
    shards = cluster().shards
    for model in apps.get_models():
        meta = model._meta
        if (
            not is_sharded(model)
            or meta.proxy
            or not meta.managed
            or app not in (None, meta.app_label)
        ):
            continue
        for field in meta.local_concrete_fields:
            if not isinstance(field, KEYS):
                continue
            column, table = quote_name(field.column), f"{{shard}}.{quote_name(meta.db_table)}"
            name = quote_name(key_check_name(field))
            rest = f"mod(mod({column}, {shards}) + {shards}, {shards})"
            source = f"-- Made by `manage.py shards makesql --key-checks` of {meta.label}.\n"
            file = f"{meta.app_label}_{meta.model_name}_{field.name}_check"
            yield File(
                file,
                f"{source}ALTER TABLE {table} ADD CONSTRAINT {name}"
                f" CHECK ({rest} = {{shard_id}}) NOT VALID;\n",
            )
            yield File(f"{file}_2", f"{source}ALTER TABLE {table} VALIDATE CONSTRAINT {name};\n")


def key_check_name(field: Any) -> str:
    """The name of the constraint of a key, not quoted."""
    return str(truncate_name(f"{field.model._meta.db_table}_{field.column}_shard", 63))


def _ended(statement: str) -> str:
    text = statement.rstrip().rstrip(";")
    # A comment at the end would hide the semicolon.
    return text + ("\n;" if "--" in text.rpartition("\n")[2] else ";")


def _done(label: str, name: str, replaced: list[Key]) -> File:
    """The file of a squashed migration if the files of the replaced migrations have done its work.
    It keeps the name when the migration no longer has `replaces`. `pgshard` wants a statement that
    names the shard.
    """
    source = (
        f"-- Made by `manage.py shards makesql` of {label}.{name}, which replaces"
        f" {_names(replaced)}.\n"
    )
    return File(f"{label}_{name}", f"{source}SELECT 'Their files have done it in {{shard}}.';\n")


def _sharded_state(state: Any, key: Key) -> bool:
    """Whether a model of a state is sharded: by its own fields, or by those of a model that it
    extends."""
    from .fields import ShardedBigAutoField
    from .sharded import KEYS

    model = state.models.get(key)
    if model is None:
        return False
    if any(isinstance(one, (ShardedBigAutoField, *KEYS)) for one in model.fields.values()):
        return True
    bases = (base.lower().split(".") for base in model.bases if isinstance(base, str))
    return any(_sharded_state(state, (app, name)) for app, name in bases)


def _concerns_shards(operation: Any, label: str, before: Any, after: Any, has_models: bool) -> bool:
    """Whether an operation changes shards. Raises `CannotMake` if that cannot be known, or the
    operation cannot become SQL.

    `has_models`: whether the application ever has sharded models. Without them, an operation must
    be marked as being for shards.
    """
    where = f"{label}: {operation.describe()}"
    if not has_models and not _says_sharded(operation):
        return False
    if isinstance(operation, migrations.RunPython):
        if operation.hints.get("sharded") is False or operation.code is migrations.RunPython.noop:
            return False
        raise CannotMake(
            f"{where}: Python cannot be a file of SQL. Give it hints={{'sharded': False}} if it is"
            " about other databases; what it does to shards, do with `manage.py shards run`"
        )
    if isinstance(operation, migrations.RunSQL):
        model = operation.hints.get("model_name")
        if "sharded" in operation.hints:
            return bool(operation.hints["sharded"])
        if model is not None:
            key = label, model.lower()
            return _sharded_state(after if key in after.models else before, key)
        raise CannotMake(
            f"{where}: is it for the shards? Say so with hints={{'sharded': True}}, and name tables"
            " {shard}.photos; or with hints={'sharded': False}"
        )
    if isinstance(operation, postgresql.CreateExtension):
        raise CannotMake(
            f"{where}: an extension is made once per host: write a file that begins with `--"
            " pgshard: once-per-host` and has CREATE EXTENSION … SCHEMA public, and give the"
            " migration of the default database its own application"
        )
    name = (
        getattr(operation, "model_name", None)
        or getattr(operation, "new_name", None)
        or getattr(operation, "name", "")
    )
    old = (
        getattr(operation, "model_name", None)
        or getattr(operation, "old_name", None)
        or getattr(operation, "name", "")
    )
    models = [(after, (label, str(name).lower())), (before, (label, str(old).lower()))]
    there = [_sharded_state(state, key) for state, key in models if key in state.models]
    if len(there) == 2 and there[0] != there[1]:
        raise CannotMake(
            f"{where}: it makes a model sharded that was not, or the other way round. Make a new"
            " model, copy the rows with `manage.py shards run`, then delete the old one"
        )
    return any(there)
