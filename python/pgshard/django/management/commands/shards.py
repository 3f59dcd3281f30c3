"""`manage.py shards`: shows where things are, writes migrations as files, and does work on every
shard."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core import serializers
from django.core.management.base import BaseCommand, CommandError
from django.db import connections
from django.utils.module_loading import import_string

from pgshard.errors import PgshardError
from pgshard.keys import KeyKind, key_of_text

from ... import migrations, misplaced
from ...cluster import ALL_ROWS, alias, cluster, unsharded_host
from ...gather import gather
from ...reach import all_rows_meant
from ...sharded import is_sharded


class Command(BaseCommand):
    """The command."""

    help = "Where keys and IDs are, migrations of sharded models, and work on every shard."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Adds the subcommands."""
        verbs = parser.add_subparsers(dest="verb", required=True)
        verbs.add_parser("list", help="how many shards each host has")
        where = verbs.add_parser("where", help="the shard, schema and host of a key or an ID")
        which = where.add_mutually_exclusive_group(required=True)
        which.add_argument("--key", help="a key, of the kind that the config names")
        which.add_argument("--id", type=int, help="an ID that a shard made")
        make = verbs.add_parser(
            "makesql", help="write migrations of sharded models as files for `pgshard migrate up`"
        )
        make.add_argument(
            "app", nargs="?", help="an application; without, all that have sharded models"
        )
        make.add_argument(
            "name", nargs="?", help="one of its migrations; without, all that have no file yet"
        )
        make.add_argument(
            "--print", action="store_true", dest="show", help="print them, write nothing"
        )
        make.add_argument(
            "--check", action="store_true", help="exit code 1 if a file is missing, write nothing"
        )
        make.add_argument(
            "--key-checks",
            action="store_true",
            help="also constraints by which each shard refuses rows of other keys",
        )
        check = verbs.add_parser(
            "check", help="compare the keys, IDs and references of all rows with their shards"
        )
        check.add_argument("models", nargs="*", help="such as photos.Photo; without, all")
        check.add_argument("--rows", type=int, default=10_000, help="how many to read at a time")
        check.add_argument("--progress", help="a file: run again with it, to go on where it ended")
        run = verbs.add_parser(
            "run",
            help="call a function with the alias of each shard, or once for an unsharded host: run"
            " myapp.jobs.fill",
        )
        run.add_argument("function", help="its dotted name; it takes the alias, such as shard-31")
        run.add_argument("--width", type=int, default=8, help="shards at the same time")
        shell = verbs.add_parser("dbshell", help="psql in the shard of a key")
        shell.add_argument("key")
        dump = verbs.add_parser(
            "dumpdata", help="the rows of a model on all shards, one JSON object a line"
        )
        dump.add_argument("model", help="such as photos.Photo")

    def handle(self, verb: str, **options: Any) -> None:
        """Runs a subcommand."""
        self._edited: list[str] = []
        try:
            getattr(self, f"_{verb}")(**options)
        except PgshardError as error:
            raise CommandError(str(error)) from error

    def _list(self, **_: Any) -> None:
        directory = cluster().directory
        map = directory.map
        self.stdout.write(f"{map.shards} shards, map version {map.version}")
        for host in sorted(set(map.hosts)):
            whole = directory.host(host).whole
            how = "" if whole is None else f"  unsharded, in the schema {whole}"
            self.stdout.write(f"{host}  {map.ranges(host)}{how}")

    def _where(self, key: str | None, id: int | None, **_: Any) -> None:
        directory = cluster().directory
        shard = _shard_of_text(key) if key is not None else directory.shard_of_id(id or 0)
        self.stdout.write(f"{alias(shard)} {directory.schema(shard)} {directory.place(shard).host}")

    def _dbshell(self, key: str, **_: Any) -> None:
        shard = _shard_of_text(key)
        try:
            connections[alias(shard)].client.runshell([])
        except FileNotFoundError:
            raise CommandError("psql is not installed, or not in PATH") from None
        except subprocess.CalledProcessError as error:
            raise CommandError(
                f"psql ended with exit code {error.returncode}", returncode=error.returncode
            ) from None

    def _run(self, function: str, width: int, **_: Any) -> None:
        try:
            work = _function(function)
        except (ImportError, OSError, KeyError) as wrong:
            raise CommandError(f"{function} is no function: {wrong}") from wrong
        whole = unsharded_host() is not None
        if whole:
            # Once for all shards, with the alias of the first: its rows are those of all.
            with all_rows_meant():
                result = gather([0], work)
        else:
            result = gather(range(cluster().config.shards), work, width=width)
        for shard, error in sorted(result.errors.items()):
            self.stderr.write(f"{alias(shard)}: {error}")
        what = "unsharded host" if whole else "shards"
        self.stdout.write(f"{len(result.values)} {what} done, {len(result.errors)} failed")
        if result.errors:
            raise CommandError(
                "some shards failed: run it again when they can be used; it also runs again on"
                " those that are done"
            )

    def _dumpdata(self, model: str, **_: Any) -> None:
        from django.apps import apps

        try:
            found = apps.get_model(model)
        except (LookupError, ValueError) as wrong:
            raise CommandError(f"{model} is no model, such as photos.Photo: {wrong}") from None
        if not is_sharded(found):
            raise CommandError(f"{model} is not sharded: `manage.py dumpdata {model}`")
        shards = map(alias, range(cluster().config.shards))
        for where in [ALL_ROWS] if unsharded_host() is not None else shards:
            rows = found._base_manager.using(where).order_by("pk").iterator()
            for row in serializers.serialize("python", rows):
                self.stdout.write(json.dumps(row, default=str))

    def _check(self, models: list[str], rows: int, progress: str | None, **_: Any) -> None:
        if rows < 1:
            raise CommandError("--rows must be at least 1")
        try:
            checked = misplaced.checked_models(models)
            known = misplaced.Progress(None if progress is None else Path(progress))
        except (LookupError, ValueError) as error:
            raise CommandError(str(error)) from None
        for model in checked:
            if not is_sharded(model):
                raise CommandError(f"{model._meta.label} is not sharded")
        for one in misplaced.look(checked, rows, known):
            there = one.belongs or "no shard"
            said = f"{one.column} {one.value} is of {there}"
            self.stdout.write(f"{one.model} {one.pk} is on {one.where}, and its {said}")
        found = known.found()
        if found:
            raise CommandError(f"{found} values are of another shard than their rows", returncode=1)
        self.stdout.write(f"All rows of {len(checked)} tables are where they belong.")

    def _makesql(
        self,
        app: str | None,
        name: str | None,
        show: bool,
        check: bool,
        key_checks: bool,
        **_: Any,
    ) -> None:
        folder = cluster().config.migrations
        if folder is None:
            path = cluster().config.path
            raise CommandError(
                f'{path}: [cluster] has no migrations: add migrations = "migrations", and make that'
                " folder"
            )
        try:
            present = migrations.present(folder)
            project = migrations.Project(present)
        except migrations.CannotMake as error:
            raise CommandError(str(error)) from None
        missing: list[str] = []
        for label, one in (
            [(app, name)] if app is not None and name is not None else project.wanted(app)
        ):
            missing += self._make(folder, present, project, label, one, show, check)
        if key_checks:
            if cluster().config.key is not KeyKind.INTEGER:
                raise CommandError("--key-checks is for integer keys: PostgreSQL hashes no others")
            for file in migrations.key_checks(app):
                missing += self._write(folder, present, [file], show, check)
        if check and missing:
            raise CommandError(
                f"{folder} lacks {', '.join(missing)}: run `manage.py shards makesql`", returncode=1
            )
        if check and self._edited:
            raise CommandError(
                f"{', '.join(self._edited)}: the migration was edited after its file was made, and"
                " shards may have run the file: take the edit back, and write a new migration",
                returncode=1,
            )
        if not missing and not show:
            self.stdout.write("No migration of a sharded model is without its file.")

    def _make(
        self,
        folder: Path,
        present: dict[str, Path],
        project: migrations.Project,
        label: str,
        name: str,
        show: bool,
        check: bool,
    ) -> list[str]:
        try:
            files = project.make(label, name)
        except KeyError:
            raise CommandError(f"there is no migration {label}.{name}") from None
        except migrations.CannotMake as error:
            raise CommandError(f"{label}.{name}: {error}") from None
        self._edited += [
            file.name for file in files if file.name in present and file.differs(present[file.name])
        ]
        return self._write(folder, present, files, show, check)

    def _write(
        self,
        folder: Path,
        present: dict[str, Path],
        files: list[migrations.File],
        show: bool,
        check: bool,
    ) -> list[str]:
        """Writes the files that are not there. Returns their names."""
        written = []
        for file in files:
            if file.name in present and not show:
                continue
            written.append(file.name)
            if show:
                self.stdout.write(file.text)
            elif not check:
                path = folder / f"{_next(present):04d}_{file.name}.sql"
                with open(path, "x", encoding="utf-8") as out:
                    out.write(file.text)
                    out.flush()
                    os.fsync(out.fileno())
                present[file.name] = path
                self.stdout.write(f"wrote {path}: run `pgshard migrate up`")
        return written


def _function(name: str) -> Any:
    """The function with a dotted name, or `run` of a file."""
    return runpy.run_path(name)["run"] if name.endswith(".py") else import_string(name)


def _next(present: dict[str, Path]) -> int:
    numbers = [int(migrations.NUMBERED.fullmatch(path.name).group(1)) for path in present.values()]  # type: ignore[union-attr]
    return max(numbers, default=0) + 1


def _shard_of_text(key: str) -> int:
    """The shard of a key that was typed. Raises `WrongKey`."""
    return cluster().shard_of_key(key_of_text(cluster().config.key, key))
