"""The argument `--database` of Django's commands. Django offers what a loop over all databases
sees; here the shards are accepted too."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.db import connections


class AnyDatabase:
    """For a command of Django's that works on one shard as on any database."""

    def add_arguments(self, parser: ArgumentParser) -> None:
        """The same as Django's."""
        parent: Any = super()
        parent.add_arguments(parser)
        for action in parser._actions:
            if "--database" in action.option_strings:
                # A loop over it, for the help, sees the real databases; but `in` also finds the
                # shards.
                action.choices = connections.settings
