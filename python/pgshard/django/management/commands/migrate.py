"""Django's `migrate`. For sharded models it only changes Django's own record, so it then reports
what the shards lack."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from typing import Any

from django.core.management.base import CommandError
from django.core.management.commands.migrate import Command as Migrate
from django.db import NotSupportedError, connections
from django.db.migrations.recorder import MigrationRecorder

from ...cluster import cluster, shard_of_alias, state
from ...errors import NoShard
from ...migrations import CannotMake, Project, present, unwritten
from ..database import AnyDatabase


class Command(AnyDatabase, Migrate):
    """The same as Django's."""

    def handle(self, *args: Any, **options: Any) -> None:
        """Migrates, then looks at the shards."""
        before = _recorded(options)
        try:
            super().handle(*args, **options)
        except NotSupportedError as error:
            if shard_of_alias(options.get("database")) is None:
                raise
            raise CommandError(str(error)) from None
        except NoShard as error:
            raise CommandError(
                f"{error}. In a migration's RunPython, which runs once: take it out, and do that"
                " work in each shard with `manage.py shards run myapp.jobs.fill`"
            ) from error
        if (
            options.get("verbosity", 1) < 1
            or state.cluster is None
            or shard_of_alias(options.get("database")) is not None
        ):
            return
        lacking = _taken_back(before - _recorded(options)) + _files() + _shards()
        if lacking:
            self.stdout.write(self.style.MIGRATE_HEADING("Shards:"))
            for line in lacking:
                self.stdout.write(f"  {line}")


def _recorded(options: Any) -> set[tuple[str, str]]:
    """The migrations that the database has recorded, if it is one of those that Django migrates."""
    using = options.get("database")
    if not options.get("migration_name") or shard_of_alias(using) is not None:
        return set()
    return set(MigrationRecorder(connections[using]).applied_migrations())


def _taken_back(undone: set[tuple[str, str]]) -> list[str]:
    """The migrations that Django has taken back, and the shards have not."""
    folder = cluster().config.migrations
    there = present(folder) if undone and folder is not None and folder.is_dir() else {}
    return [
        f"{label}.{name} was taken back in this database only, and its file is there: the shards"
        " keep what it has changed. To change them back, write a new migration"
        for label, name in sorted(undone)
        if f"{label}_{name}" in there
    ]


def _files() -> list[str]:
    """The migrations that have no file yet."""
    folder = cluster().config.migrations
    if folder is None:
        return (
            ["the config names no folder for migrations: add migrations to [cluster]"]
            if Project().apps
            else []
        )
    try:
        missing = unwritten(folder)
    except CannotMake as error:
        return [str(error)]
    return [f"{name} has no file yet: run `manage.py shards makesql`" for name in missing]


def _errors(stderr: str) -> str:
    """The errors in a command's output, one JSON object a line."""
    said = []
    for line in stderr.splitlines():
        try:
            one = json.loads(line)
        except ValueError:
            said.append(line)
        else:
            if one.get("level") == "error":
                said.append(": ".join([one["message"], *one.get("causes", ())]))
    return "; ".join(said)


def _shards() -> list[str]:
    """What the shards have not run, according to the command."""
    command = shutil.which(os.environ.get("PGSHARD", "pgshard"))
    if command is None:
        return [
            "the command pgshard is not in PATH, so the shards were not checked: run `pgshard"
            " migrate status`"
        ]
    line = [command, "--config", str(cluster().config.path), "--json", "migrate", "status"]
    done = subprocess.run(line, capture_output=True, text=True)
    try:
        said = json.loads(done.stdout)
    except ValueError:
        return [f"pgshard migrate status failed: {_errors(done.stderr)}"]
    lacking = list(said.get("mistakes", ()))
    for one in said.get("migrations", ()):
        for what in ("pending", "changed", "failed"):
            if one.get(what):
                remedy = "`pgshard migrate retry`" if what == "failed" else "`pgshard migrate up`"
                if what == "changed":
                    remedy = "put the old text of the file back"
                lacking.append(f"{one['name']} is {what} in shards {one[what]}: {remedy}")
    lacking += [f"host {host} did not answer" for host in said.get("silent_hosts", ())]
    return lacking
